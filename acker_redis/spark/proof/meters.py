"""Meters: sums that Spark computes while rows pass.

Meters are CollectMetrics nodes, found by name. Their results are numbers and texts, read by name: Spark Connect 4.0 can't send
arrays, and sends the values in another order. In a classic session the results of all meters of an execution are read as one
text, in one call of Java. Numbers stand in it by themselves. Texts are part of JSON, for which Spark needs longer. The name of
a meter isn't part of its expressions, which thus are the same in each emission.

Two threads of a server of Spark Connect evaluate the sums of an execution at the same time, with the same objects. So what
stands outside of an aggregate has no state there: no JSON, and no lambda. Spark 4.0 has one row for the results of both, so
sums may be wrong. A wrong sum of shares proves nothing, and lists are compared with their counts.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from acker_redis.spark.protocol.columns import CHILDLESS, FAILED, FAILURE, OUT, ROOTS, SHARE, STAYS
from acker_redis.spark.protocol.shares import LOW_BITS, from_halves
from acker_redis.spark.runtime import frames
from acker_redis.spark.runtime.sessions import is_connect
from acker_redis.spark.worker.failures import Failure, Reason, read_failure

PREFIX = "acker:"
"""Prefix of all meter names."""

OF_CACHE = "#cache"
"""End of the names of meters of rows that a sink caches."""

Metrics = Mapping[str, Mapping[str, Any]]
"""Name of a meter -> name of a sum -> its value. A meter whose sums are unknown is missing."""

_NUMBERS = ("low", "high", "rows", "least", "greatest")
"""Names of the sums of a meter that has only numbers, in the order in which a classic session gets them."""

_BEGIN, _END = "\x02", "\x03"
"""Characters around the sums of a meter that has texts, too. They are JSON, which escapes both."""

_ALL = (1 << 31) - 1
"""Length of the longest array."""

OTHER_TEXTS = "one of very many reasons in one emission"

MOST_FAILURE_BYTES = 64 << 20
"""Size of the failures that a step in Python may report in one execution, in bytes. It limits each task, but not their number.

Spark makes one text of the meters of an execution, and no text of Java's has more than 2 GiB.
"""

MOST_FAILED_ROOTS = 1_000_000
"""Number of roots of failed rows that a meter of SQL reports in one execution. Each takes up to 42 bytes."""


class Counted(NamedTuple):
    """Rows that a meter has counted.

    Attributes:
        shares: sum of their shares.
        rows: number of rows.
    """

    shares: int
    rows: int


class Processed(NamedTuple):
    """Rows that a step in Python has processed without failing.

    Attributes:
        rows: number of rows that it returned or dropped.
        roots: the least and the greatest root of these rows. Empty if there are none, or if they are unknown.
    """

    rows: int = 0
    roots: frozenset[int] = frozenset()


class Removed(NamedTuple):
    """Rows that an operator has removed, and rows that it has processed.

    Attributes:
        dropped: rows without children.
        failed: rows that failed.
        failures: the messages of the failed rows, and the reasons.
        processed: rows processed without failing.
    """

    dropped: Counted
    failed: Counted
    failures: list[Failure]
    processed: Processed


def meter_all(frame: DataFrame, meter: str, rows: str = "1") -> DataFrame:
    """Meter all rows. `rows` is SQL for the number of rows that a row represents."""
    return _observed(frame, meter, {**_sums(SHARE), "rows": f"sum({rows})"})


def read_counted(metrics: Metrics, meter: str) -> Counted:
    """Read the result of `meter_all`."""
    return _counted(metrics[meter])


class Source(NamedTuple):
    """Messages that a meter has counted at their source.

    Attributes:
        shares: sum of their shares.
        rows: number of rows.
        least: least message id; None if there is none.
        greatest: greatest message id; None if there is none.
    """

    shares: int
    rows: int
    least: int | None
    greatest: int | None


def meter_source(frame: DataFrame, meter: str, message: str) -> DataFrame:
    """Meter messages at their source. `message` is SQL for the message id."""
    sums = {**_sums(SHARE), "rows": "count(1)", "least": f"min({message})", "greatest": f"max({message})"}
    return _observed(frame, meter, sums)


def read_source(metrics: Metrics, meter: str) -> Source:
    """Read the result of `meter_source`."""
    sums = metrics[meter]
    return Source(*_counted(sums), sums["least"], sums["greatest"])


class Staged(NamedTuple):
    """Rows that a meter has counted behind a filter that leaves out failed messages.

    Attributes:
        rows: number of rows.
        others: number of those that don't belong to exactly one message.
    """

    rows: int
    others: int


def meter_staged(frame: DataFrame, meter: str) -> DataFrame:
    """Meter the rows of messages that haven't failed. Their shares aren't added up."""
    return _observed(frame, meter, {"rows": "count(1)", "others": f"count_if(coalesce(size({ROOTS}), 0) <> 1)"})


def read_staged(metrics: Metrics, meter: str) -> Staged:
    """Read the result of `meter_staged`."""
    return Staged(metrics[meter]["rows"], metrics[meter]["others"])


ReadRemoved: TypeAlias = Callable[[Metrics, str, str], Removed | None]
"""Reads the rows that an operator has removed, from the metrics, the name of the meter, and that of the operator.

