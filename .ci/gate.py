"""The gate: decide whether a change lands. Cheap stages come first, and a red one ends the run.

A test that failed because a wait ran out is run once more, alone, behind its stage. It needs Python alone.
"""

import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

LOOK_AGAIN_SECS = 120.0
"""Time for all second looks of a run. A test that isn't through by then has failed."""

LOOK_AGAIN_AT = 10
"""Most tests that are run again. More of them have one cause, which is worth a look."""

PATIENCE = 4
"""A command is ended at this multiple of its stage's limit: the limits are those of a quiet machine."""

MOST_JVMS = 20
"""Most JVMs at a time: those that the four processes of `make test` share, and the places of tests/support/jvms.py."""

ENDS_IN_SECS = 15.0
"""Time for processes to end behind the tests that started them."""

_PYTEST_FAILED = 1
_SUMMARY = re.compile(r"^=+ (?:.* )?\d+ (?:passed|failed|error|errors|skipped).* in [\d.]+s.*=+$")
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)


@dataclass(frozen=True)
class Command:
    """One command of a stage.

    Attributes:
        argv: program and arguments.
        tries: how often it is tried. More than one for what downloads.
        pytest: command line that runs some of its tests again. Empty: it runs no tests.
    """

    argv: tuple[str, ...]
    tries: int = 1
    pytest: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stage:
    """Commands that run one after another, and the seconds that they may take on a quiet machine."""

    name: str
    limit_secs: float
    commands: tuple[Command, ...]


@dataclass
class Gate:
    """One run of the steps.

    Attributes:
        folder: temporary folder, below which the run writes everything that isn't in the checkout.
        table: name, seconds and limit of each stage so far.
        only_alone: test that passed in its second look -> its first error.
        summary: pytest's last line of the newest stage with tests.
    """

    folder: Path
    table: list[tuple[str, float, float]] = field(default_factory=list)
    only_alone: dict[str, str] = field(default_factory=dict)
    summary: str = ""
    _looked_secs: float = 0.0

    def run(self, steps: "Sequence[Stage | tuple[Stage, ...]]") -> bool:
        """Run steps up to the first red one. Return True if none is.

        A step is a stage, or several stages that run side by side. These show what they print one after another.
        """
        return all(self._run_step((step,) if isinstance(step, Stage) else step) for step in steps)

    def report(self) -> None:
        """Print the table of stages, and what passed only alone. The suite's own last line comes last."""
        say("stages")
        for name, secs, limit_secs in [*self.table, ("second look", self._looked_secs, LOOK_AGAIN_SECS)]:
            over = "  over its limit" if secs > limit_secs else ""
            print(f"{name:32} {secs:6.0f} s of {limit_secs:4.0f}{over}")
        say("passed only alone")
        for test, error in self.only_alone.items():
            print(f"{test}\n    {error}")
        print("\n" + (self.summary or "no test ran"), flush=True)

    def _run_step(self, stages: tuple[Stage, ...]) -> bool:
        screens = [Screen(is_live=number == 0) for number in range(len(stages))]
        with ThreadPoolExecutor(len(stages)) as pool:
            ended = list(pool.map(self._run_stage, stages, screens))
        left = left_over()
        names = " and ".join(one.stage.name for one in ended)
        for one, screen in zip(ended, screens, strict=True):
            screen.show()
            self.table.append((one.stage.name, one.secs, one.stage.limit_secs))
            self.summary = one.summary or self.summary
        for process in left:
            print(f"red: {names} left a process behind: {process}", flush=True)
        red = [one.stage.name for one in ended if one.failed is None]
        for name in red or ([names] if left else []):
            print(f"red: {name}", flush=True)
        if red or left:
            return False
        return all(not one.failed or self._look_again(one.stage.name, one.pytest, one.failed) for one in ended)

    def _run_stage(self, stage: Stage, screen: "Screen") -> "Ended":
        screen.say(stage.name)
        began = time.monotonic()
        for command in stage.commands:
            failed, summary = self._run_command(stage, command, screen)
            if failed != []:
                break
        secs = time.monotonic() - began
        screen.print(f"{stage.name}: {secs:.0f} s")
        return Ended(stage, secs, failed, command.pytest, summary)

    def _run_command(
        self, stage: Stage, command: Command, screen: "Screen"
    ) -> tuple[list[dict[str, object]] | None, str]:
        """Return the failed tests, None if the command failed otherwise, and pytest's last line if it ran tests."""
        file = self.folder / f"failures-{stage.name.replace(' ', '-')}.json"
        file.unlink(missing_ok=True)
        argv = (*command.argv, f"FAILURES={file}") if command.pytest else command.argv
        for _ in range(command.tries):
            status, summary = run(argv, PATIENCE * stage.limit_secs, screen)
            if status == 0:
                break
        summary = summary if command.pytest else ""
        if status == 0:
            return [], summary
        if not file.exists():  # no tests, or pytest itself died
            return None, summary
        return json.loads(file.read_text(encoding="utf-8")) or None, summary

    def _look_again(self, name: str, pytest: Sequence[str], failed: Sequence[Mapping[str, object]]) -> bool:
        """Run failed tests once more, alone, if each of them may be."""
        for one in failed:
            if not one["again"]:
                print(f"red: {one['test']} gets no second look", flush=True)
        if not all(one["again"] for one in failed):
            return False
        if len(self.only_alone) + len(failed) > LOOK_AGAIN_AT:
            print(f"red: more than {LOOK_AGAIN_AT} tests ask for a second look", flush=True)
            return False
        say(f"second look behind {name}")
        began = time.monotonic()
        tests = dict.fromkeys(str(one["test"]) for one in failed)
        status, _ = run((*pytest, "-n0", "-m", "", *tests), LOOK_AGAIN_SECS - self._looked_secs, Screen(is_live=True))
        left = left_over()
        self._looked_secs += time.monotonic() - began
        if status or left:
            print(f"red: {name}, in its second look, too", flush=True)
            return False
        self.only_alone |= {str(one["test"]): str(one["error"]).replace("\n", "\n    ") for one in failed}
        return True


