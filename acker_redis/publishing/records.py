"""Records of a publish log, and their JSON."""

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np

from acker_redis.errors import DamagedDataError
from acker_redis.model.arrays import Int64Array
from acker_redis.store.dead_letter import DeadLetter

FORMAT = 1
"""Version of records and snapshots."""

FILES = "files"
"""Kind of staged rows that are published by moving their files, which needs no Spark."""

_MOST_READABLE = 1000
"""Ranges up to which a record has them as a list."""

Ranges: TypeAlias = Mapping[str, Int64Array]
"""Ranges of numbers, as rows of (first, last), per partition."""


@dataclass(frozen=True)
class Staged:
    """Rows of a sink that wait in a stage.

    Attributes:
        name: name of the sink.
        kind: how they are published: by moving `FILES`, or as a table of a kind that only Spark can write.
        target: where they belong.
        stage: where they wait.
        files: paths of staged files within the stage, and in the target.
        rows: number of rows.
        options: options with which they are published, which have no credentials.
    """

    name: str
    kind: str
    target: str
    stage: str
    files: tuple[str, ...] = ()
    rows: int = 0
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Owner:
    """What a log belongs to.

    Attributes:
        app: name of the app.
        spout_id: owner of the roots.
        ids: columns that name a message.
    """

    app: str
    spout_id: int
    ids: tuple[str, ...]


@dataclass(frozen=True)
class Epoch:
    """A run begins. Runs before it can decide nothing more.

    Attributes:
        run: the run.
        owner: what the log belongs to.
        log_id: id of the log, which its first record gives it: a name for the names of files, and a random text. A log that is
            made anew in the same place has the same name, and another id.
    """

    kind: ClassVar[str] = "epoch"
    run: str
    owner: Owner
    log_id: str


@dataclass(frozen=True)
class Accepted:
    """The rows of some messages belong into the tables.

    Attributes:
        run: run that decides.
        emission: number of its emission.
        messages: the messages.
        staged: their rows, per sink.
    """

    kind: ClassVar[str] = "accepted"
    run: str
    emission: int
    messages: Ranges
    staged: tuple[Staged, ...]


@dataclass(frozen=True)
class Dead:
    """Messages are dead letters.

    Attributes:
        run: run that decides.
        partitions: partition of each letter's message.
        numbers: its number there.
        letters: the letters, as they are to stand in Redis.
    """

    kind: ClassVar[str] = "dead"
    run: str
    partitions: tuple[str, ...]
    numbers: tuple[int, ...]
    letters: tuple[DeadLetter, ...]


@dataclass(frozen=True)
class Reopened:
    """Dead messages run again.

    Attributes:
        run: run that decides.
        messages: the messages.
    """

    kind: ClassVar[str] = "reopened"
    run: str
    messages: Ranges


@dataclass(frozen=True)
class Skipped:
    """Rows of one sink of an earlier record are not published.

    Attributes:
        number: number of that record.
        sink: name of the sink.
    """

    kind: ClassVar[str] = "skipped"
    number: int
    sink: str


@dataclass(frozen=True)
class Published:
    """Everything that the record names is published or stored, and nothing else is decided."""

    kind: ClassVar[str] = "published"


@dataclass(frozen=True)
class Finished:
    """Every message that the source had is accepted or dead."""

    kind: ClassVar[str] = "finished"
    run: str


Decision: TypeAlias = Epoch | Accepted | Dead | Reopened | Skipped | Published | Finished


@dataclass(frozen=True)
class Record:
    """One record of the log.

    Attributes:
        put: text that no other record has, by which a writer knows its own.
        decision: what it decides.
        published: numbers of earlier records of which everything is published, or every letter is stored.
    """

    put: str
    decision: Decision
    published: tuple[int, ...] = field(default=())

    def to_bytes(self) -> bytes:
        """Return the record as JSON."""
        decision = self.decision
        fields: dict[str, Any] = {
            "format": FORMAT, "kind": decision.kind, "put": self.put, "published": list(self.published),
        }  # fmt: skip
        match decision:
            case Epoch(run, owner, log_id):
                fields |= {"run": run, "log_id": log_id} | json_of_owner(owner)
            case Accepted(run, emission, messages, staged):
                fields |= {"run": run, "emission": emission, "messages": _of_ranges(messages)}
                fields["sinks"] = [_of_staged(sink) for sink in staged]
            case Dead(run, partitions, numbers, letters):
                rows = zip(partitions, numbers, map(_of_letter, letters), strict=True)
                fields |= {"run": run, "letters": [list(row) for row in rows]}
            case Reopened(run, messages):
                fields |= {"run": run, "messages": _of_ranges(messages)}
            case Skipped(number, sink):
                fields |= {"number": number, "sink": sink}
            case Finished(run):
                fields["run"] = run
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> Self:
        """Read a record that `to_bytes` wrote.

        Raises:
            DamagedDataError: it is none, or of a later format.
        """
        try:
            fields = json.loads(data)
            if fields["format"] != FORMAT:
                raise ValueError(f"format {fields['format']!r}")
            return cls(fields["put"], _decision_of(fields), tuple(fields["published"]))
        except (ValueError, TypeError, KeyError, AttributeError) as exc:
            raise DamagedDataError(
                f"{name} is no record of a publish log that this version can read ({exc!r}). So it isn't known which rows "
                "belong into the tables. Restore the file, or install the version that wrote it."
            ) from exc


