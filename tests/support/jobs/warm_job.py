"""Programs one after another, in one process whose JVM is warm from the second on; each as the main module, with a session of
its own.

Each line of the input names a program (a file or a module), its arguments, and the server it is to use; the answer is a line
with its exit status and what it printed on either stream. Working directory is that of the JVM for all of them.
"""

import gc
import json
import os
import runpy
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

from pyspark.sql import SparkSession


def run(program: str, arguments: list[str]) -> tuple[int, str, str]:
    """Exit status, output, errors: an exception's traceback among them."""
    printed, errors, status = StringIO(), StringIO(), 0
    sys.argv[1:] = arguments
    with redirect_stdout(printed), redirect_stderr(errors):
        try:
            if program.endswith(".py"):
                runpy.run_path(program, run_name="__main__")
            else:
                sys.modules.pop(program, None)  # an earlier program may have imported it
                runpy.run_module(program, run_name="__main__", alter_sys=True)
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
            status = 1
    session = SparkSession.getActiveSession()
    if session is not None:
        session.stop()
    # Over Spark Connect, a session that is collected later would end requests of the next one (PySpark 4.0 to 4.2).
    del session
    gc.collect()
    return status, printed.getvalue(), errors.getvalue()


def main() -> None:
    answers = sys.stdout
    for line in sys.stdin:
        program, arguments, os.environ["ACKER_REDIS_URL"] = json.loads(line)
        print(json.dumps(run(program, arguments)), file=answers, flush=True)


if __name__ == "__main__":
    main()
