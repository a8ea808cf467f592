"""Names that were replaced don't come back: in code, Lua, configuration and pages."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("acker_redis", "lua", "spark", "tests", "stack", "benchmarks", "docs", "README.md")
EXEMPT = (
    "tests/packaging/test_retired_names.py",
    "docs/internals/decisions/",  # history
    "acker_redis/storm/",  # keeps Storm's own *task* and *stream*
    "tests/ledger/test_shared_blocks.py",  # data of an older format, which is refused
    "tests/store/test_dead_letters.py",  # the same
)

NAMES = {
    "_anchors": "_roots",
    "_edge": "_share",
    "BatchHandler": "TrackedBatches",
    "BatchOptions": "the options of acker_redis/spark/runs/options.py",
    "bolt_arrow": "flat_map_arrow",
    "BoltOutput": "the output of flat_map_arrow",
    "check_options": "keywords that mypy checks",
    "confirm_packed": "confirm_batches",
    "DoneUntil": "CompletedOffsets",
    "done_until": "completed_offsets",
    "each_batch": "TrackedBatches",
    "evict_app": "delete_app",
    "exporter-script": "script exporter",
    "FailedError": "RowFailedError",
    "import_anchors": "run_exported",
    "ImportOptions": "the options of acker_redis/spark/runs/options.py",
    "keep_payload": "replay=ReplayFrom.redis()",
    "last_stage": "last_component",
    "LeftBehind": "AbandonedRun",
    "LetterFilter": "DeadLetterFilter",
    "name_stage": "name_component",
    "NotAcceptedError": "OutputNotWrittenError",
    "NotExactError": "InexactPipelineError",
    "NotProvenError": "UnprovenEmissionError",
    "OtherFormatError": "FormatVersionError",
    "PackedOutcomes": "OutcomeBatch",
    "patience_secs": "outage_timeout_secs",
    "pending_by_stage": "pending_by_component",
    "PendingStage": "PendingComponent",
    "poll_packed": "poll_batches",
    "RefusedError": "RowsRefusedError",
    "RootRecord": "LedgerRoot",
    "rotator_share": "a rotator for each tenant",
    "run_messages": "run_tracked",
    "say_done_until": "completed_offsets",
    "settle_secs": "batch_wait_secs",
    "stop_if_all_fail": "stop_if_broken",
    "StreamOptions": "the options of acker_redis/spark/runs/options.py",
    "take_letters": "claim_replays",
    "TakeLetters": "ReplayLoader",
    "TokenReusedError": "IdempotencyKeyReusedError",
    "write_source": "write_data_source",
    "write_with": "write_dataframe",
}
"""Identifiers, as whole words -> what stands in their place."""

MODULES = {
    f"acker_redis.{old}": f"acker_redis.{new}"
    for old, new in {
        "abandon": "ops.abandon_run",
        "apps": "store.apps",
        "calls": "client.script_calls",
        "config": "model.config",
        "connection": "client.connection",
        "consumer": "ledger.outcomes.consumer",
        "dead_letters": "store.dead_letters",
        "delivery": "ledger.outcomes.delivery",
        "doctor": "ops.doctor",
        "driver_errors": "client.error_mapping",
        "emitter": "spout.emission_thread",
        "entries": "ledger.outcomes.outcome",
        "evict": "ops.delete_app",
        "health": "ops.rotation_check",
        "inspection": "ledger.inspection",
        "isolation": "spout.poison_search",
        "keys": "model.keys",
        "lanes": "store.lane_leases",
        "limits": "store.limits",
        "metrics": "ops.metrics",
        "cli.commands": "cli.program",
        "cli.inspect": "cli.observe",
        "client.backoff": "outages",
        "ledger.expiry": "ledger.rotation",
        "ledger.outcomes.decoding": "ledger.outcomes.outcome",
        "ledger.updates": "ledger.ledger",
        "nodes": "client.cluster",
        "offsets": "spout.offset_file",
        "otel": "ops.tracing",
        "overview": "ops.dashboard",
        "payloads": "store.payloads",
        "replaying": "spout.dead_letter_replay",
        "rights": "ops.permissions",
        "rotation": "ledger.rotation",
        "rotator": "ops.rotator",
        "scripts": "client.scripts",
        "server": "testing.server",
        "shards": "ledger.shards",
        "spark.actions": "spark.runtime.jobs",
        "spark.columns": "spark.protocol.columns",
        "spark.edges": "spark.protocol.shares",
        "spark.emitting": "spark.emission.runner",
        "spark.faults": "spark.runtime.reruns",
        "spark.form": "spark.proof.equation",
        "spark.java": "spark.runtime.jvm",
        "spark.messages": "spark.emission.messages",
        "spark.meters": "spark.proof.meters",
        "spark.park": "spark.streaming.parking.parking_location",
        "spark.query": "spark.streaming.query",
        "spark.reach": "spark.runtime.executor_check",
        "spark.run": "spark.runs.dataframe",
        "spark.runs.callbacks": "spark.runs.callback_retries",
        "spark.stream": "spark.streaming.tracked_batches",
        "spark.transport": "spark.protocol.anchor_codec",
        "spout.emitter": "spout.emission_thread",
        "spout.marks": "spout.emission_marks",
        "spout_loop": "spout.loop",
        "spout_state": "spout.state",
        "turns": "no module",
        "watch": "spout.watchdog",
    }.items()
}

PATTERNS = {
    r"(?<![.\w])OutOfMemoryError\b": "ServerOutOfMemoryError; Redis's and Java's by their full names",
    r"\backer-redis (--\S+ )*evict\b": "acker-redis delete-app",
    r"\bAcker\.attach\b": "Acker.open_existing",
    r"\bdelete_app\.(evict|survey)\b": "delete_app.delete, delete_app.preview",
    r"--by-stage\b": "--by-component",
    r"(?<![\w-])--stage\b": "--component",
    r"\backer\.stage\b": "acker.component",
    r"}:stages\b": "}:components",
    r":fence:": ":dedup:",
    r"}:until:": "}:completed_offsets:",
    r"\blua/(dashboard|stuck|slow|root|dead|exporter)\.lua": "lua/reports/, or `acker-redis script`",
    r"\bcheckpoint\([^)]*\breliable\s*=": "checkpoint or local_checkpoint",
    r"\bform\s*=\s*[\"'](binary|json|array)[\"']": "encoding=",
    r"(?<![\w.])park=(?!=)": "parking_location=",
    r"\b(DeadLetterFilter|read_dead_letters)\([^)]*\b(since|until)_ms\b": "since= and until= with a datetime",
    r"(?<![\w.])Offsets\(": "OffsetFile(",
}
"""Regular expressions -> what stands in their place."""

_WORD = re.compile(r"[\w-]+")
_MODULE = re.compile(r"(?<![\"'])\backer_redis(?:\.\w+)+")  # with a quote before, it is the name of a logger

_PATH = re.compile(r"(?<![\w/.-])(?:acker_redis/)?\w+(?:/\w+)*")
"""A module as a path, also below `acker_redis/`, as drawings have it."""


def retired_in(text: str) -> list[tuple[int, str]]:
    """Line number and text of each retired name, with the new one."""
    retired = [(match, new) for pattern, new in PATTERNS.items() for match in re.finditer(pattern, text)] + [
        (match, NAMES[match[0]]) for match in _WORD.finditer(text) if match[0] in NAMES
    ]
    for match in _MODULE.finditer(text):
        parts = match[0].split(".")
        retired += [(match, MODULES[name]) for end in (2, 3) if (name := ".".join(parts[:end])) in MODULES][:1]
    for match in _PATH.finditer(text):
        parts = match[0].split("/")
        if "/" in match[0]:
            parts = parts if parts[0] == "acker_redis" else ["acker_redis", *parts]
            ends = (2, 3) if match[0].startswith("acker_redis/") else (3,)  # a single word may be anything
            retired += [(match, MODULES[name]) for end in ends if (name := ".".join(parts[:end])) in MODULES][:1]
    return sorted({(text.count("\n", 0, match.start()) + 1, f"{match[0].strip()} -> {new}") for match, new in retired})


def test_retired_names_are_in_no_file() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *PLACES], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    lines = []
    for name in filter(None, listed.stdout.split("\0")):
        if name.startswith(EXEMPT):
            continue
        try:
            text = (ROOT / name).read_text(encoding="utf-8")
        except (UnicodeDecodeError, FileNotFoundError):  # an image, or a file that is being removed
            continue
        lines += [f"{name}:{number}: {retired}" for number, retired in retired_in(text)]
    assert not lines, "\n".join(["retired names:", *lines])


@pytest.mark.parametrize(
    "line",
    [
        "acker.poll_packed()",
        "import acker_redis.driver_errors",
        "from acker_redis.spark.edges import MASK",
        "ops/rotator ──► ledger/expiry ──► lua/scripts/rotate.lua",
        "`acker_redis/driver_errors.py` maps errors",
        "raise OutOfMemoryError",
        "`acker-redis evict --app orders`",
        "row['_edge']",
        "Acker.attach(url)",
        "acker:{orders}:stages",
        'tracker.export(rows, form="binary")',
        "tracker.checkpoint(rows, reliable=True)",
        "TrackedBatches(pipeline, park='/tmp')",
        "redis-cli --eval lua/stuck.lua",
        "offsets=Offsets('p.json')",
        "DeadLetterFilter(since_ms=5)",
    ],
)
def test_retired_name_is_noticed(line: str) -> None:
    assert retired_in(line)


@pytest.mark.parametrize(
    "line",
    [
        "raise RowFailedError",
        "redis.exceptions.OutOfMemoryError",
        "java.lang.OutOfMemoryError",
        "ServerOutOfMemoryError",
        "from acker_redis.spark.sql_names import X",
        "acker_redis.spout.offset_file",
        "acker_redis.Acker.dead_letters.read",
        "lua/reports/dashboard.lua",
        "ops/rotator ──► ledger/rotation",
        "tests/ledger/expiry.py",
        "OffsetFile('p.json')",
        "_edges = 3",
        "paused.since_ms",
        "acker-redis delete-app --app orders",
    ],
)
def test_name_in_use_is_allowed(line: str) -> None:
    assert not retired_in(line)