def _decision_of(fields: Mapping[str, Any]) -> Decision:
    match fields["kind"]:
        case Epoch.kind:
            return Epoch(fields["run"], owner_of_json(fields), fields["log_id"])
        case Accepted.kind:
            staged = tuple(Staged(**sink | {"files": tuple(sink["files"])}) for sink in fields["sinks"])
            return Accepted(fields["run"], fields["emission"], _ranges_of(fields["messages"]), staged)
        case Dead.kind:
            partitions, numbers, letters = zip(*fields["letters"], strict=True)
            return Dead(fields["run"], partitions, numbers, tuple(map(_letter_of, letters)))
        case Reopened.kind:
            return Reopened(fields["run"], _ranges_of(fields["messages"]))
        case Skipped.kind:
            return Skipped(fields["number"], fields["sink"])
        case Published.kind:
            return Published()
        case Finished.kind:
            return Finished(fields["run"])
    raise ValueError(f"kind {fields['kind']!r}")


def _of_staged(staged: Staged) -> dict[str, Any]:
    fields = vars(staged) | {"files": list(staged.files), "options": dict(staged.options)}
    if not staged.options:
        del fields["options"]
    return fields


def json_of_owner(owner: Owner) -> dict[str, Any]:
    """Return the fields of an owner."""
    return {"app": owner.app, "spout_id": owner.spout_id, "ids": list(owner.ids)}


def owner_of_json(fields: Mapping[str, Any]) -> Owner:
    """Return the owner that some fields name."""
    return Owner(fields["app"], fields["spout_id"], tuple(fields["ids"]))


def json_of_ranges(ranges: Int64Array) -> object:
    """Return ranges as JSON has them: a list that a person can read if they are few, else packed."""
    if len(ranges) <= _MOST_READABLE:
        return ranges.tolist()
    gaps = np.diff(ranges.reshape(-1), prepend=0).astype("<i8").reshape(-1, 2)
    planes = gaps.view(np.uint8).reshape(-1, 16).T  # equal bytes stand together, so they compress
    return base64.b64encode(zlib.compress(planes.tobytes(), 1)).decode()


def ranges_of_json(value: Any) -> Int64Array:
    """Return the ranges that `json_of_ranges` wrote.

    Raises:
        ValueError: they are damaged.
    """
    if isinstance(value, list):
        return np.array(value, np.int64).reshape(-1, 2)
    try:
        planes = np.frombuffer(zlib.decompress(base64.b64decode(value)), np.uint8)
    except zlib.error as exc:
        raise ValueError(f"damaged ranges: {exc}") from exc
    gaps = np.ascontiguousarray(planes.reshape(16, -1).T).view("<i8")
    return np.cumsum(gaps.reshape(-1), dtype=np.int64).reshape(-1, 2)


def _of_ranges(ranges: Ranges) -> dict[str, object]:
    return {partition: json_of_ranges(part) for partition, part in ranges.items()}


def _ranges_of(values: Mapping[str, Any]) -> Ranges:
    return {partition: ranges_of_json(value) for partition, value in values.items()}


def _of_letter(letter: DeadLetter) -> dict[str, Any]:
    fields = {name: value for name, value in letter._asdict().items() if value != DeadLetter._field_defaults.get(name)}
    if letter.payload is not None:
        fields["payload"] = base64.b64encode(letter.payload).decode()
    return fields


def _letter_of(fields: Mapping[str, Any]) -> DeadLetter:
    payload = fields.get("payload")
    return DeadLetter(**{**fields, "payload": None if payload is None else base64.b64decode(payload)})
