"""All examples after one another, in one Spark session: what each prints, as one JSON object on the last line."""

import contextlib
import io
import json
import runpy
import sys
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from spark.support import session


def main() -> None:
    with session.quiet_session("local[2,4]", "examples") as shared:

        @contextlib.contextmanager
        def quiet_session(*_: object) -> Iterator[Any]:
            yield shared

        printed = {}
        for name in sys.argv[1:]:
            with (
                patch.object(session, "quiet_session", quiet_session),
                contextlib.redirect_stdout(io.StringIO()) as output,
            ):
                runpy.run_module(f"spark.examples.{name}", run_name="__main__", alter_sys=True)
            printed[name] = output.getvalue()
    sys.stdout.write(json.dumps(printed) + "\n")


if __name__ == "__main__":
    main()
