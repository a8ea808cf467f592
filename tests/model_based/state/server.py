"""The scripts of the state as plain Python: what each checks, and what it writes. One call is one step.

A task counts its turns. Its state has two values, which a turn changes together: the count, and a value that has two pieces
after the first turn, one after the second, and that the third one deletes. So a state is three fields, the count and two
pieces, each with the count that wrote it, or 0 if it isn't there. An attempt's key has a part with the count and the first
piece, and one with the second, so a fold takes two calls. `broken` names checks that are left out, so that the tests of the
model can fail.
"""

from typing import Any

OPEN, STALE, LOST, DECIDED, UNFOLDED, EXPIRED = range(6)
EMPTY = (0, 0, 0)
PLACES = ((0, 1), (2,))
"""Fields of the parts of an attempt."""

State = tuple[int, int, int]
Part = tuple[int, ...]


def state_of(count: int) -> State:
    """State of a task after so many turns."""
    return count, count if count % 3 else 0, count if count % 3 == 1 else 0


def parts_of(count: int, broken: frozenset[str] = frozenset()) -> tuple[Part, ...]:
    """Parts of the attempt that leads to this count. A second piece is also written if only the value before had one."""
    first, rest = (tuple(state_of(count)[place] for place in places) for places in PLACES)
    is_cut = rest != (0,) or (state_of(count - 1)[2] != 0 and "pieces" not in broken)
    return (first, rest) if is_cut else (first,)


