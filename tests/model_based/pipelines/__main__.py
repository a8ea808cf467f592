"""`python -m tests.model_based.pipelines [--reduce] SEED ...`, or `FIRST-LAST`: runs pipelines, and reduces faults."""

import logging
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.model_based.pipelines.judge import Fault, judge
from tests.model_based.pipelines.pipeline import Pipeline, draw
from tests.model_based.pipelines.play import play
from tests.model_based.pipelines.reduce import reduced
from tests.support.servers import VALKEY
from tests.support.spark.session import Sessions


def say(*lines: object) -> None:
    """Print, at once."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def main(given: list[str]) -> int:
    """Returns how many pipelines showed a fault."""
    logging.getLogger("acker_redis").setLevel(logging.ERROR)
    wanted = [one.split("-") for one in given if one != "--reduce"]
    seeds = [seed for one in wanted for seed in range(int(one[0]), int(one[-1]) + 1)]
    bad = runs = 0
    with tempfile.TemporaryDirectory() as name, VALKEY.server() as server:
        folder = Path(name)
        sessions = Sessions(folder)

        def faults(pipeline: Pipeline) -> list[Fault]:
            nonlocal runs
            runs += 1
            return judge(pipeline, play(pipeline, sessions.live(), server.url, folder / f"run{runs}"))

        for seed in seeds:
            pipeline, begun = draw(seed), time.monotonic()
            found = faults(pipeline)
            kind = "harmless" if pipeline.harmless else "harmful"
            say(f"seed {seed}: {len(found)} faults, {kind}, {time.monotonic() - begun:.1f} s")
            if found:
                bad += 1
                say(pipeline, *found[:3], Counter(one.kind for one in found))
                if "--reduce" in given:
                    smaller = reduced(pipeline, found[0].kind, faults)
                    say("reduced:", smaller, *faults(smaller)[:2])
        sessions.stop()
    return bad


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
