"""Run the tests on each version of Spark, in both kinds of sessions, and with real sinks. `make matrix` calls it.

Each cell has an environment of its own. A red cell doesn't end the run. docs/reference/measured/matrix.json has the results.
"""

import fnmatch
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import environments

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "reference" / "measured" / "matrix.json"
PAGE = ROOT / "docs" / "reference" / "spark-versions.md"
BEGIN, END = "<!-- matrix:begin -->", "<!-- matrix:end -->"
KINDS = {
    "classic": "classic session", "connect": "Spark Connect", "delta": "Delta", "iceberg": "Iceberg", "kafka": "Kafka",
    "postgresql": "PostgreSQL", "rest": "classic session, what `make test` leaves out",
}  # fmt: skip
CELL_SECS = 3600.0
REST = "rest"
"""Cell with the tests that `make test` leaves out. It runs where that does, in .venv, because it needs more than Spark."""

SPARK_TESTS = ("tests/spark", "tests/storm/turns", "tests/model_based/test_random_pipelines.py")
TARGETS = "tests/spark/sinks/test_targets.py"
SINKS = {"delta": ("4.0", "4.1"), "iceberg": ("4.0", "4.1"), "kafka": (), "postgresql": ()}
"""Sink -> versions of Spark that it has a jar for. Empty: all."""

PROGRAM = """
import json, platform, subprocess, pandas, pyarrow, pyspark
from acker_redis.spark import prepare_environment
import os
prepare_environment()
java = os.path.join(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else "java"
said = subprocess.run([java, "-version"], capture_output=True, text=True).stderr.split('"')[1]
print(json.dumps({"python": platform.python_version(), "pyspark": pyspark.__version__, "pandas": pandas.__version__,
                  "pyarrow": pyarrow.__version__, "java": said}))
"""
"""What is installed in a cell."""


def cells() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield name, version of Spark, and pytest's arguments of each cell."""
    newest = list(environments.versions())[-1]
    for spark in environments.versions():
        pages = ("tests/docs/test_docs.py", "tests/docs/test_readme.py")
        yield spark, spark, ("-m", "versions", f"--deselect={TARGETS}", *SPARK_TESTS, *pages)
        yield (
            f"{spark}-connect",
            spark,
            ("--connect", "-m", "versions or connect", f"--deselect={TARGETS}", *SPARK_TESTS),
        )
        for sink, own in SINKS.items():
            if not own or spark in own:
                yield f"{spark}-{sink}", spark, ("-m", "", "-k", sink, TARGETS)
        if spark == newest:
            yield (
                f"{spark}-{REST}",
                spark,
                ("-m", "matrix and not chaos and not connect", f"--deselect={TARGETS}", "tests"),
            )


def pins_of(name: str) -> dict[str, str]:
    """Return the pins of a cell: package -> version."""
    pins = environments.versions()[name.partition("-")[0]]
    if not name.endswith(REST):
        return pins
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return pins | dict(line.split("==") for line in lines if line.partition("==")[0] in pins)


def run(name: str, spark: str, arguments: tuple[str, ...], folder: Path) -> dict[str, Any]:
    """Run a cell. Return its result."""
    of_rest = name.endswith(REST)
    python = str(ROOT / ".venv" / "bin" / "python" if of_rest else environments.python_of(spark))
    environment = {**os.environ, "ACKER_COMPILED": "1", "CI": "true", "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
    if "--connect" in arguments:
        environment["ACKER_CLIENT_PYTHON"] = str(environments.python_of(spark, "connect"))
    said = subprocess.run(
        [python, "-c", PROGRAM], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    report = folder / "report.xml"
    command = [
        python,
        "-m",
        "pytest",
        "-n",
        "3",
        "--dist",
        "loadfile",
        "--no-loadscope-reorder",
        f"--junitxml={report}",
    ]
    began = time.monotonic()
    done = subprocess.run([*command, *arguments], cwd=ROOT, env=environment, timeout=CELL_SECS, check=False)
    secs = round(time.monotonic() - began)
    return {**json.loads(said.stdout.splitlines()[-1]), **counts(report), "seconds": secs, "status": done.returncode}


def counts(report: Path) -> dict[str, Any]:
    """Return how many tests passed, failed and were skipped, and the names of those that failed."""
    if not report.exists():
        return {"passed": 0, "failed": 1, "skipped": 0, "failures": ["pytest died"]}
    found: dict[str, Any] = {"passed": 0, "failed": 0, "skipped": 0, "failures": []}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        kind = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        found[kind] += 1
        if kind == "failed":
            found["failures"].append(f"{case.get('classname')}::{case.get('name')}")
    return found


def results() -> dict[str, dict[str, Any]]:
    """Return the newest result of each cell that has one."""
    there: dict[str, dict[str, Any]] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    return {cell: there[cell] for cell, *_ in cells() if cell in there}


def keep(name: str, result: dict[str, Any]) -> None:
    """Write the result of a cell into the file, beside those of the others, and the table of all into the docs."""
    kept = {**results(), name: result}
    ordered = {cell: kept[cell] for cell, *_ in cells() if cell in kept}
    RESULTS.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(f"{before}{table()}{rest.partition(END)[2]}", encoding="utf-8")


def table() -> str:
    """Return the table of results for the docs, with its marks."""
    lines = [BEGIN, "", "| PySpark | pandas | Java | session or sink | tests that passed |", "|---|---|---|---|---|"]
    for name, *_ in cells():
        kind = name.partition("-")[2] or "classic"
        one = {**pins_of(name), "java": "", **results().get(name, {})}
        passed = "not run yet"
        if "passed" in one:
            passed = f"{one['passed']} of {one['passed'] + one['failed']}" if one["failed"] else f"{one['passed']}"
        lines.append(f"| {one['pyspark']} | {one['pandas']} | {one['java']} | {KINDS[kind]} | {passed} |")
    return "\n".join([*lines, "", END])


def main(wanted: list[str]) -> int:
    """Run the cells whose names match a pattern. Return 1 if one of them is red."""
    chosen = [cell for cell in cells() if not wanted or any(fnmatch.fnmatch(cell[0], one) for one in wanted)]
    if not chosen:
        print(f"No cell is called {' '.join(wanted)}. There are {', '.join(cell[0] for cell in cells())}.")
        return 2
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    lines = []
    for name, spark, arguments in chosen:
        print(f"\n{f' {name} ':-^100}", flush=True)
        with tempfile.TemporaryDirectory(prefix="matrix-", ignore_cleanup_errors=True) as folder:
            Path(folder).chmod(0o711)  # servers of another user have folders below it
            try:
                result = run(name, spark, arguments, Path(folder))
            except subprocess.SubprocessError as exc:
                result = {
                    "passed": 0,
                    "failed": 1,
                    "skipped": 0,
                    "failures": [str(exc)[:300]],
                    "seconds": 0,
                    "status": 1,
                }
        keep(name, {"commit": commit.strip(), **result})
        is_red = result["failed"] or result["status"]
        lines.append((f"{name:16} {'red' if is_red else 'green':6} {result['passed']:5} passed {result['failed']:4} failed "
                      f"{result['skipped']:4} skipped {result['seconds']:5} s", is_red))  # fmt: skip
    print(f"\n{' cells ':-^100}")
    print("\n".join(line for line, _ in lines))
    return int(any(is_red for _, is_red in lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
