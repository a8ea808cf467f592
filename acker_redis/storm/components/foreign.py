"""Components in other languages, which are refused with the way to port them."""

from typing import Any, NoReturn

from acker_redis.errors import InvalidTopologyError


def refuse_foreign(component: object) -> None:
    """Refuse a class of a component in another language.

    Raises:
        InvalidTopologyError: it is one.
    """
    if isinstance(component, type) and issubclass(component, _Foreign):
        component.spec()


class _Foreign:
    """Component that Storm runs in another process or language."""

    why = ""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._refuse()

    @classmethod
    def spec(cls, *args: Any, **options: Any) -> NoReturn:
        """Refuse the component.

        Raises:
            InvalidTopologyError: always.
        """
        cls._refuse()

    @classmethod
    def _refuse(cls) -> NoReturn:
        raise InvalidTopologyError(f"{cls.__name__} can't run here. {cls.why}")


class JavaBolt(_Foreign):
    """Bolt in Java, which can't run here."""

    why = "Write its execute() as process() of a Bolt in Python, or call its code as a service."


class JavaSpout(_Foreign):
    """Spout in Java, which can't run here."""

    why = "Write its nextTuple() as next_tuple() of a Spout in Python, with a client for the same source."


class ShellBolt(_Foreign):
    """Bolt in a process of its own, which can't run here."""

    why = "If the program is in Python, derive its class from Bolt. Otherwise start it in initialize() and talk to it."


class ShellSpout(_Foreign):
    """Spout in a process of its own, which can't run here."""

    why = "If the program is in Python, derive its class from Spout. Otherwise start it in initialize() and talk to it."
