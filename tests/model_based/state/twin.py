"""The model and a real server side by side: each call goes to both, and must have one answer."""

from typing import Any

from acker_redis.client import scripts
from acker_redis.client.client import Client
from acker_redis.model.keys import StateKeys
from acker_redis.store import state_pieces
from tests.model_based.state.server import OPEN, PLACES, ModelServer, Part, State, state_of

KEYS = StateKeys("lab", "words")
KEEP_MS = 3_600_000


def stored(count: int) -> list[tuple[bytes, bytes]]:
    """Fields of a task's state after so many turns, as the server has them; empty: deleted."""
    _, *pieces = state_of(count)
    value = bytes([count]) * {0: 0, 1: 1, 2: state_pieces.PIECE_BYTES + 1}[sum(map(bool, pieces))]
    return [(b"x", b"%d" % count if count else b""), *state_pieces.cut(b"y", value, state_pieces.PIECE_BYTES + 1)]


FIELDS = [field for field, _ in stored(0)]


class Twin(ModelServer):
    """A model whose every call is compared with the scripts of a server."""

    def __init__(self, client: Client, raw: Any) -> None:
        super().__init__()
        self.client, self.raw = client, raw

    def open(self) -> int:
        status, epoch = self._call("open_state", {}, "server", "count", "shape")
        assert (status, epoch) == (0, super().open())
        return int(epoch)

    def load(self, epoch: int, turn: int, task: str) -> tuple[int, Any]:
        status, entry, *ids = self._call("load_state", {"attempts": KEYS.attempts(task)}, epoch, turn, task)
        expected, named = super().load(epoch, turn, task)
        assert status == expected
        if status == OPEN:
            found = b"" if named is None else (b"f" if named[1] else b"u") + _spelled(named[0]).encode()
            assert entry == found
            left = {_spelled(attempt) for attempt in self.attempts if attempt[2] == task}
            for one in map(bytes.decode, ids):
                if one not in left:
                    self.raw.unlink(KEYS.attempt(task, one))
                    self.raw.srem(KEYS.attempts(task), one)
        return status, named

    def read(self, epoch: int, turn: int, task: str) -> tuple[int, State]:
        named = {"values": KEYS.values(task)}
        status, *values = self._call("read_state", named, epoch, turn, state_pieces.PART_BYTES, *FIELDS)
        expected, of = super().read(epoch, turn, task)
        assert status == expected
        if status == OPEN:
            assert values == [_field(place, count)[1] for place, count in enumerate(of)]
        return status, of

    def write(self, attempt: Any, part: int, value: Part) -> int:
        epoch, turn, task, _ = attempt
        key = KEYS.attempt(task, _spelled(attempt))
        named = {"sizes": KEYS.sizes, "attempt": key, "attempts": KEYS.attempts(task)}
        (data,) = state_pieces.parts(map(_field, PLACES[part], value))
        for _ in range(2):  # a call that is sent again changes nothing
            (status,) = self._call(
                "write_state", named, epoch, turn, task, _spelled(attempt), part, KEEP_MS, 1, 1, data
            )
            assert status == super().write(attempt, part, value)
        return int(status)

    def commit(self, epoch: int, turn: int, named: tuple[Any, ...], parts: tuple[int, ...]) -> int:
        attempts = [KEYS.attempt(attempt[2], _spelled(attempt)) for attempt in named]
        counted = zip(named, parts, strict=True)
        words = [word for attempt, count in counted for word in (attempt[2], _spelled(attempt), count)]
        for _ in range(2):
            keys = {"sizes": KEYS.sizes, "attempt": attempts}
            (status,) = self._call("commit_state", keys, epoch, turn, repr(named), KEYS.topology, *words)
            assert status == super().commit(epoch, turn, named, parts)
        return int(status)

    def close(self, epoch: int, turn: int) -> int:
        for _ in range(2):
            (status,) = self._call("close_state", {}, epoch, turn)
            assert status == super().close(epoch, turn)
        return int(status)

    def fold(self, epoch: int, attempt: Any) -> tuple[int, int]:
        task = attempt[2]
        named = {
            "values": KEYS.values(task),
            "attempt": KEYS.attempt(task, _spelled(attempt)),
            "attempts": KEYS.attempts(task),
        }
        status, left = self._call("fold_state", named, epoch, task, _spelled(attempt))
        assert (status, left) == super().fold(epoch, attempt)
        return status, left

    def expire(self, attempt: Any) -> None:
        key = KEYS.attempt(attempt[2], _spelled(attempt))
        assert self.raw.pttl(key) > 0
        self.raw.unlink(key)
        super().expire(attempt)

    def check_server(self) -> None:
        """Compare the keys of the server with the model's."""
        kept = set()
        for attempt, (_, _, is_kept) in self.attempts.items():
            key = KEYS.attempt(attempt[2], _spelled(attempt))
            kept.add(key.encode())
            assert (self.raw.pttl(key) == -1) == is_kept
        assert set(self.raw.keys("*:state_attempt:*")) == kept
        for task, values in self.base.items():
            fields = dict(_field(place, count) for place, count in enumerate(values) if count)
            assert self.raw.hgetall(KEYS.values(task)) == fields
            assert int(self.raw.hget(KEYS.state, f"pieces:{task}") or 0) == (values[2] != 0)

    def _call(self, name: str, named: dict[str, Any], *arguments: Any) -> list[Any]:
        (reply,) = self.client.run([scripts.load(name).call({"state": KEYS.state, **named}, *arguments)])
        return list(reply)


def _spelled(attempt: Any) -> str:
    epoch, turn, _, copy = attempt
    return f"{epoch}:{turn}:{copy}"


def _field(place: int, count: int) -> tuple[bytes, bytes]:
    return stored(count)[place] if count else (FIELDS[place], b"")
