"""Apache Storm 2.8.2 in one process, with Java bolts and with pystorm's.

Maven and pip fetch Storm and pystorm once.
"""

import subprocess
import sys
from pathlib import Path

_STORM_SECS = ("8", "8", "3")
"""Warm-up, length of a window, and windows of a run in Storm."""

_HERE = Path(__file__).parent
_BUILD = Path("build/bench/storm")


def rates_of_storm(topology: str = "") -> dict[str, list[float]]:
    """Run Apache Storm, and return sentences per second by mode, window by window.

    Args:
        topology: empty for the word count; `lower-` for the three levels that `benchmarks.turns` runs.
    """
    python, path = _pystorm(), _class_path()
    found: dict[str, list[float]] = {}
    modes = [f"{topology}{bolts}-{kind}" for bolts in ("multilang", "java") for kind in ("tracked", "untracked")]
    command = [
        "java", "-Xmx2g", f"-Dpython={python}", f"-Dprograms={_HERE / 'programs.py'}", "-cp", path, "benchmarks.Words",
        *_STORM_SECS, *modes,
    ]  # fmt: skip
    ended = subprocess.run(command, check=True, capture_output=True, text=True, timeout=900)
    for line in ended.stdout.splitlines():
        words = line.split()
        if len(words) == 3 and words[0] in modes:
            found.setdefault(words[0].removeprefix(topology), []).append(float(words[1]))
    return found


def _pystorm() -> Path:
    folder = _BUILD.resolve() / "pystorm"
    if not (folder / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(folder / "bin" / "pip"), "install", "--quiet", "pystorm==3.1.4"], check=True)
    return folder / "bin" / "python"


def _class_path() -> str:
    target = _BUILD.resolve() / "java"
    listed = target / "class-path"
    maven = ["mvn", "-q", "-B", "-f", str(_HERE / "java" / "pom.xml"), f"-DbuildDirectory={target}"]
    subprocess.run(
        [*maven, "compile", "dependency:build-classpath", f"-Dmdep.outputFile={listed}"],
        check=True,
        capture_output=True,
    )
    return f"{target / 'classes'}:{listed.read_text()}"
