"""Programs one after another, in one process whose JVM is warm from the second on; each as the main module, with a session of
its own.

Each line of the input names a program and the server it is to use; the answer is a line with what it printed, or its error.
Working directory is that of the JVM for all of them.
"""

import json
import os
import runpy
import sys
import traceback
from contextlib import redirect_stdout
from io import StringIO

from pyspark.sql import SparkSession


def run(program: str) -> tuple[str, str]:
    """What it printed, and the error that ended it, or nothing."""
    shown, error = StringIO(), ""
    try:
        with redirect_stdout(shown):
            runpy.run_path(program, run_name="__main__")
    except BaseException:
        error = traceback.format_exc()
    session = SparkSession.getActiveSession()
    if session is not None:
        session.stop()
    return shown.getvalue(), error


def main() -> None:
    answers = sys.stdout
    for line in sys.stdin:
        program, os.environ["ACKER_REDIS_URL"] = json.loads(line)
        print(json.dumps(run(program)), file=answers, flush=True)


if __name__ == "__main__":
    main()