It returns None if the sums contradict each other, so that they are as good as unknown.
"""


def meter_removed(frame: DataFrame, is_removed: str, meter: str, rows: str = "1", share: str = SHARE) -> DataFrame:
    """Meter the rows that are to be removed, without removing them.

    Args:
        frame: the rows.
        is_removed: SQL condition of the rows to meter.
        meter: name of the meter.
        rows: SQL for the number of rows that a row represents.
        share: SQL for the share of a row to meter.
    """
    return _observed(
        frame, meter, {**_sums(f"IF({is_removed}, {share}, NULL)"), "rows": f"sum(IF({is_removed}, {rows}, NULL))"}
    )


def read_removed(metrics: Metrics, meter: str, operator: str) -> Removed:  # noqa: ARG001
    """Read the result of `meter_removed`."""
    return Removed(_counted(metrics[meter]), Counted(0, 0), [], Processed())


def meter_removed_in_python(
    frame: DataFrame, meter: str, rows: str, stays: str = "1", root: str = "cast(NULL AS bigint)"
) -> DataFrame:
    """Meter the rows that represent removed rows of a step in Python, without dropping them.

    `OUT` says which rows these are.

    Args:
        frame: rows with a column `OUT`.
        meter: name of the meter.
        rows: SQL for the number of removed rows that such a row represents.
        stays: SQL for the number of rows that any other row represents.
        root: SQL for the root of any other row.
    """
    dropped, failed, other = f"{OUT} = {CHILDLESS}", f"{OUT} = {FAILED}", f"{OUT} = {STAYS}"
    sums = {
        **_sums(f"IF({dropped}, {SHARE}, NULL)"),
        "rows": f"sum(IF({dropped}, {rows}, NULL))",
        **_sums(f"IF({failed}, {SHARE}, NULL)", "failed_"),
        "failed_rows": f"sum(IF({failed}, {rows}, NULL))",
        "failures": _joined(
            f"IF({failed}, {FAILURE}, NULL)", f"IF({failed}, octet_length({FAILURE}), NULL)", MOST_FAILURE_BYTES
        ),
        "stayed": f"sum(IF({other}, {stays}, NULL))",
        "first_root": f"min(IF({other}, {root}, NULL))",
        "last_root": f"max(IF({other}, {root}, NULL))",
    }
    return _observed(frame, meter, sums)


def read_removed_in_python(metrics: Metrics, meter: str, operator: str) -> Removed | None:
    """Read the result of `meter_removed_in_python`; None: its sums contradict each other."""
    sums = metrics[meter]
    dropped = _counted(sums)
    # The roots of dropped rows are unknown.
    roots = [root for root in (sums["first_root"], sums["last_root"]) if root is not None and not dropped.rows]
    failed = _counted(sums, "failed_")
    try:
        failures = [read_failure(operator, failure) for failure in json.loads(f"[{sums['failures']}]")]
    except (ValueError, LookupError, TypeError):
        return None
    left_out = failed.rows - sum(failure.rows for failure in failures)
    if left_out < 0:
        return None
    if left_out:
        failures.append(Failure(operator, left_out, {}, unreported=left_out))
    return Removed(dropped, failed, failures, Processed((sums["stayed"] or 0) + dropped.rows, frozenset(roots)))


def _joined(text: str, size: str, most: int) -> str:
    """Return an SQL aggregate that joins texts by commas: all of them, if their sizes allow that.

    Else it joins as many as fit even if each is as large as the largest one, and at least one. A lambda could add up the
    sizes, but has a state.

    Args:
        text: SQL for the text of a row; null: it has none.
        size: SQL for its size.
        most: what the sizes of joined texts may add up to.
    """
    fitting = f"IF(sum({size}) <= {most}L, {_ALL}L, greatest(1L, {most}L div max({size})))"
    return f"concat_ws(',', slice(collect_list({text}), 1, cast({fitting} AS int)))"


def meter_failed(frame: DataFrame, fails: str, text: str, meter: str, *, texts: str, most_texts: int) -> DataFrame:
    """Meter the rows that SQL fails, without removing them.

    There is no worker that could limit what is collected. So a root costs a number, different reasons are collected once, and
    only so many of both are reported.

    Args:
        frame: tracked rows.
        fails: SQL condition of the rows that fail.
        text: SQL for the reason of such a row.
        meter: name of the meter.
        texts: SQL condition of the reasons whose text is collected.
        most_texts: number of these texts that are reported.
    """
    key = f"concat(xxhash64({text}), ':')"
    has_root = f"coalesce(size({ROOTS}), 0) > 0"
    roots = f"array_join(transform({ROOTS}, root -> concat({key}, coalesce(root, 0L))), ',')"
    count = f"IF({fails}, IF({has_root}, size({ROOTS}), 1), NULL)"
    failed_texts = f"collect_set(IF({fails} AND {texts}, concat({key}, hex({text})), NULL))"
    rootless = f"coalesce({SHARE}, 0L) <> 0L AND coalesce(size({ROOTS}), 0) < 1"
    sums = {
        **_sums(f"IF({fails}, {SHARE}, NULL)", "failed_"),
        "failed_rows": f"count_if({fails})",
        "rootless": f"count_if({fails} AND {rootless})",
        "stayed": f"count_if(NOT ({fails}))",
        "failed": _joined(f"IF({fails}, IF({has_root}, {roots}, {key}), NULL)", count, MOST_FAILED_ROOTS),
        "roots": f"sum({count})",
        "texts": f"concat_ws(',', slice({failed_texts}, 1, {most_texts}))",
    }
    return _observed(frame, meter, sums)


def read_failed(
    metrics: Metrics, meter: str, operator: str, *, retry: bool, is_expected: bool = True
) -> Removed | None:
    """Read the result of `meter_failed`; None: its sums contradict each other. The rest is as for `Reason`."""
    sums = metrics[meter]
    failed = _counted(sums, "failed_")
    listed, count = _pairs(sums["failed"]), sums["roots"] or 0
    if len(listed) != count and (len(listed) > count or count <= MOST_FAILED_ROOTS):
        return None
    roots: dict[str, set[int]] = {}
    try:
        texts = {key: bytes.fromhex(text).decode(errors="replace") for key, text in _pairs(sums["texts"])}
        for key, root in listed:
            of_reason = roots.setdefault(texts.get(key, OTHER_TEXTS), set())
            if root:  # no message has root 0, so a null among the roots shows
                of_reason.add(int(root))
    except ValueError:
        return None
    reasons = {Reason(text, retry, is_expected): np.array(sorted(of), np.int64).tobytes() for text, of in roots.items()}
    left_out = count - len(listed)
    failures = [Failure(operator, failed.rows, reasons, sums["rootless"], left_out)] if failed.rows else []
    return Removed(Counted(0, 0), failed, failures, Processed(sums["stayed"]))


def _pairs(text: str) -> list[tuple[str, str]]:
    """Split a text such as `1:2,3:` into pairs."""
    return [(key, value) for key, _, value in (pair.partition(":") for pair in text.split(",") if pair)]


def _counted(sums: Mapping[str, Any], prefix: str = "") -> Counted:
    low, high, rows = (sums[f"{prefix}{name}"] for name in ("low", "high", "rows"))
    return Counted(from_halves(low, high), rows or 0)


def mark(frame: DataFrame, marker: str) -> DataFrame:
    """Add a meter that only shows that an execution was reported."""
    return _observed(frame, marker, {"low": "count(1)"})


def in_text(text: str, meters: Iterable[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Find meters and their sums in the text of an execution's metrics in a classic session.

    A meter is missing if Spark has removed its stage: its sums are unknown then. Other metrics may have any text.

    Args:
        text: text of Scala's map from names to rows.
        meters: names of the meters to find.
    """
    for meter in meters:
        found = map(_read, text.split(f"{meter} -> [")[1:])
        sums = next(filter(None, found), None)
        if sums is not None:
            yield meter, sums


