"""State of a topology's bolts: a redo log per attempt of a task, a commit per turn, and folding.

An attempt of a task writes its changes under a key of its own. Nothing counts until the turn's commit names the attempt.
Committed changes move to the task's values later, part by part. A turn is committed or closed once. Each run has an epoch.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from hashlib import blake2b
from typing import Any, NamedTuple

from acker_redis.client import scripts, server_info
from acker_redis.client.client import Client
from acker_redis.client.replies import as_dict
from acker_redis.client.scripts import Call
from acker_redis.errors import StateLimitError, StateLostError, TurnOverError
from acker_redis.model.keys import StateKeys
from acker_redis.store import state_pieces

MAX_VALUE_BYTES = 1 << 20
"""Longest serialised value."""

MAX_FIELD_BYTES = 1 << 16
"""Longest serialised key."""

MAX_TASKS = 250
"""Most tasks with state in a topology, because one script names the attempts of all."""

_FOLDED = 8
"""Parts that are folded in one pipeline, which the server runs without serving others."""

_SCANNED = 10
"""Fields of the first step of a scan, before the size of values is known. Each other step has at most twice as many."""

_KEEP_MS = 24 * 3600 * 1000
"""Time until an attempt expires that no commit names."""

_SHAPE, _TASK, _PIECES = "shape:", "task:", "pieces:"
"""Prefixes of the fields with shapes, and with attempt and number of pieces of each task; lua/scripts/ spells them, too."""

_WAYS_ON = "Run again to go on with what is there, or start without state: `acker-redis topology empty-state`."


class Status(IntEnum):
    """Answer to a call of a script of the state.

    Attributes:
        OPEN: the call did its work.
        STALE: a newer run of the topology has begun.
        LOST: the server lost its last writes.
        DECIDED: the turn was committed or closed before.
        UNFOLDED: an earlier attempt of the task is not folded yet.
        EXPIRED: a part of the attempt is gone.
        FULL: the state would exceed the app's limit.
    """

    OPEN = 0
    STALE = 1
    LOST = 2
    DECIDED = 3
    UNFOLDED = 4
    EXPIRED = 5
    FULL = 6


class Attempt(NamedTuple):
    """Changes that an execution of a task has written.

    Attributes:
        task: component and index, as `StateKeys.task` spells them.
        attempt_id: id of the attempt: epoch, turn, and a name of the execution.
        parts: number of its parts.
    """

    task: str
    attempt_id: str
    parts: int


class Emptied(NamedTuple):
    """State that was deleted.

    Attributes:
        keys: number of keys.
        bytes: bytes of keys and values.
    """

    keys: int
    bytes: int


class TopologyState:
    """State of one topology."""

    def __init__(self, client: Client, app: str, topology: str) -> None:
        """Name a topology, without opening its state."""
        self._client = client
        self._keys = StateKeys(app, topology)
        self._topology = topology

    def open(self, shapes: Mapping[str, str]) -> tuple[int, tuple[str, str] | None]:
        """Begin a run: raise the epoch. Call `end` behind its last write.

        Args:
            shapes: bolt with state -> number of tasks, groupings and formula, in any spelling.

        Returns:
            The new epoch and None, or 0 with a bolt whose state has another shape, and that shape. Nothing was changed then.

        Raises:
            StateLostError: writes of the run before are lost, or may be. The next call accepts what is there.
        """
        script = scripts.load("open_state")
        words = [word for pair in sorted(shapes.items()) for word in pair]
        server = self._client.ask(server_info.process_of, self._keys.state)
        ((status, epoch, *other),) = self._client.run([script.call({"state": self._keys.state}, server, *words)])
        if status == script.codes["OTHER_SHAPE"]:
            component, shape = other
            return 0, (component.decode(), shape.decode())
        lost = self._check_tasks(int(epoch))
        if status == script.codes["SUSPECT"]:
            ended, turn = map(int, other)
            lost.append(
                f"the last run (epoch {ended}) didn't end, and the server was restarted or replaced since its turn {turn}"
            )
        if lost:
            self.end(int(epoch), 0)
            raise StateLostError(
                f"The state of topology {self._topology!r} may lack its last turns: {'; '.join(lost)}. {_WAYS_ON}"
            )
        return int(epoch), None

    def fold(self, epoch: int) -> None:
        """Move what is committed of all tasks to their values.

        Raises:
            TurnOverError: a newer run has begun.
            StateLostError: the server lost writes of the state.
        """
        turn, fields = self.turn(epoch, 0), self._fields()
        for task in _tasks_in(fields):
            entry = fields[_TASK + task]
            for _ in turn.fold(task, entry[1:]) if entry.startswith("u") else ():
                pass

    def end(self, epoch: int, turn: int) -> None:
        """End a run: its last write.

        Args:
            epoch: epoch of the run.
            turn: last turn that it has decided.

        Raises:
            TurnOverError: a newer run has begun.
            StateLostError: the server lost the last turns.
        """
        call = scripts.load("end_state").call({"state": self._keys.state}, epoch, turn)
        ((status,),) = self._client.run([call])
        check(status, self._topology, turn)

    def empty(self) -> Emptied:
        """Delete all state, in one step. Returns its size. A run that is under way is over then.

        Raises:
            TurnOverError: a run has begun meanwhile.
        """
        keys, fields = self._keys, self._fields()
        tasks = _tasks_in(fields)
        if "epoch" not in fields:
            return Emptied(0, 0)
        asked = [("HLEN", keys.values(task)) for task in tasks]
        replies = self._client.pipeline([*asked, *(("HGET", keys.sizes, f"{keys.topology}:{task}") for task in tasks)])
        counts, sizes = replies[: len(tasks)], replies[len(tasks) :]
        self._delete("empty_state", (fields["epoch"], keys.topology), tasks, fields)
        pieces = sum(int(fields.get(_PIECES + task, 0)) for task in tasks)
        return Emptied(max(0, sum(counts) - pieces), sum(int(size or 0) for size in sizes))

    def forget_tasks(self, epoch: int, is_over: Callable[[str], bool], bolt: str = "") -> None:
        """Delete what is kept of tasks that no run needs any more, in one step.

        Args:
            epoch: epoch of the run.
            is_over: function that tells this of a task.
            bolt: name of a bolt whose shape is deleted, too, because all its tasks are.

        Raises:
            TurnOverError: a newer run has begun. Nothing was deleted.
            StateLostError: the server lost writes of the state.
        """
        fields = self._fields()
        tasks = list(filter(is_over, _tasks_in(fields)))
        if tasks or bolt:
            self._delete("forget_state", (epoch, self._keys.topology, bolt), tasks, fields)

    def _delete(self, script: str, words: Sequence[str | int], tasks: Sequence[str], fields: Mapping[str, str]) -> None:
        keys = self._keys
        ids = self._client.pipeline([("SMEMBERS", keys.attempts(task)) for task in tasks])
        attempts = {
            keys.attempt(task, attempt_id)
            for task, written in zip(tasks, ids, strict=True)
            for attempt_id in (fields[_TASK + task][1:], *map(bytes.decode, written))
        }
        named: dict[str, str | Sequence[str]] = {
            "state": keys.state, "sizes": keys.sizes, "values": [keys.values(task) for task in tasks],
            "attempts": [keys.attempts(task) for task in tasks], "attempt": sorted(attempts),
        }  # fmt: skip
        call = scripts.load(script).call(named, *words, *tasks)
        ((status,),) = self._client.run([call])
        check(status, self._topology, 0)

    def tasks(self) -> list[str]:
        """List the tasks that have written state."""
        return _tasks_in(self._fields())

    def shapes(self) -> dict[str, str]:
        """Read the shape of the state of each bolt."""
        fields = self._fields()
        return {name.removeprefix(_SHAPE): shape for name, shape in fields.items() if name.startswith(_SHAPE)}

    def set_shape(self, component: str, shape: str) -> None:
        """Replace the shape of a bolt's state, in place of the one that is stored."""
        self._client.pipeline([("HSET", self._keys.state, _SHAPE + component, shape)])

    def turn(self, epoch: int, number: int) -> "StateTurn":
        """Name a turn of a run."""
        return StateTurn(self._client, self._keys, self._topology, epoch, number)

    def _check_tasks(self, epoch: int) -> list[str]:
        """Compare the values of each task with what its last fold left. Returns what is missing."""
        keys = self._keys
        calls, fields = [], self._fields()
        tasks = _tasks_in(fields)
        for task in tasks:
            attempt_id = fields[_TASK + task][1:]
            named = {
                "state": keys.state, "sizes": keys.sizes, "values": keys.values(task),
                "attempt": keys.attempt(task, attempt_id),
            }  # fmt: skip
            calls.append(scripts.load("check_state").call(named, epoch, keys.topology, task, attempt_id))
        lost = []
        for task, (status, count, found) in zip(tasks, self._client.run(calls) if calls else (), strict=True):
            if status == Status.LOST:
                what = f"{count - found:,} of {count:,} fields" if count != found else "the last changes"
                lost.append(f"{what} of task {task} are gone")
        return lost

    def _fields(self) -> dict[str, str]:
        ((found),) = self._client.pipeline([("HGETALL", self._keys.state)])
        return {name.decode(): value.decode() for name, value in as_dict(found).items()}


