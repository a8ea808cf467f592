"""The scenarios of one target, in a JVM that has its jars: that of a classic session, or that of a server of Spark Connect.

python -m tests.support.jobs.target_job NAME KIND URL FOLDER

The last line is JSON: scenario -> the traceback of its error, or null, or NOT_OVER_CONNECT.
The status is NO_JARS where they can't be had.
"""

import importlib
import json
import sys
import traceback
from pathlib import Path
from typing import Any

from tests.support import jars
from tests.support.spark.cases import Case
from tests.support.spark.connect import ConnectSessions
from tests.support.spark.session import Sessions
from tests.support.targets import NotOverConnectError

NO_JARS = 3

NOT_OVER_CONNECT = "a classic session is needed"


def main(name: str, kind: str, url: str, folder: Path) -> int:
    target = importlib.import_module(f"tests.support.targets.{name}")
    found = jars.jars_of(name)
    assert found is not None
    sessions: Sessions | ConnectSessions = (ConnectSessions if kind == "connect" else Sessions)(
        folder, **jars.settings(found), **target.SETTINGS
    )
    try:
        spark = sessions.live()
    except RuntimeError:  # the JVM ends where a package can't be had
        traceback.print_exc()
        return NO_JARS
    results: dict[str, str | None] = {}
    for scenario in target.SCENARIOS:
        cases: list[Case] = []

        def make(scenario: Any = scenario, cases: list[Case] = cases, **options: Any) -> Case:
            inner = folder / f"{scenario.__name__}-{len(cases)}"
            inner.mkdir()
            cases.append(Case(spark, url, inner, **options))
            return cases[-1]

        try:
            scenario(make)
            results[scenario.__name__] = None
        except NotOverConnectError:
            results[scenario.__name__] = NOT_OVER_CONNECT
        except Exception:
            results[scenario.__name__] = traceback.format_exc()
        for case in cases:
            case.acker.close()
    sessions.stop()
    print(json.dumps(results))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4])))
