"""Short programs that need Spark run one after another in one process: a JVM takes longer to start than most of them."""

import json
import selectors
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support import java
from tests.support.spark import versions

JOB = Path(__file__).parents[1] / "jobs" / "warm_job.py"
ANSWER_SECS = 540
"""Below the time limit of a test. The machine may be busy, and a page of the docs has twenty runs."""


def read_answer(answer: tuple[int, str, str]) -> Any:
    """What a program that succeeded printed as JSON on its last line."""
    status, printed, errors = answer
    assert status == 0, errors
    return json.loads(printed.splitlines()[-1])


class Warm:
    """The process, started with the first program.

    Attributes:
        folder: working directory of all programs and of their JVM; emptied before each.
        environment: variables of the process, beside those of this one.
    """

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder, self.environment = folder, environment
        self._log = folder.with_suffix(".log")
        self._process: subprocess.Popen[str] | None = None
        self._owes_answer = False

    def run(self, text: str, url: str) -> str:
        """What a program of that text prints; an error of its own fails the test."""
        self._empty()
        script = self.folder / "program.py"
        script.write_text(text, encoding="utf-8")
        self._begin(str(script), [], url)
        status, printed, errors = self.answer()
        assert not status, errors
        return printed

    def run_module(self, name: str, *arguments: str, url: str) -> tuple[int, str, str]:
        """Exit status, output and errors of `python -m name`; what its JVM says is not among them."""
        self.begin_module(name, *arguments, url=url)
        return self.answer()

    def begin_module(self, name: str, *arguments: str, url: str) -> None:
        """As `run_module`, which goes on beside the test; `answer` waits for its end."""
        self._empty()
        self._begin(name, list(arguments), url)

    def answer(self) -> tuple[int, str, str]:
        """Exit status, output and errors of the program that was begun, at its end."""
        process = self._process
        assert self._owes_answer and process and process.stdout
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if not selector.select(ANSWER_SECS):
                raise TimeoutError(f"The program gave no answer in {ANSWER_SECS} s: {self._log.read_text()[-3000:]}")
        answer = process.stdout.readline()
        assert answer, self._log.read_text()[-3000:]
        self._owes_answer = False
        status, printed, errors = json.loads(answer)
        return status, printed, errors

    def stop(self) -> None:
        """End the process and its JVM."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            if self._owes_answer:  # it hangs, and goes with its test
                process.kill()
            with suppress(subprocess.TimeoutExpired):  # how long a busy machine takes to end a JVM is no test's concern
                process.communicate(timeout=60)
        finally:
            process.kill()
            self._owes_answer = False

    def _empty(self) -> None:
        for path in self.folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _begin(self, program: str, arguments: list[str], url: str) -> None:
        if self._owes_answer:  # that test failed
            self.stop()
        process = self._started()
        assert process.stdin
        print(json.dumps([program, arguments, url]), file=process.stdin, flush=True)
        self._owes_answer = True

    def _started(self) -> "subprocess.Popen[str]":
        if self._process is None:
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-Werror", *(f"-W{one}" for one in versions.warning_filters()), str(JOB)],
                    cwd=self.folder, env={**java.preloaded(), **self.environment}, stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE, stderr=log, text=True,
                )  # fmt: skip
        return self._process
