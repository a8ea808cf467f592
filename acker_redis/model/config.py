"""Settings of one app: frozen and validated, with units in the names."""

import math
import re
from dataclasses import dataclass
from typing import Literal, TypedDict, cast

from acker_redis.errors import BadConfigError, DamagedDataError

Clock = Literal["first_seen", "last_update"]

_APP_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True)
class AckerConfig:
    """Settings that all clients of an app share.

    The first client writes them to Redis. Other settings are refused.

    Attributes:
        app: name of the app, part of every key: at most 64 letters, digits, `_`, `.` or `-`.
        shards: number of ledgers, 1 to 4096. A hash spreads roots over them, and a cluster spreads them over its nodes.
        num_buckets: number of rotating buckets, at least 2 (Storm's RotatingMap; TIMEOUT_BUCKET_NUM is 3).
        message_timeout_secs: message timeout T, in seconds. A root expires between T and
            T * num_buckets / (num_buckets - 1) after it entered the nursery (Storm: topology.message.timeout.secs, and
            RotatingMap's own bound).
        clock: rule that restarts the timeout. `first_seen`: only the first message of a root, a fail and `reset_timeout`
            put it into the nursery (Storm 2.x). `last_update`: every update does (Storm 0.9 and 1.x).
        max_age_secs: age limit, in seconds. An older root never enters the nursery again, despite updates. So it
            expires at most T * num_buckets / (num_buckets - 1) later. None means no limit. For roots in one block, the
            first root's age counts for all.
        lanes: number of outcome streams per shard and kind, 1 to 64. A root's outcome is written to lane
            `spout_id % lanes`.

    Raises:
        BadConfigError: a value is out of range.
    """

    app: str
    shards: int = 8
    num_buckets: int = 3
    message_timeout_secs: float = 30.0
    clock: Clock = "first_seen"
    max_age_secs: float | None = None
    lanes: int = 1

    def __post_init__(self) -> None:
        check_app_name(self.app)
        _check_int("shards", self.shards, 1, 4096)
        _check_int("num_buckets", self.num_buckets, 2, 1000)
        _check_int("lanes", self.lanes, 1, 64)
        if self.clock not in ("first_seen", "last_update"):
            raise BadConfigError(f"clock={self.clock!r} is not a clock. Use 'first_seen' or 'last_update'.")
        _check_secs("message_timeout_secs", self.message_timeout_secs)
        if self.tick_ms < 1:
            raise BadConfigError(
                f"message_timeout_secs={self.message_timeout_secs!r} is too short for num_buckets={self.num_buckets}. Ticks "
                "would be less than 1 ms apart. Use a longer timeout or fewer buckets."
            )
        if self.max_age_secs is not None:
            _check_secs("max_age_secs", self.max_age_secs)

    @property
    def tick_ms(self) -> int:
        """Milliseconds between two ticks: T / (num_buckets - 1), rounded up so that no root expires before T."""
        return math.ceil(self.message_timeout_secs * 1000 / (self.num_buckets - 1))

    @property
    def max_age_ms(self) -> int:
        """Age limit in milliseconds, 0 for none."""
        return 0 if self.max_age_secs is None else math.ceil(self.max_age_secs * 1000)

    def as_fields(self) -> dict[str, str]:
        """Return the settings as stored in the app's config hash.

        >>> AckerConfig(app="orders", message_timeout_secs=60).as_fields()["message_timeout_secs"]
        '60.0'
        """
        return {
            "shards": str(self.shards),
            "num_buckets": str(self.num_buckets),
            "message_timeout_secs": repr(float(self.message_timeout_secs)),
            "clock": self.clock,
            "max_age_secs": "" if self.max_age_secs is None else repr(float(self.max_age_secs)),
            "lanes": str(self.lanes),
        }

    @classmethod
    def from_fields(cls, app: str, fields: dict[str, str]) -> "AckerConfig":
        """Parse the settings in an app's config hash.

        Raises:
            DamagedDataError: a setting is missing or invalid.

        >>> config = AckerConfig(app="orders", shards=2)
        >>> AckerConfig.from_fields("orders", config.as_fields()) == config
        True
        """
        try:
            return cls(
                app=app,
                shards=int(fields["shards"]),
                num_buckets=int(fields["num_buckets"]),
                message_timeout_secs=float(fields["message_timeout_secs"]),
                clock=cast(Clock, fields["clock"]),
                max_age_secs=float(fields["max_age_secs"]) if fields["max_age_secs"] else None,
                lanes=int(fields["lanes"]),
            )
        except (KeyError, ValueError) as exc:
            raise DamagedDataError(
                f"The stored settings of app {app!r} are damaged. Delete the app with `acker-redis delete-app --app {app}`. "
                f"The parser reported: {exc}"
            ) from exc


