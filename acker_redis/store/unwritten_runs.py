"""Runs with output `whole` that have dead letters, and have not written their output.

A letter's entry in the stream can't be changed, so this record of its run tells whether the letter is `unwritten`.
"""

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from acker_redis.client.client import Client, raise_first
from acker_redis.client.replies import as_dict
from acker_redis.errors import AuthenticationError
from acker_redis.model import keys


class UnwrittenRun(NamedTuple):
    """A run that has not written its output.

    Attributes:
        spout_id: number of its spout.
        since_ms: time at which its first letter was stored, or a little before, by the server's clock, in milliseconds.
    """

    spout_id: int
    since_ms: int


def note(client: Client, app: str, runs: Mapping[str, UnwrittenRun]) -> None:
    """Record runs, if they aren't recorded yet."""
    key = keys.unwritten_runs(app)
    client.pipeline([("HSETNX", key, run_id, json.dumps(run._asdict())) for run_id, run in runs.items()])


def read(client: Client, app: str) -> dict[str, UnwrittenRun]:
    """Read the runs by run id. Without permission, and for damaged records, there are none."""
    (reply,) = client.pipeline_each([("HGETALL", keys.unwritten_runs(app))])
    if isinstance(reply, AuthenticationError):  # a user who may read the letters only
        return {}
    raise_first([reply])
    runs = {}
    for run_id, text in as_dict(reply).items():
        try:
            fields = json.loads(text)
            runs[run_id.decode(errors="replace")] = UnwrittenRun(int(fields["spout_id"]), int(fields["since_ms"]))
        except (ValueError, TypeError, KeyError):
            continue
    return runs


def forget(client: Client, app: str, run_ids: Iterable[str]) -> None:
    """Remove the record of runs, which have written their output or whose letters are gone."""
    if names := list(run_ids):
        client.pipeline([("HDEL", keys.unwritten_runs(app), *names)])