class StateTurn:
    """State of a topology in one turn of a run.

    Guarantee: of each turn at most one attempt per task counts, and none after `close` returned True.

    Attributes:
        epoch: epoch of the run.
        number: number of the turn.
    """

    def __init__(self, client: Client, keys: StateKeys, topology: str, epoch: int, number: int) -> None:
        self._client, self._keys, self._topology = client, keys, topology
        self.epoch, self.number = epoch, number

    def load(self, task: str) -> str:
        """Fold what is committed of a task, and delete attempts that no commit has named.

        Returns:
            Id of the attempt that the state stems from. Empty before the first.

        Raises:
            TurnOverError: the turn is over, or the run is.
            StateLostError: the server lost writes of the state.
        """
        named = {"state": self._keys.state, "attempts": self._keys.attempts(task)}
        call = scripts.load("load_state").call(named, self.epoch, self.number, task)
        ((status, entry, *ids),) = self._client.run([call])
        self._check(status)
        entry, attempt_id = entry[:1], entry[1:].decode()
        self._delete(task, [one for one in map(bytes.decode, ids) if one != attempt_id and self._is_over(one)])
        if entry == b"u":
            for _ in self.fold(task, attempt_id):
                pass
        return str(attempt_id)

    def fold(self, task: str, attempt_id: str) -> Iterator[int]:
        """Move the attempt that is named for a task to its values. Yields the number of parts that are left after each call.

        Raises:
            TurnOverError: the run is over.
            StateLostError: the server lost writes of the state.
        """
        named = {
            "state": self._keys.state,
            "values": self._keys.values(task),
            "attempt": self._keys.attempt(task, attempt_id),
            "attempts": self._keys.attempts(task),
        }
        call = scripts.load("fold_state").call(named, self.epoch, task, attempt_id)
        left = 1
        while left:
            for status, count in self._client.run([call] * min(left, _FOLDED)):
                self._check(status)
                left = count
                yield left

    def read(self, task: str, fields: Sequence[bytes]) -> list[bytes]:
        """Read fields of a task's values, in order. A field that isn't there is empty.

        Raises:
            TurnOverError: the turn is over, or the run is.
            StateLostError: the server lost writes of the state.
        """
        found = self._read(task, fields)
        for at, (field, value) in enumerate(zip(fields, found, strict=True)):
            if state_pieces.is_long(value):
                found[at] = state_pieces.joined(value, self._read(task, state_pieces.others(field, value)))
        return found

    def _read(self, task: str, fields: Sequence[bytes]) -> list[bytes]:
        """Read fields as they are stored, without the other pieces of longer values."""
        named = {"state": self._keys.state, "values": self._keys.values(task)}
        found: list[bytes] = []
        while len(found) < len(fields):
            part = fields[len(found) : len(found) + state_pieces.MAX_FIELDS]
            call = scripts.load("read_state").call(named, self.epoch, self.number, state_pieces.PART_BYTES, *part)
            ((status, *values),) = self._client.run([call])
            self._check(status)
            found += values
        return found

    def count(self, task: str) -> int:
        """Count the fields of a task's values."""
        ((length),) = self._client.pipeline([("HLEN", self._keys.values(task))])
        return int(length)

    def read_all(self, task: str) -> Iterator[dict[bytes, bytes]]:
        """Read all fields of a task's values, in parts of about equal size.

        Raises:
            TurnOverError: the turn is over, or the run is. The parts before may be of a later turn.
            StateLostError: the server lost writes of the state.
        """
        yield from state_pieces.whole(self._scan(task))
        self.read(task, [b""])  # nothing was folded meanwhile, if the turn is still open

    def _scan(self, task: str) -> Iterator[dict[bytes, bytes]]:
        key, cursor, count = self._keys.values(task), 0, _SCANNED
        while True:
            ((found, pairs),) = self._client.pipeline([("HSCAN", key, cursor, "COUNT", count)])
            part = dict(pairs) if isinstance(pairs, dict) else dict(zip(pairs[::2], pairs[1::2], strict=True))
            yield part
            cursor = int(found)
            if cursor == 0:
                break
            size = sum(map(len, part.values())) // max(1, len(part))
            count = max(1, min(2 * count, state_pieces.MAX_FIELDS, state_pieces.PART_BYTES // max(1, size)))

    def write(
        self,
        task: str,
        name: str,
        changes: Mapping[bytes, bytes],
        known: Mapping[bytes, int] | None = None,
        *,
        is_move: bool = False,
    ) -> Attempt:
        """Write the changes of an execution. They don't count yet.

        Args:
            task: the task, which was loaded.
            name: name of the execution, which no other has.
            changes: field -> its new value; empty if it is deleted.
            known: field -> length of its value until now, 0 if there is none. The server is asked for the others.
            is_move: True if other tasks of the turn shrink by as much. Then only the commit checks the app's limit.

        Raises:
            TurnOverError: the turn is over, or the run is.
            StateLimitError: the state would exceed the app's limit.
            StateLostError: the server lost writes of the state, or the attempt took so long that it expired.
        """
        attempt_id = f"{self.epoch}:{self.number}:{name}"
        named = {
            "state": self._keys.state,
            "sizes": self._keys.sizes,
            "attempt": self._keys.attempt(task, attempt_id),
            "attempts": self._keys.attempts(task),
        }
        lengths = self._lengths(task, changes, known or {})
        growth = sum(
            (len(field) + len(value) if value else 0) - (len(field) + lengths[field] if lengths[field] else 0)
            for field, value in changes.items()
        )
        script, parts = scripts.load("write_state"), 0
        calls: list[Call] = []
        cut = (piece for field, value in changes.items() for piece in state_pieces.cut(field, value, lengths[field]))
        for part in state_pieces.parts(cut):
            words = (task, attempt_id, parts, _KEEP_MS, growth, int(not is_move), part)
            calls.append(script.call(named, self.epoch, self.number, *words))
            parts += 1
            if len(calls) == state_pieces.MAX_FIELDS:
                self._run(calls)
                calls = []
        self._run(calls)
        return Attempt(task, attempt_id, parts)

    def check_limit(self, attempts: Sequence[Attempt]) -> None:
        """Check that the growth of these attempts together is within the app's limit. The commit checks it again.

        Raises:
            StateLimitError: it isn't.
        """
        asked = [("HGET", self._keys.sizes, "limit"), ("HGET", self._keys.sizes, "total")]
        asked += [("HGET", self._keys.attempt(task, attempt_id), "growth") for task, attempt_id, _ in attempts]
        limit, total, *growths = self._client.pipeline(asked)
        growth = sum(int(one or 0) for one in growths)
        if limit is not None and growth > 0 and int(total or 0) + growth > int(limit):
            self._check(Status.FULL)

    def commit(self, attempts: Iterable[Attempt]) -> Status:
        """Make the changes of these attempts those of the turn. OPEN: they are; a repeat with the same attempts is, too."""
        named = sorted(attempts)
        keys = {
            "state": self._keys.state,
            "sizes": self._keys.sizes,
            "attempt": [self._keys.attempt(task, attempt_id) for task, attempt_id, _ in named],
        }
        digest = blake2b(repr(named).encode(), digest_size=16).hexdigest()
        words = [word for attempt in named for word in attempt]
        call = scripts.load("commit_state").call(keys, self.epoch, self.number, digest, self._keys.topology, *words)
        ((status,),) = self._client.run([call])
        return Status(status)

    def close(self) -> bool:
        """End the turn without a commit. Returns True if it is closed, and False if it was committed before.

        Raises:
            TurnOverError: the run is over.
            StateLostError: the server lost writes of the state.
        """
        call = scripts.load("close_state").call({"state": self._keys.state}, self.epoch, self.number)
        ((status,),) = self._client.run([call])
        if status != Status.DECIDED:
            self._check(status)
        return bool(status == Status.OPEN)

    def _check(self, status: int) -> None:
        check(status, self._topology, self.number)

    def _lengths(self, task: str, fields: Iterable[bytes], known: Mapping[bytes, int]) -> dict[bytes, int]:
        """Find the lengths of values, which don't change while the turn is open.

        A value that lacks a piece counts as missing, but its other pieces have to go.
        """
        lengths, unknown = dict(known), [field for field in fields if not known.get(field)]
        for at in range(0, len(unknown), state_pieces.MAX_FIELDS):
            part = unknown[at : at + state_pieces.MAX_FIELDS]
            asked = self._client.pipeline([("HSTRLEN", self._keys.values(task), field) for field in part])
            lengths.update(zip(part, asked, strict=True))
        cut = [field for field in unknown if lengths[field] > state_pieces.PIECE_BYTES]
        lengths.update(zip(cut, map(state_pieces.length_of, self._read(task, cut)), strict=True))
        return lengths

    def _is_over(self, attempt_id: str) -> bool:
        epoch, turn = map(int, attempt_id.split(":")[:2])
        return (epoch, turn) < (self.epoch, self.number)

    def _delete(self, task: str, ids: Sequence[str]) -> None:
        if ids:
            commands: list[Any] = [("DEL", self._keys.attempt(task, one)) for one in ids]
            self._client.pipeline([*commands, ("SREM", self._keys.attempts(task), *ids)])

    def _run(self, calls: Sequence[Call]) -> None:
        replies = self._client.run(calls) if calls else []
        if any(status == Status.EXPIRED for (status,) in replies):
            # Another client loaded the script between two calls, and the first one was sent again behind the others. Parts
            # that are there stay as they are.
            replies = self._client.run(calls)
        for (status,) in replies:
            self._check(status)


def check(status: int, topology: str, number: int) -> None:
    """Raise the error of a status that isn't OPEN.

    Raises:
        TurnOverError: the turn is over, or the run is.
        StateLimitError: the state would exceed the app's limit.
        StateLostError: the server lost writes of the state.
    """
    if status == Status.STALE:
        raise TurnOverError(
            f"A newer run of topology {topology!r} has begun, so this run may not change its state any more. Run a "
            "topology with state once at a time."
        )
    if status == Status.DECIDED:
        raise TurnOverError(
            f"Turn {number} of topology {topology!r} is over, so a task that comes late may not change its "
            "state. Nothing was changed."
        )
    if status == Status.FULL:
        raise StateLimitError(
            f"Turn {number} of topology {topology!r} would let the app's state exceed its limit, so nothing was changed. "
            "Raise the limit with `acker-redis limit --max-state-bytes`, or let bolts delete keys that they no longer need."
        )
    if status != Status.OPEN:
        raise StateLostError(
            f"The server lost writes of the state of topology {topology!r} (turn {number}: "
            f"{Status(status).name}), by a failover, an eviction or a deletion. The state may lack the last turns. {_WAYS_ON}"
        )


def _tasks_in(fields: Mapping[str, str]) -> list[str]:
    return sorted(name.removeprefix(_TASK) for name in fields if name.startswith(_TASK))