class Settings(TypedDict, total=False):
    """The settings of `AckerConfig` as keywords."""

    app: str
    shards: int
    num_buckets: int
    message_timeout_secs: float
    clock: Clock
    max_age_secs: float | None
    lanes: int


def config_of(config: AckerConfig | None, settings: Settings) -> AckerConfig:
    """Return the configuration that a caller passed as a config or as keywords.

    Raises:
        BadConfigError: both or neither were passed, a keyword is not a setting, or a value is invalid.
    """
    if config is not None:
        if not isinstance(config, AckerConfig):
            raise BadConfigError(
                f"config={config!r} is not an AckerConfig. Pass an AckerConfig, or the app's name as app=..."
            )
        if settings:
            raise BadConfigError(
                f"config and {', '.join(settings)} exclude each other. Pass a config or keywords, not both."
            )
        return config
    unknown = settings.keys() - Settings.__annotations__.keys()
    if unknown:
        raise BadConfigError(f"Unknown setting {', '.join(sorted(unknown))}. Use the settings of AckerConfig.")
    if "app" not in settings:
        raise BadConfigError('The name of the app is missing. Pass app="...", or an AckerConfig.')
    return AckerConfig(**settings)


def is_app_name(app: str) -> bool:
    """Return True if this is a valid app name."""
    return isinstance(app, str) and _APP_NAME.fullmatch(app) is not None


def check_app_name(app: str) -> None:
    """Validate the name of an app.

    Raises:
        BadConfigError: the name is invalid. The text lists the allowed characters.
    """
    if not is_app_name(app):
        raise BadConfigError(
            f"app={app!r} is not an app name. Use 1 to 64 letters, digits, '_', '.' or '-', and begin with a letter or digit."
        )


def check_bound(name: str, value: object, *, may_be_none: bool = True) -> None:
    """Validate a bound on the number of messages. With `may_be_none` the error offers None.

    Raises:
        BadConfigError: the value is neither None nor an integer of 1 or more.
    """
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        is_number = isinstance(value, int) and not isinstance(value, bool)
        why = " lets no message through, so the run would wait forever" if is_number else " is not an integer"
        or_none = ", or None for no bound" if may_be_none else ""
        raise BadConfigError(f"{name}={value!r}{why}. Use an integer of 1 or more{or_none}.")


def check_finite(name: str, value: object, low: float = 0.0) -> None:
    """Validate a number that waits are computed from, so that every wait ends.

    Raises:
        BadConfigError: the value is not a finite number of `low` or more.
    """
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not low <= cast(float, value) < math.inf:
        why = "is out of range" if is_number else "is not a number"
        raise BadConfigError(f"{name}={value!r} {why}. Use a finite number of {low:g} or more.")


def _check_int(name: str, value: int, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise BadConfigError(f"{name}={value!r} is out of range. Use an integer from {low} to {high}.")


def _check_secs(name: str, value: float) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not 0 < value <= 366 * 86400:
        raise BadConfigError(f"{name}={value!r} is out of range. Use a number of seconds above 0 and at most a year.")
