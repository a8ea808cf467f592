"""Which apps a server holds, and with what settings; read with plain commands, so also from a replica."""

from acker_redis import keys
from acker_redis.client import Client
from acker_redis.config import AckerConfig, check_app_name, is_app_name
from acker_redis.entries import as_dict
from acker_redis.errors import AppNotFoundError


def apps(client: Client) -> list[str]:
    """Every app on the server, by name. A key that only looks like the settings of one is passed over."""
    return find_apps(client)[0]


def find_apps(client: Client) -> tuple[list[str], list[str]]:
    """Names of the apps on the server; and keys that look like an app's settings and can't be, as anybody may write them."""
    names, strays = [], []
    for found in client.find_keys(keys.CONFIG_PATTERN):
        key = found.decode(errors="backslashreplace")
        name = keys.app_of_config(key)
        if name is not None and is_app_name(name):
            names.append(name)
        else:
            strays.append(key)
    return sorted(names), strays


def stored_config(client: Client, app: str) -> AckerConfig:
    """The settings of an app as Redis holds them.

    Raises:
        BadConfigError: this can't be the name of an app.
        AppNotFoundError: no such app.
        DamagedDataError: its settings are damaged.
    """
    check_app_name(app)
    (pairs,) = client.pipeline([("HGETALL", keys.config(app))])
    if not pairs:
        raise AppNotFoundError(f"no app {app!r} on {client.address}: its first client creates it")
    return AckerConfig.from_fields(app, as_texts(pairs))


def as_texts(reply: object) -> dict[str, str]:
    """A hash of texts, as a driver gives it."""
    return {name.decode(errors="replace"): value.decode(errors="replace") for name, value in as_dict(reply).items()}