@dataclass(frozen=True)
class Ended:
    """A stage that has ended.

    Attributes:
        stage: the stage.
        secs: the time that it took.
        failed: its failed tests; None: it failed otherwise.
        pytest: command line that runs some of its tests again.
        summary: pytest's last line, if it ran tests.
    """

    stage: Stage
    secs: float
    failed: list[dict[str, object]] | None
    pytest: tuple[str, ...]
    summary: str


class Screen:
    """What a stage prints: at once, or once others have printed theirs."""

    def __init__(self, *, is_live: bool) -> None:
        self._lines: list[str] | None = None if is_live else []

    def print(self, line: str) -> None:
        """Print a line."""
        if self._lines is None:
            print(line, flush=True)
        else:
            self._lines.append(line)

    def say(self, title: str) -> None:
        """Print the title of a section."""
        self.print(f"\n{f' {title} ':-^100}")

    def show(self) -> None:
        """Print what has waited."""
        if self._lines:
            print("\n".join(self._lines), flush=True)


def say(title: str) -> None:
    """Print the title of a section."""
    Screen(is_live=True).say(title)


def run(argv: Sequence[str], limit_secs: float, screen: Screen) -> tuple[int, str]:
    """Run a command and show what it prints. Return its exit status, and pytest's last line if it ran tests."""
    summary = ""
    with subprocess.Popen(
        argv, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace",
    ) as process:  # fmt: skip
        ending = threading.Timer(max(0.0, limit_secs), _end, (process, limit_secs))
        ending.start()
        assert process.stdout is not None
        for line in process.stdout:
            screen.print(line.rstrip("\n"))
            summary = line.rstrip() if _SUMMARY.match(line) else summary
        status = process.wait()
        ending.cancel()
    return status, summary


