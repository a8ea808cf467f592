"""List a server's apps and their settings. Uses plain read commands, so it works on a replica too."""

from collections.abc import Iterable

from acker_redis.client import server_info
from acker_redis.client.client import Client
from acker_redis.client.replies import as_texts
from acker_redis.errors import AckerError, AppNotFoundError, ServerUnavailableError
from acker_redis.model import keys
from acker_redis.model.config import AckerConfig, check_app_name, is_app_name


def apps(client: Client) -> list[str]:
    """List the apps on the server by name, without stray keys; see `find_apps`."""
    return find_apps(client)[0]


def find_apps(client: Client) -> tuple[list[str], list[str]]:
    """Find the names of the server's apps, and stray keys: those of settings whose name is not a valid app name."""
    return _sorted_out(client.ask(server_info.find_keys, keys.CONFIG_PATTERN))


class AppScan:
    """Scans the server, or all nodes of a cluster, for apps. Its steps are short, regardless of other data."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._cursors = dict.fromkeys([""] if client.nodes is None else client.nodes.names, 0)

    @property
    def done(self) -> bool:
        """True if every node was scanned. Cluster nodes that don't answer are skipped."""
        return not self._cursors

    def step(self) -> tuple[list[str], list[str]]:
        """Scan some keys of each node. Returns the names and stray keys among them, as `find_apps`.

        Raises:
            AckerError: error of the server. Cluster nodes that are unavailable now are skipped.
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
        BadConfigError: `app` is not a valid app name.
        AppNotFoundError: the app does not exist.
        DamagedDataError: the app's settings are damaged.
    """
    check_app_name(app)
    (pairs,) = client.pipeline([("HGETALL", keys.config(app))])
    if not pairs:
        raise AppNotFoundError(
            f"App {app!r} does not exist on {client.address}. Its first client creates it. List the existing apps with "
            "`acker-redis apps`."
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
