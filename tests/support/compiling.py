"""The processes of a run compile the tests together.

pytest compiles each file with its own form of `assert`, and keeps the result beside it. In a fresh clone there is none, and
each process would compile all files. So each begins at another place, and takes what the others have compiled.
"""

import importlib
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def modules(process: int, processes: int) -> list[str]:
    """Return the names of all modules of tests, from the place where a process begins."""
    files = sorted(ROOT.glob("tests/**/test_*.py"))
    first = len(files) * process // processes
    return [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files[first:] + files[:first]]


def compile_modules(process: int, processes: int) -> None:
    """Import all modules of tests. What goes wrong is shown by the collection, which does it again."""
    for module in modules(process, processes):
        with suppress(Exception, pytest.skip.Exception):
            importlib.import_module(module)
