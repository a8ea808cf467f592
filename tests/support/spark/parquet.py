"""Rows of parquet files that Spark wrote, read without a job of Spark, which takes longer than a few rows are worth."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_SAME_IN_BOTH: tuple[Callable[[pa.DataType], bool], ...] = (
    pa.types.is_boolean,
    pa.types.is_date32,
    pa.types.is_decimal128,
    pa.types.is_floating,
    pa.types.is_integer,
    pa.types.is_string,
)
"""Types whose values PyArrow gives to Python as Spark does. Times have a zone there, and structs and maps are others."""


def read(folder: Path, *columns: str) -> list[tuple[Any, ...]] | None:
    """Rows of a folder, or None if Spark may read something else in it: with partitions, other types or several schemas."""
    files = [file for file in folder.rglob("*.parquet") if not _is_hidden(file.relative_to(folder))]
    if not files or any(file.parent != folder for file in files):
        return None
    tables = []
    for file in sorted(files):
        with pq.ParquetFile(file) as one:
            tables.append(one.read())
    schema = tables[0].schema.remove_metadata()
    if any(not table.schema.remove_metadata().equals(schema) for table in tables):
        return None
    if not all(any(is_kind(column.type) for is_kind in _SAME_IN_BOTH) for column in schema):
        return None
    names = columns or tuple(schema.names)
    if len({*schema.names}) < len(schema.names) or not {*names} <= {*schema.names}:
        return None
    return [row for table in tables for row in zip(*(table[name].to_pylist() for name in names), strict=True)]


def rows(folder: Path | str, *columns: str) -> list[tuple[Any, ...]]:
    """Rows of a folder of simple types; no folder fails the test."""
    found = read(Path(folder), *columns)
    assert found is not None, f"{folder} has no parquet files of one schema of simple types"
    return found


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(("_", ".")) for part in path.parts)
