"""Lines that are repeated after a driver was killed. The driver is that of `make kafka`."""

import time
from collections.abc import Iterator

from acker_redis.testing import wait_until
from benchmarks.harness import Bench, Row
from benchmarks.kafka.members import WAIT_SECS
from spark.applications.kafka_words.account import Account, Commits, Topic
from spark.applications.kafka_words.lines import Lines
from spark.support.kafka import Node
from spark.support.services import kill, start

_LINES = 20_000
_PENDING = 1000
_GROUP = _APP = "kills"
_KILL_AT, _LOOK_SECS = 0.4, 0.1


def rows(bench: Bench, node: Node) -> Iterator[Row]:
    """Kill a driver, start another one, and count the lines whose words are written twice."""
    count = bench.size(_LINES, least=600)
    pending = bench.size(_PENDING, least=60)
    names = {
        option: node.topic(f"kills-{option}", 4 if option == "lines" else 1) for option in ("lines", "words", "letters")
    }
    options = [word for option, name in names.items() for word in (f"--{option}", name)]
    options += ["--servers", node.address, "--app", _APP, "--group", _GROUP, "--max-spout-pending", str(pending)]
    lines, account = Lines(node.address, names["lines"], per_sec=1e6), Account()
    topics = {option: Topic(node.address, name) for option, name in names.items()}

    def look() -> int:
        account.add_words(topics["words"].fresh())
        account.add_letters(topics["letters"].fresh())
        time.sleep(_LOOK_SECS)
        return len(account.done())

    lines.allow(count)
    module = "spark.applications.kafka_words"
    first = start(module, *options, redis_url=bench.url)
    try:
        wait_until(lambda: first.poll() is not None or look() > count * _KILL_AT, "some lines are done", WAIT_SECS)
    finally:
        kill(first)
    look()
    commits = Commits(node.address, _GROUP, names["lines"])
    committed = commits.read(topics["lines"].ends())
    uncommitted = sum(not committed.is_done(*lines.places[number]) for number in account.done())
    second = start(module, *options, redis_url=bench.url)
    try:
        wait_until(lambda: second.poll() is not None or look() == count, "all lines are done", WAIT_SECS)
    finally:
        kill(second)
    lines.stop()
    account.finish(range(count))
    if account.wrong:
        raise RuntimeError(f"lines are not accounted for: {account.wrong}")
    repeated = {word[0] for word, written in account.words.items() if written > 1}
    yield bench.row(
        f"lines repeated after kill -9, of {count:,}", [len(repeated)], "lines", target=uncommitted + pending,
        context=f"{uncommitted:,} done and not committed, at most {pending:,} in flight",
    )  # fmt: skip