def _read(text: str) -> dict[str, Any] | None:
    """Read the sums of a meter at the beginning of a text; None: there are none, so this is a text of the user's metrics."""
    try:
        if text.startswith(_BEGIN):
            sums = json.loads(text[1:].partition(_END)[0])
            return sums if isinstance(sums, dict) else None
        return dict(zip(_NUMBERS, json.loads(f"[{text.partition(']')[0]}]"), strict=False))
    except ValueError:
        return None


def _sums(share: str, prefix: str = "") -> dict[str, str]:
    low, high = f"({share}) & {(1 << LOW_BITS) - 1}L", f"shiftright({share}, {LOW_BITS})"
    return {f"{prefix}low": f"sum({low})", f"{prefix}high": f"sum({high})"}


def _observed(frame: DataFrame, meter: str, sums: Mapping[str, str]) -> DataFrame:
    """Observe sums, given as name -> SQL aggregate: numbers, named as `_NUMBERS`, or any others."""
    named = [f"{expression} AS {name}" for name, expression in sums.items()]
    if is_connect(frame.sparkSession):
        return frame.observe(meter, *map(F.expr, named))
    if tuple(sums) == _NUMBERS[: len(sums)]:
        return frames.observe(frame, meter, *named)
    fields = ", ".join(f"'{name}', {expression}" for name, expression in sums.items())
    row = f"to_json(named_struct({fields}), map('ignoreNullFields', 'false'))"
    return frames.observe(frame, meter, f"concat(chr({ord(_BEGIN)}), {row}, chr({ord(_END)})) AS sums")