class ModelServer:
    """State of the server: one map, and base and attempts by task."""

    def __init__(self, broken: frozenset[str] = frozenset()) -> None:
        self.broken = broken
        self.epoch, self.turn, self.decision = 0, 0, None  # type: tuple[int, int, Any]
        self.entries: dict[str, tuple[Any, bool]] = {}
        self.base: dict[str, State] = {}
        self.attempts: dict[Any, tuple[tuple[Part, ...], int, bool]] = {}
        self.undo: tuple[tuple[str, State], ...] = ()

    def copy(self) -> "ModelServer":
        """A server of its own with the same data."""
        copied = ModelServer.__new__(ModelServer)
        copied.__dict__.update(self.__dict__)
        copied.entries, copied.base, copied.attempts = dict(self.entries), dict(self.base), dict(self.attempts)
        return copied

    def key(self) -> tuple[Any, ...]:
        """The data, hashable."""
        parts = (self.entries, self.base, self.attempts)
        return (self.epoch, self.turn, self.decision, self.undo, *(tuple(sorted(part.items())) for part in parts))

    def view(self, task: str) -> State:
        """What counts: the base, and over it the attempt that the map names."""
        state = self.base.get(task, EMPTY)
        for of, old in reversed(self.undo):
            if of == task:
                state = old
        entry = self.entries.get(task)
        if entry is not None and not entry[1]:
            parts, folded, _ = self.attempts.get(entry[0], ((), 0, False))
            for number in range(folded, len(parts)):
                state = _with(state, number, parts[number])
        return state

    # -- scripts

    def open(self) -> int:
        """open_state: raise the epoch."""
        self.epoch, self.turn, self.decision = self.epoch + 1, 0, None
        return self.epoch

    def _status(self, epoch: int, turn: int) -> int:
        if epoch != self.epoch and "epoch" not in self.broken:
            return STALE if epoch < self.epoch else LOST
        if turn <= self.turn and "turn" not in self.broken:
            return DECIDED
        return LOST if turn > self.turn + 1 else OPEN

    def load(self, epoch: int, turn: int, task: str) -> tuple[int, Any]:
        """load_state: the entry of a task. The client deletes attempts of decided turns that it doesn't name."""
        status = self._status(epoch, turn)
        if status != OPEN:
            return status, None
        entry = self.entries.get(task)
        for attempt in list(self.attempts):
            is_named = entry is not None and attempt == entry[0] and "delete" not in self.broken
            if attempt[2] == task and attempt[:2] < (epoch, turn) and not is_named:
                del self.attempts[attempt]
        return OPEN, entry

    def read(self, epoch: int, turn: int, task: str) -> tuple[int, State]:
        """read_state: fields of the base."""
        status = self._status(epoch, turn)
        return status, self.base.get(task, EMPTY) if status == OPEN else EMPTY

    def write(self, attempt: Any, part: int, value: Part) -> int:
        """write_state: a part of an attempt, in order."""
        epoch, turn, task, _ = attempt
        status = self._status(epoch, turn)
        if status != OPEN:
            return status
        if not self.entries.get(task, (None, True))[1]:
            return UNFOLDED
        parts, folded, is_kept = self.attempts.get(attempt, ((), 0, False))
        if part != len(parts):
            return OPEN if part < len(parts) else EXPIRED
        self.attempts[attempt] = ((*parts, value), folded, is_kept)
        if "undo" in self.broken:
            self.undo += ((task, self.base.get(task, EMPTY)),)
            self.put(task, part, value)
        return OPEN

    def commit(self, epoch: int, turn: int, named: tuple[Any, ...], parts: tuple[int, ...]) -> int:
        """commit_state: name the attempts of a turn with their parts, if none was named and the turn isn't closed."""
        if epoch == self.epoch and turn == self.turn:
            return OPEN if self.decision == named else DECIDED
        status = self._status(epoch, turn)
        if status != OPEN:
            return status
        for attempt, count in zip(named, parts, strict=True):
            if not self.entries.get(attempt[2], (None, True))[1]:
                return UNFOLDED
            if len(self.attempts.get(attempt, ((), 0, False))[0]) != count:
                return EXPIRED
        for attempt in named:
            written, folded, _ = self.attempts[attempt]
            self.attempts[attempt] = (written, folded, "persist" not in self.broken)
            self.entries[attempt[2]] = (attempt, "undo" in self.broken)
        self.turn, self.decision, self.undo = turn, named, ()
        return OPEN

    def close(self, epoch: int, turn: int) -> int:
        """close_state: end a turn without a commit. DECIDED: it was committed before."""
        if epoch == self.epoch and turn == self.turn and "close" not in self.broken:
            return OPEN if self.decision == "closed" else DECIDED
        status = self._status(epoch, turn)
        if status != OPEN and "close" not in self.broken:
            return status
        for task, old in reversed(self.undo):
            self.base[task] = old
        self.turn, self.decision, self.undo = turn, "closed", ()
        return OPEN

    def fold(self, epoch: int, attempt: Any) -> tuple[int, int]:
        """fold_state: move one part of the named attempt to the base. Returns how many are left."""
        if epoch != self.epoch and "epoch" not in self.broken:
            return (STALE if epoch < self.epoch else LOST), 0
        task = attempt[2]
        if self.entries.get(task) != (attempt, False):
            return OPEN, 0
        if attempt not in self.attempts:
            return LOST, 0
        parts, folded, is_kept = self.attempts[attempt]
        self.put(task, folded, parts[folded])
        return OPEN, self.moved(attempt, (parts, folded + 1, is_kept))

    def put(self, task: str, number: int, part: Part) -> None:
        """HSET and HDEL of the base, which only a broken client calls itself."""
        self.base[task] = _with(self.base.get(task, EMPTY), number, part)

    def moved(self, attempt: Any, left: tuple[tuple[Part, ...], int, bool]) -> int:
        """Note that a part was moved."""
        self.attempts[attempt] = left
        if left[1] == len(left[0]):
            del self.attempts[attempt]
            self.entries[attempt[2]] = (attempt, True)
        return len(left[0]) - left[1]

    def expire(self, attempt: Any) -> None:
        """Expire an attempt that no commit kept."""
        del self.attempts[attempt]


def _with(state: State, number: int, part: Part) -> State:
    fields = list(state)
    for place, value in zip(PLACES[number], part, strict=True):
        fields[place] = value
    return fields[0], fields[1], fields[2]
