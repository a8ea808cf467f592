"""State of one task as a mapping: read when it is asked for, and kept by the worker while it stays valid."""

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any, Self

from acker_redis.store.topology_state import Attempt, StateTurn
from acker_redis.storm.state.codec import (
    PLAIN,
    TupleTooLongError,
    decode_value,
    encode_key,
    encode_value,
    key_of,
    with_key,
)
from acker_redis.storm.state.held import HeldTuples

MISSES = 100
"""Fields that a turn reads one by one, before it reads all, if there are less than a hundred times as many."""

KEPT_BYTES = 128 << 20
"""Bytes that a worker keeps of a task over turns, about, and of all tasks that it doesn't run now."""

_BYTES_PER_KEY = 200
"""Bytes of a key, and of the objects that hold it and its value."""

_GONE: Any = object()


class TaskState(MutableMapping[Any, Any]):
    """State of one task, as a bolt sees it.

    A worker keeps the serialised values from turn to turn. They are valid while the last commit of this task named the attempt
    that they stem from. Values that were read or set are serialised at the end of the turn, and written if they changed.

    Attributes:
        error: error of the server in this execution, which must end it. A bolt's failures are those of its tuples, and this
            isn't one.
        is_continued: True if nothing has changed the state since this object's last execution.
    """

    error: Exception | None = None
    is_continued = False

    def __init__(self, component: str, task: str, held: HeldTuples | None = None, title: str | None = None) -> None:
        """Name the task. It has no values before `begin`.

        Args:
            component: name of the bolt.
            task: component and index, as `StateKeys.task` spells them.
            held: tuples of the task; None if values have none.
            title: what errors call each value; None: by its key.
        """
        self._component, self._task, self._held, self._title = component, task, held, title
        self._turn: StateTurn
        self._source: str | None = None
        self._stored: dict[Any, bytes] = {}
        self._bytes, self._is_whole, self._misses = 0, False, 0
        self._live: dict[Any, Any] = {}
        self._set: set[Any] = set()
        self._resized = 0

    # -- turns

    def begin(self, turn: StateTurn) -> None:
        """Begin an execution in a turn: fold what is committed, and drop what is no longer valid.

        Raises:
            TurnOverError: the turn is over, or a newer run has begun.
            StateLostError: the server lost writes of the state.
        """
        valid, self._source = self._source, None  # an execution that breaks off leaves nothing valid
        self.error = None
        self._turn, self._base = turn, turn.load(self._task)
        self.is_continued = self._base == valid
        if not self.is_continued:
            self._forget()
        self._live, self._set, self._misses = {}, set(), 0

    def end(self, name: str) -> Attempt | None:
        """End an execution: write what changed. Returns the attempt; None if nothing changed, or a held tuple is too long.

        Args:
            name: name of the execution, which no other has.

        Raises:
            InvalidTopologyError: a value can't be kept.
            TurnOverError: the turn is over, or a newer run has begun.
            StateLimitError: the state would exceed the app's limit.
            StateLostError: the server lost writes of the state.
        """
        changes: dict[bytes, bytes] = {}
        known: dict[bytes, int] = {}
        too_long: dict[int, str] = {}
        for key, value in self._live.items():
            if value is _GONE:
                data = b""
            elif type(value) in PLAIN and key not in self._set:
                continue  # it was only read
            else:
                try:
                    data = with_key(encode_value(value, self._title or key, self._component, self._held), key)
                except TupleTooLongError as exc:
                    too_long |= dict.fromkeys(exc.roots, str(exc))
                    continue
            before = self._stored.get(key, b"" if self._is_whole else None)
            if data != before:
                field = encode_key(key)
                changes[field] = data
                if before is not None:
                    known[field] = len(before)
                self._keep(key, data)
        self._live, self._set = {}, set()
        if self._held is not None and too_long:
            self._held.too_long |= too_long
            return None
        attempt = self._turn.write(self._task, name, changes, known) if changes else None
        if self._bytes > KEPT_BYTES:
            self._forget()
        self._source = self._base if attempt is None else attempt.attempt_id
        return attempt

    @property
    def is_changed(self) -> bool:
        """Whether this execution has set or deleted a value, or may have changed one in place."""
        return any(key in self._set or value is _GONE or type(value) not in PLAIN for key, value in self._live.items())

    @property
    def kept_bytes(self) -> int:
        """Bytes of the copy that this worker keeps, about."""
        return self._bytes

    def forget(self) -> None:
        """Drop the copy. The next execution reads what it needs."""
        self._source = None
        self._forget()

    def read_values(self) -> Iterator[tuple[Any, Any]]:
        """Yield all keys and values of the last committed turn. Values that change in place aren't written."""
        self._read_all()
        for key, data in list(self._stored.items()):
            if data:
                yield key, decode_value(data, self._held)

    def discard(self, key: Any) -> None:
        """Delete a value, without reading it."""
        self._live[key] = _GONE

    def _forget(self) -> None:
        self._stored, self._bytes, self._is_whole = {}, 0, False

    def _keep(self, key: Any, data: bytes) -> None:
        before = self._stored.get(key)
        if not data and self._is_whole:
            if before is not None:
                self._bytes -= len(before) + _BYTES_PER_KEY
                del self._stored[key]
            return
        self._bytes += len(data) + _BYTES_PER_KEY if before is None else len(data) - len(before)
        self._stored[key] = data

    # -- the mapping

    def __getitem__(self, key: Any) -> Any:
        """Return a value. A value that changes in place is written at the end of the turn."""
        value = self._live.get(key)
        if value is None and key not in self._live:
            data = self._data(key)
            if not data:
                raise KeyError(key)
            value = self._live[key] = decode_value(data, self._held)
        if value is _GONE:
            raise KeyError(key)
        return value

    def get(self, key: Any, default: Any = None) -> Any:
        """Return a value, or the default if there is none."""
        value = self._live.get(key)
        if value is None or value is _GONE:
            try:
                return self[key]
            except KeyError:
                return default
        return value

    def __setitem__(self, key: Any, value: Any) -> None:
        """Set a value. It counts once the turn is committed.

        Raises:
            TypeError: the key is neither a text, a number, bytes, None, nor a tuple of these.
        """
        if key not in self._live:
            if key not in self._stored:
                encode_key(key)
            self._resized += not self._stored.get(key)
        elif self._live[key] is _GONE:
            self._resized += 1
        self._live[key] = value
        self._set.add(key)

    def __delitem__(self, key: Any) -> None:
        """Delete a value."""
        if key not in self:
            raise KeyError(key)
        self._live[key] = _GONE
        self._resized += 1

    def __contains__(self, key: object) -> bool:
        """Return True if there is a value."""
        if key in self._live:
            return self._live[key] is not _GONE
        return bool(self._data(key))

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the keys, in no order. Reads all of the state.

        Raises:
            RuntimeError: keys were added or deleted meanwhile. A dict raises it, too.
        """
        keys, resized = self._keys(), self._resized
        for key in keys:
            yield key
            if self._resized != resized:
                raise RuntimeError(
                    "The state changed its size while it was iterated over. Iterate over list(self.state)."
                )

    def __len__(self) -> int:
        """Count the keys. Reads all of the state."""
        return len(self._keys())

    def __or__(self, other: Mapping[Any, Any]) -> dict[Any, Any]:
        """Return a dict of the values of both."""
        return self.copy() | dict(other) if isinstance(other, Mapping) else NotImplemented

    def __ror__(self, other: Mapping[Any, Any]) -> dict[Any, Any]:
        """Return a dict of the values of both."""
        return dict(other) | self.copy() if isinstance(other, Mapping) else NotImplemented

    def __ior__(self, other: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> Self:
        """Set the values of another mapping."""
        self.update(other)
        return self

    def clear(self) -> None:
        """Delete all values."""
        for key in self._keys():
            self._live[key] = _GONE
        self._resized += 1

    def copy(self) -> dict[Any, Any]:
        """Return a dict of all values. Reads all of the state."""
        return {key: self[key] for key in self._keys()}

    def __reduce__(self) -> tuple[Any, ...]:
        """Become a dict where it is copied or pickled, such as in an emit."""
        return dict, (self.copy(),)

    def __repr__(self) -> str:
        return f"<state of {self._task}>"

    def _keys(self) -> list[Any]:
        self._read_all()
        keys = [key for key, data in self._stored.items() if data and self._live.get(key) is not _GONE]
        return keys + [key for key, value in self._live.items() if not self._stored.get(key) and value is not _GONE]

    def _data(self, key: Any) -> bytes:
        """Return a serialised value; empty if there is none."""
        data = self._stored.get(key)
        if data is not None or self._is_whole:
            return data or b""
        field = encode_key(key)
        self._misses += 1
        with self._asking():
            if self._misses % MISSES == 0 and self._turn.count(self._task) <= self._misses * MISSES:
                self._read_all()
                return self._stored.get(key, b"")
            (found,) = self._turn.read(self._task, [field])
        self._keep(key, found)
        return found

    def _read_all(self) -> None:
        if self._is_whole:
            return
        with self._asking():
            for part in self._turn.read_all(self._task):
                for field, data in part.items():
                    self._keep(key_of(field, data), data)
        self._is_whole = True

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Note an error of the server, because the bolt, or who called it, may catch it."""
        try:
            yield
        except Exception as exc:
            self.error = exc
            raise
