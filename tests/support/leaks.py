"""No key leaks: keys that may remain of an app once every root is settled, every outcome confirmed and the ring turned."""

import re
from typing import Any

from acker_redis import Acker, Outcome

_LASTING = re.compile(
    r"acker:\{%s(:\d+\}:(meta|stats|samples|latency|(acked|failed):\d+)|\}:(config|components|limits|runs|ends|topologies))"
)
_META_FIELDS = {
    "generation", "tick", "num_buckets", "lanes", "clock", "max_age_ms", "tick_ms", "format", "shards", "created_ms",
    "last_rotation_ms", "next_rotation_ms", "sweep_cursor", "max_pending",
}  # fmt: skip


def app_keys(raw: Any, app: str) -> list[str]:
    """Every key of one app, whatever its shape."""
    names = (key.decode() for key in raw.scan_iter(match="acker:*", count=1000))
    return sorted(key for key in names if re.match(rf"acker:\{{{re.escape(app)}[:}}]", key))


def assert_no_leaks(raw: Any, app: str) -> None:
    """Only settings, ring position, counters and empty streams remain, and they hold nothing of any root."""
    lasting = re.compile(_LASTING.pattern % re.escape(app))
    for key in app_keys(raw, app):
        assert lasting.fullmatch(key), f"{key} outlived the roots of app {app!r}"
        if re.search(r":(acked|failed):\d+$", key):
            assert raw.xlen(key) == 0, f"{key} holds entries although every outcome was confirmed"
            assert raw.xpending(key, "spout")["pending"] == 0, f"{key} has entries to redeliver that nobody has"
        elif key.endswith(":meta"):
            fields = {name.decode() for name in raw.hkeys(key) if not name.startswith(b"component:")}
            assert fields <= _META_FIELDS, f"{key} grew {fields - _META_FIELDS}"


def run_out(acker: Acker) -> list[Outcome]:
    """Turn the ring once around and confirm every outcome: pending roots time out, and no idempotency key is left."""
    taken: list[Outcome] = []
    for _ in range(acker.config.num_buckets + 1):
        acker.admin.rotate(force=True)
    while outcomes := acker.poll():
        taken.extend(outcomes)
        acker.confirm(outcomes)
    return taken
