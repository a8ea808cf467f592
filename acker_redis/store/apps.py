"""Which apps a server holds, and with what settings; read with plain commands, so also from a replica."""

from collections.abc import Iterable

from acker_redis.client import server_info
from acker_redis.client.client import Client
from acker_redis.client.replies import as_texts
from acker_redis.errors import AckerError, AppNotFoundError, ServerUnavailableError
from acker_redis.model import keys
from acker_redis.model.config import AckerConfig, check_app_name, is_app_name


def apps(client: Client) -> list[str]:
    """List the apps on the server, by name; stray keys are left out, see `find_apps`."""
    return find_apps(client)[0]


def find_apps(client: Client) -> tuple[list[str], list[str]]:
    """Find the names of the apps on the server; and stray keys, which look like an app's settings and have no app's name."""
    return _sorted_out(client.ask(server_info.find_keys, keys.CONFIG_PATTERN))


class AppScan:
    """Looks for apps on the server, or every node of a cluster, in short steps whatever else it holds."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._cursors = dict.fromkeys([""] if client.nodes is None else client.nodes.names, 0)

    @property
    def done(self) -> bool:
        """Whether every node was looked through; one of a cluster that does not answer is left out."""
        return not self._cursors

    def step(self) -> tuple[list[str], list[str]]:
        """Look at some keys of each node; returns names and strays among them, as `find_apps`.

        Raises:
            AckerError: as the server answered; of a cluster, a node that can't be asked now is left out.
        """
        raw_keys: set[bytes] = set()
        for node, reply in self._client.scan(keys.CONFIG_PATTERN, self._cursors).items():
            if isinstance(reply, AckerError):
                if self._client.nodes is None or not isinstance(reply, ServerUnavailableError):
                    raise reply
                del self._cursors[node]
                continue
            self._cursors[node], some = reply
            raw_keys.update(some)
            if self._cursors[node] == 0:
                del self._cursors[node]
        return _sorted_out(raw_keys)


def stored_config(client: Client, app: str) -> AckerConfig:
    """Read the settings of an app.

    Raises:
        BadConfigError: this can't be the name of an app.
        AppNotFoundError: no such app.
        DamagedDataError: its settings are damaged.
    """
    check_app_name(app)
    (pairs,) = client.pipeline([("HGETALL", keys.config(app))])
    if not pairs:
        raise AppNotFoundError(
            f"no app {app!r} on {client.address}: its first client creates it, and `acker-redis apps` lists those there are"
        )
    return AckerConfig.from_fields(app, as_texts(pairs))


def _sorted_out(raw_keys: Iterable[bytes]) -> tuple[list[str], list[str]]:
    names, strays = [], []
    for raw_key in sorted(raw_keys):
        key = raw_key.decode(errors="backslashreplace")
        name = keys.app_of_config(key)
        if name is not None and is_app_name(name):
            names.append(name)
        else:
            strays.append(key)
    return names, strays
