"""Import Kafka's client library, and keep secrets out of its errors."""

import logging
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from acker_redis.errors import BadConfigError, OutageError, PipelineError
from acker_redis.extras import install_hint

log = logging.getLogger("acker_redis.kafka")

_SECRET = re.compile(r"^(sasl|oauth)|password|passphrase|secret|token|credential|pem$")
"""Part of the names of settings whose values appear in no text."""

_SHOWN = ("sasl.mechanism", "sasl.mechanisms", "sasl.oauthbearer.method", "sasl.kerberos.service.name")
"""Settings with such a part whose values may appear."""

_ENTRY = re.compile(r"=\s*([^\s=,;]+)")
"""Value of an entry in a setting that has several, such as `sasl.oauthbearer.config`."""

_OF_CONNECTIONS = {
    "bootstrap.servers",
    "broker.address.family",
    "client.id",
    "log_level",
    "metadata.broker.list",
    "oauth_cb",
}
_PREFIXES = ("client.dns", "enable.sasl", "enable.ssl", "reconnect.", "sasl.", "security.", "socket.", "ssl.")
"""Names and prefixes of settings that say how to reach the brokers."""

_SERVERS = re.compile(r"\s*(([a-zA-Z_]+)://)?[^\s,/]+(\s*,\s*(([a-zA-Z_]+)://)?[^\s,/]+)*\s*,?\s*")
"""Hosts, each with or without a port, and with or without a security protocol in front (`SASL_SSL://host:9093`)."""

_LEAST_CHARS = 2
"""Shortest value that is hidden. The text of an error has each shorter one anyway."""

_SAID_SECS = 60.0
"""Interval between two log lines of the client that are of the same kind."""

_UNANSWERED = "Failed to acquire SASL OAUTHBEARER token"
"""Beginning of the client's error after which it asks for a token again. It has the code of a refused login."""


def confluent() -> Any:
    """Import confluent-kafka.

    Raises:
        PipelineError: it is not installed.
    """
    try:
        import confluent_kafka
    except ImportError as exc:
        raise PipelineError(
            "The package confluent-kafka is not installed here, and Kafka can't be reached without it. "
            f"{install_hint('kafka')} The machines of the executors need it, too."
        ) from exc
    return confluent_kafka


def connected(make: Callable[[dict[str, Any]], Any], settings: Mapping[str, object]) -> Any:
    """Make a client. It waits for no broker, but for the first token of an `oauth_cb`.

    Raises:
        OutageError: no token came, because the function raises, or takes too long.
        KafkaException: the client refuses the settings.
    """
    kafka = confluent()
    try:
        return make({**settings})
    except (kafka.KafkaException, SystemError) as exc:
        # The client may call error_cb while the exception of oauth_cb is set, which is a SystemError.
        is_token = isinstance(exc, SystemError) or exc.args[0].code() == kafka.KafkaError.SASL_AUTHENTICATION_FAILED
        if not is_token or "oauth_cb" not in settings:
            raise
        raise OutageError(
            "kafka: oauth_cb gave no token within ten seconds, and without one no broker answers. No record is to blame. "
            "Check the function, and the service that it asks."
        ) from None


def lacks_token(error: Any) -> bool:
    """Return True if an error of a client says that no token came. The client asks for one again."""
    return bool(error.str().startswith(_UNANSWERED))


def check_names(kafka: Mapping[str, object]) -> None:
    """Check that settings have names, and name a broker.

    Raises:
        BadConfigError: they don't.
    """
    if not isinstance(kafka, Mapping) or not all(isinstance(name, str) for name in kafka):
        raise BadConfigError(
            f"kafka={type(kafka).__name__} are no settings. The client needs their names. Pass a dict, such as "
            '{"bootstrap.servers": "host:9092"}.'
        )
    servers = kafka.get("bootstrap.servers")
    if not servers:
        raise BadConfigError(
            'kafka= has no "bootstrap.servers". Without it no broker is found. Pass {"bootstrap.servers": "host:9092"}.'
        )
    if not isinstance(servers, str) or not _SERVERS.fullmatch(servers):
        raise BadConfigError(
            f'kafka: "bootstrap.servers" is {servers!r:.200}, and no list of hosts and ports. No broker would be found. Pass '
            'them with commas between, such as "host1:9092,host2:9092".'
        )


def connection_settings(kafka: Mapping[str, object]) -> dict[str, Any]:
    """Return the settings of connections, which any kind of client takes."""
    return {name: value for name, value in kafka.items() if name in _OF_CONNECTIONS or name.startswith(_PREFIXES)}


class ClientLog:
    """Logger that a client writes to, in place of stderr. It passes on one line of a client and kind per minute.

    While brokers are away, a client writes some twenty lines a second. A client that is made again in place of another one
    counts as the same.
    """

    _said: ClassVar[dict[tuple[int, str, str], float]] = {}
    """Settings, client without its number, and kind -> when such a line was passed on last in this process."""

    def __init__(self, kafka: Mapping[str, object]) -> None:
        """Prepare. `kafka` has the settings of the client, whose values are hidden."""
        self._kafka = kafka
        texts = {name: str(value) for name, value in kafka.items() if isinstance(value, (str, int, float))}
        self._settings = hash(frozenset(texts.items()))

    def log(self, level: int, _form: str, kind: str, client: str, line: str) -> None:
        """Take a line. The client calls it while it is polled."""
        now = time.monotonic()
        same = self._settings, client.rpartition("-")[0], kind
        if level > logging.DEBUG and now - self._said.get(same, float("-inf")) < _SAID_SECS:
            return
        self._said[same] = now
        log.log(level, "client reports kind=%s client=%s line=%s", kind, client, without_secrets(line, self._kafka))


def without_secrets(text: str, kafka: Mapping[str, object]) -> str:
    """Return a text of the client, in which the values of secret settings are hidden.

    >>> without_secrets("no SASL for hunter2", {"sasl.password": "hunter2", "client.id": "SASL"})
    'no SASL for ***'
    """
    secrets = [str(value) for name, value in kafka.items() if _is_secret(name) and not callable(value)]
    hidden = {*secrets, *(entry for value in secrets for entry in _ENTRY.findall(value))}
    for value in sorted(hidden, key=len, reverse=True):
        if len(value) >= _LEAST_CHARS:
            text = text.replace(value, "***")
    return text


def _is_secret(name: str) -> bool:
    return _SECRET.search(name) is not None and name not in _SHOWN