def _end(process: "subprocess.Popen[str]", limit_secs: float) -> None:
    print(f"ended after {limit_secs:.0f} s: {' '.join(process.args)[:200]}", flush=True)  # type: ignore[arg-type]
    for pid, _ in descendants():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def adopt() -> None:
    """Become the parent of processes whose own one ends, so that none is lost sight of (Linux)."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


def descendants() -> list[tuple[int, str]]:
    """Return pid and command line of the processes below this one that run."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                children.setdefault(int(parent), []).append(int(folder.name))

    def below(pid: int) -> Iterator[int]:
        for child in children.get(pid, ()):
            yield child
            yield from below(child)

    found = []
    for pid in below(os.getpid()):
        with suppress(OSError):
            line = (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ")
            found.append((pid, line.decode(errors="replace").strip()[:200]))
    return found


def left_over() -> list[str]:
    """Return the processes that a stage left behind, after some seconds to end in, and end them."""
    deadline = time.monotonic() + ENDS_IN_SECS
    while (found := descendants()) and time.monotonic() < deadline:
        time.sleep(0.2)
        _reap()
    for pid, _ in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    _reap()
    return [f"{pid} {line}" for pid, line in found]


def _reap() -> None:
    """Take the status of adopted processes that ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


class Memory(threading.Thread):
    """Look at the machine's memory and at the number of JVMs, twice a second.

    Attributes:
        peak_mib: most memory that was in use, above that at the start.
        jvms: most JVMs that ran at a time.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak_mib, self.jvms = 0, 0
        self._free_mib = available_mib()

    def run(self) -> None:
        """Look until the process ends."""
        while True:
            self.peak_mib = max(self.peak_mib, self._free_mib - available_mib())
            self.jvms = max(self.jvms, sum(line.partition(" ")[0].endswith("java") for _, line in descendants()))
            time.sleep(0.5)


def available_mib() -> int:
    """Return the memory that programs may still have."""
    found = re.search(r"^MemAvailable: +(\d+) kB$", Path("/proc/meminfo").read_text(), re.M)
    assert found is not None
    return int(found[1]) // 1024


def main(steps: "Sequence[Stage | tuple[Stage, ...]]") -> int:
    """Run the gate. Return its exit status."""
    adopt()
    folder = Path(tempfile.mkdtemp(prefix="gate-"))
    folder.chmod(0o711)  # servers of another user have folders below it
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    memory = Memory()
    memory.start()
    gate = Gate(folder)
    try:
        is_green = gate.run(steps)
        changed = subprocess.run(
            ["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=False
        ).stdout
        if is_green and changed:
            print(f"red: tests wrote into the checkout: {changed}")
            is_green = False
        if memory.jvms > MOST_JVMS:
            print(f"red: {memory.jvms} JVMs ran at a time, and {MOST_JVMS} may")
            is_green = False
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"\npeak of memory: {memory.peak_mib} MiB, and {memory.jvms} JVMs of {MOST_JVMS}")
    gate.report()
    return 0 if is_green else 1


def make(*arguments: str, tries: int = 1, pytest: tuple[str, ...] = ()) -> Command:
    """Return the command of a target of the Makefile."""
    return Command(("make", *arguments), tries, pytest)


PYTEST = (".venv/bin/python", "-m", "pytest")
ON_OLDEST = ("sh", "-c", 'PYTHONPATH=$PWD exec "$(python3 .ci/environments.py 4.0)" -m pytest "$@"', "pytest")

BARE = (
    "tests/packaging/test_skips.py", "tests/lua/test_contract.py", "tests/packaging/test_set_up.py", "tests/cli/test_help.py",
    "tests/cli/test_output.py", "tests/ops/test_rotator_process.py", "tests/stack/test_alerts.py", "tests/stack/test_stack.py",
    "tests/lua/test_reports.py", "tests/cli/test_exit_status.py", "tests/cli/test_cli.py",
)  # fmt: skip
"""Files whose tests behave differently where Redis, Java, LuaJIT and Prometheus are missing."""

STAGES = (
    Stage("machine", 30, (Command((".ci/machine",), tries=3),)),
    (
        Stage("set-up", 150, (make("setup", tries=3), make("needs", tries=3))),
        Stage("oldest Spark", 180, (make("smoke", pytest=ON_OLDEST),)),
    ),
    (
        Stage("format, lint, types, prose, docs", 120, (make("lint"),)),
        Stage(
            "bare environment",
            60,
            (Command((".ci/bare", "make", "test", f"ARGS={' '.join(BARE)}"), pytest=(".ci/bare", *PYTEST)),),
        ),
        # Else five processes of `make test` compile all tests at a time.
        Stage("compile tests", 60, (make("test", "ARGS=--collect-only -qq"),)),
    ),
    Stage("make test", 540, (make("test", pytest=PYTEST),)),
)
"""Side by side are stages that need mostly one core. `make test` is last, so that its own last line is the gate's."""

if __name__ == "__main__":
    sys.exit(main(STAGES))
