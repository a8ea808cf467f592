"""Every header of lua/ says what its body does, and every Python call passes what the header asks for."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import fakeredis
import numpy as np
import pytest
import redis

from acker_redis import Acker, AckerConfig, Limits
from acker_redis.acker import app_of
from acker_redis.client import function_library, scripts
from acker_redis.client.client import Client
from acker_redis.errors import ScriptFailedError
from acker_redis.model import keys, types
from acker_redis.model.keys import ShardKeys
from acker_redis.store import decided_letters
from acker_redis.store.dead_letter import DeadLetter
from acker_redis.store.decided_letters import Decision
from acker_redis.store.letter_expiry import LetterExpiry
from acker_redis.store.topology_state import TopologyState
from tests.support.servers import required

FOLDER = Path(str(scripts.root()))
FILES = {path.stem: path for path in sorted(FOLDER.glob(scripts.script_path("*")))}
REPORT_FILES = {path.stem: path for path in sorted(FOLDER.glob(scripts.report_path("*")))}
LIBRARY = {f"lib/{path.stem}": path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("lib/*.lua"))}
SLOTS, LANES = 100, 10_000
"""Sizes of the ring and of the lanes that no sum of others equals by chance."""

WRITES = {
    "HSET", "HDEL", "HINCRBY", "SADD", "ZADD", "ZREM", "UNLINK", "DEL", "XADD", "XACK", "XDEL", "XGROUP", "XTRIM", "SET",
    "BITOP", "PEXPIRE", "PERSIST", "SREM",
}  # fmt: skip
READS = {
    "GET", "HGET", "HGETALL", "HLEN", "HMGET", "HSCAN", "EXISTS", "SISMEMBER", "SMISMEMBER", "SMEMBERS", "ZRANGE", "ZCARD",
    "TIME", "XLEN", "XPENDING", "XRANGE", "ZSCORE",
}  # fmt: skip
REPORTS_READ = {"INFO", "CLUSTER", "SCAN", "XINFO", "XREVRANGE", "MEMORY", "HEXISTS"}
TYPES = {"H": "HASH", "Z": "ZSET", "S": "SET", "X": "STREAM", "GET": "STRING", "SET": "STRING"}
"""Types by command, or by the first letter of the others."""
STATE = keys.StateKeys("app", "TOPOLOGY")
STATE_KEYS = {
    name: key.replace("TOPOLOGY", "<topology>").replace("TASK", "<component>:<index>").replace("ID", "<id>")
    for name, key in {
        "state": STATE.state,
        "sizes": STATE.sizes,
        "values": STATE.values("TASK"),
        "attempts": STATE.attempts("TASK"),
        "attempt": STATE.attempt("TASK", "ID"),
    }.items()
}
"""Keys of a topology's state, as headers have them."""
OF_APP = ("config", "components", "dead_letters", "replay_takers", "expired_letters", "letter_logs", "runs")
"""Keys of which an app has one each."""
GLOBALS = {
    "redis", "KEYS", "ARGV", "bit", "struct", "string", "table", "math", "unpack", "tonumber", "tostring", "ipairs", "next",
    "pairs", "type",
}  # fmt: skip


def body(name: str) -> str:
    """A script without header, include lines and comments."""
    text = re.sub(r"\A#!lua.*?\n--\[\[\n.*?\n\]\]\n", "", FILES[name].read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.sub(r"--.*", "", text)


def whole(name: str) -> str:
    """A script with its includes, without any comment."""
    text = re.sub(r"\A#!lua.*?\n--\[\[\n.*?\n\]\]\n", "", scripts.load(name).source, flags=re.DOTALL)
    return re.sub(r"--.*", "", text)


def bound(text: str, array: str) -> list[str]:
    """The locals that the slots of KEYS or ARGV are bound to, in slot order."""
    match = re.search(rf"^local ([\w, ]+) = ({array}\[\d+\](?:, {array}\[\d+\])*)$", text, re.MULTILINE)
    if not match:
        return []
    numbers = [int(number) for number in re.findall(rf"{array}\[(\d+)\]", match[2])]
    assert numbers == list(range(1, len(numbers) + 1))
    return match[1].split(", ")


def starts(script: scripts.Script) -> dict[str, int]:
    """Where each group of keys begins, as the header has it."""
    at, found = 1, {}
    for slot in script.keys:
        if slot.many:
            found[slot.name] = at
            at += SLOTS if slot.name in ("bucket", "dedup") else LANES
        else:
            at += 1
    return found


@pytest.fixture(params=scripts.NAMES)
def script(request: pytest.FixtureRequest) -> scripts.Script:
    return scripts.load(request.param)


def test_script_names_match_the_lua_files() -> None:
    assert sorted(scripts.NAMES) == sorted(FILES)
    assert sorted(scripts.REPORTS) == sorted(REPORT_FILES)


@pytest.mark.parametrize("name", scripts.REPORTS)
def test_a_report_says_how_it_is_asked_for_and_only_reads(name: str, tmp_path: Path) -> None:
    text = scripts.report(name)
    header = re.match(rf"-- {name} of acker-redis \S+\n--\[\[\n{name}: (.*?)\n\]\]\n", text, re.DOTALL)
    assert header and f"redis-cli --raw FCALL_RO {function_library.reports().functions[name]} 0" in header[1]
    assert re.findall(r"^(KEYS|ARGV|Returns)$", header[1], re.MULTILINE) == ["ARGV", "Returns"]
    code = re.sub(r"--.*", "", text[header.end() :])
    assert set(re.findall(r"(?:ask|redis\.p?call)\('([A-Z]+)'", code)) <= READS | REPORTS_READ
    assert set(re.findall(r"redis\.(\w+)\(", code)) <= {"call", "pcall"}
    assert not re.search(r"\bKEYS\b", code)
    assert "@include" not in text
    shown = " ".join(re.findall(r"'([^'\n]*)'", (FOLDER / "reports" / f"{name}.lua").read_text()))
    assert "cohort" not in shown, "a word of the implementation that no page explains"
    luajit = shutil.which("luajit")
    if luajit is not None:  # which CI requires, see below
        path = tmp_path / f"{name}.lua"
        path.write_text(text)
        listing = subprocess.run([luajit, "-bl", str(path)], capture_output=True, check=True).stdout.decode(
            errors="replace"
        )
        assert set(re.findall(r'GGET.*"(\w+)"', listing)) <= GLOBALS | {"cjson", "next", "pcall"}
        assert "GSET" not in listing


def test_the_reports_have_the_rule_of_python_for_who_does_not_rotate() -> None:
    (numbers,) = re.findall(r"^local LATE_TICKS, LATE_MS = (\d+), (\d+)$", LIBRARY["lib/lateness"], re.MULTILINE)
    assert tuple(map(int, numbers)) == (types.LATE_TICKS, types.LATE_MS)
    users = [name for name in scripts.REPORTS if re.search(r"\bis_rotation_late\(", REPORT_FILES[name].read_text())]
    assert users == ["dashboard"]


def test_script_header_is_complete(script: scripts.Script) -> None:
    text = FILES[script.name].read_text(encoding="utf-8")
    sections = re.findall(r"^(KEYS|ARGV|Returns|Errors)$", text, re.MULTILINE)
    assert sections == sorted(set(sections), key=("KEYS", "ARGV", "Returns", "Errors").index)
    assert sections[:3] == ["KEYS", "ARGV", "Returns"]
    assert script.purpose.startswith(f"{script.name}: ")
    assert script.keys and script.args and script.returns


def test_keys_are_bound_in_the_order_of_the_header(script: scripts.Script) -> None:
    single = [slot.name for slot in script.keys if not slot.many]
    assert [slot.name for slot in script.keys][: len(single)] == single  # groups come last
    assert bound(body(script.name), "KEYS") == single
    for name in single:
        assert len(re.findall(rf"\b{name}\b", body(script.name))) > 1, f"{name} is never used"


def test_key_groups_start_at_positions_of_the_header(script: scripts.Script) -> None:
    text, groups = body(script.name), starts(script)
    sizes = {"slots": SLOTS, "lanes": LANES}
    for names, values in re.findall(r"^ *local ([\w, ]+) = ([\w., +]+)$", text, re.MULTILINE):
        for name, value in zip(names.split(", "), values.split(", "), strict=False):
            if name in groups:
                terms = [re.sub(r"^shard\.", "", term.strip()) for term in value.split("+")]
                found = sum(int(term) if term.isdigit() else {**groups, **sizes}[term] for term in terms)
                assert found == groups[name], f"{name} = {value}"
    used = set[str]()
    loop = re.search(r"for (\w+) = (\d+), #KEYS do", text)
    for index in re.findall(r"KEYS\[([^\]]+)\]", text.replace("\n", " ")):
        first, *more = index.split(" + ", 1)
        if loop and index == loop[1]:
            assert int(loop[2]) == min(groups.values())
            used |= groups.keys()
        elif first.isdigit() and not more:
            assert int(first) <= len(script.keys) - len(groups)
        elif first.isdigit():
            assert int(first) in groups.values(), f"KEYS[{index}]"
            used |= {name for name, start in groups.items() if start == int(first)}
        else:
            assert first in groups, f"KEYS[{index}]"
            used.add(first)
    for function, size in (("dedup_status", "slots"), ("write_acked", "lanes"), ("write_expired", "lanes")):
        for name, given in re.findall(rf"{function}\((\w+), shard\.(\w+)", text):
            assert (name in groups, given) == (True, size)
            used.add(name)
    assert used == groups.keys()


def test_keys_have_the_type_the_commands_want(script: scripts.Script) -> None:
    types = {slot.name: slot.type for slot in script.keys}
    at = {start: name for name, start in starts(script).items()}
    calls = re.findall(r"redis\.p?call\('([A-Z]+)', (?:'[A-Z]+', )?(?:KEYS\[(\w+)[^\]]*\]|(\w+))", body(script.name))
    for command, group, single in calls:
        name = at.get(int(group), "") if group.isdigit() else group or single
        if name in types and command not in ("UNLINK", "DEL", "EXISTS", "PEXPIRE", "PERSIST"):
            assert types[name] == (TYPES.get(command) or TYPES[command[0]]), f"{command} {name}"


def test_key_patterns_of_header_match_python_keys(script: scripts.Script) -> None:
    shard: Any = ShardKeys("app", "shard", 2, 1)  # type: ignore[arg-type]
    for slot in script.keys:
        if slot.name in OF_APP:
            assert slot.patterns == (getattr(keys, slot.name)("app"),)
            continue
        if script.name.endswith("_state"):
            assert slot.patterns == (STATE_KEYS[slot.name],)
            continue
        if slot.name == "replays":
            assert slot.patterns == (keys.replays("app", "<spout_id>"),)
            continue
        if slot.name == "lease":
            assert slot.patterns == ("acker:{app}:lane:<lane>",)
            assert keys.lane("app", 7) == "acker:{app}:lane:7"
            continue
        if slot.name == "turn":
            assert slot.patterns == ("acker:{app}:turn:<run>:<number>",)
            assert keys.turn("app", "run", 7) == "acker:{app}:turn:run:7"
            continue
        names = ("acked", "failed") if slot.name == "outcomes" else (slot.name,)
        spelled = []
        for name in names:
            key = getattr(shard, name)
            lane_or_slot = {"bucket": "<slot>", "dedup": "<slot>", "scratch": "<side>"}.get(name, "<lane>")
            spelled.append(key if isinstance(key, str) else key[0].removesuffix("0") + lane_or_slot)
            assert slot.many == (slot.name != "outcomes" and not isinstance(key, str))
        assert list(slot.patterns) == spelled


def test_arguments_are_bound_in_the_order_of_the_header(script: scripts.Script) -> None:
    text = body(script.name)
    single = [name for name in script.args if not name.endswith("*")]
    assert bound(text, "ARGV") == single
    for name in single:
        assert len(re.findall(rf"\b{name}\b", text)) > 1, f"{name} is never used"
    rest = re.findall(r"unpack\(ARGV(?:, (\d+))?\)", text)
    if script.args[-1].endswith("*"):
        assert {int(start or 1) for start in rest} == {len(script.args)}
    else:
        assert not rest
    outside = text.replace(next(iter(re.findall(r"^local .* = ARGV\[.*$", text, re.MULTILINE)), ""), "")
    assert not re.search(r"ARGV\[", outside)


def test_result_codes_are_named_in_the_body(script: scripts.Script) -> None:
    named: dict[str, int] = {}
    for names, values in re.findall(r"^local ([A-Z_, ]+) = ([\d, ]+)$", whole(script.name), re.MULTILINE):
        named.update(zip(names.split(", "), map(int, values.split(", ")), strict=True))
    assert script.codes.items() <= named.items()
    for code in script.codes:
        assert len(re.findall(rf"\b{code}\b", whole(script.name))) > 1, f"{code} is never used"


def test_errors_of_header_are_those_raised_by_the_body(script: scripts.Script) -> None:
    text = FILES[script.name].read_text(encoding="utf-8")
    header = re.search(r"^Errors\n((?:  .*\n)+)\]\]", text, re.MULTILINE)
    declared = {line.split()[0] for line in header[1].splitlines()} if header else set()
    raised = set(re.findall(r"redis\.error_reply\('([A-Z]+) ", body(script.name)))
    if "return lost()" in body(script.name):
        raised |= set(re.findall(r"redis\.error_reply\('([A-Z]+) ", LIBRARY["lib/shard"]))
    assert declared == raised


def test_a_script_of_a_shard_checks_the_generation_first(script: scripts.Script) -> None:
    without = (
        "open",
        "configure",
        "component",
        "claim_bin",
        "close_turn",
        "expire_letters",
        "store_letters",
        "hold_lane",
    )
    if script.name in without or script.name.endswith("_state"):
        return
    assert script.args[0] == "generation"
    first_call, _, _ = body(script.name).partition("return lost() end")
    assert "open_shard(meta, generation)" in first_call
    assert "redis." not in first_call


def test_script_flags_match_its_commands(script: scripts.Script) -> None:
    commands = set(re.findall(r"redis\.p?call\('([A-Z]+)'", whole(script.name)))
    if "return lost()" not in body(script.name):
        assert "open_shard" not in whole(script.name)
    own = set(re.findall(r"redis\.p?call\('([A-Z]+)'", body(script.name)))
    assert commands <= WRITES | READS
    if not own & WRITES:
        assert script.flags == ("no-writes",)
    elif script.name in ("init", "write_state", "store_letters"):
        assert (
            script.flags == ()
        )  # new roots, letters and changes are refused above maxmemory; everything else must go on
    else:
        assert script.flags == ("allow-oom",)


def test_allow_oom_script_for_redis_62_starts_with_hdel(script: scripts.Script) -> None:
    text = script.text_for(shebang=False).decode()
    assert text.startswith("redis.call('HDEL', KEYS[1], '')\n") == ("allow-oom" in script.flags)
    assert script.keys[0].type == "HASH"
    assert script.text_for(shebang=True).startswith(b"#!lua")


def test_library_calls_pass_keys_and_args_of_the_header() -> None:
    calls: list[scripts.Call] = []

    class Recording(Client):
        def run_each(self, sent: Any) -> Any:
            calls.extend(sent)
            return super().run_each(sent)

    config = AckerConfig(app="contract", shards=2, num_buckets=4, lanes=3)
    acker = Acker(Recording(fakeredis.FakeRedis()), config)
    with acker.batch(idempotency_key="idempotency_key") as batch:
        batch.init_many(np.arange(1, 9), np.arange(1, 9), 7)
        batch.ack(1, 1, component="split")
        batch.fail(2, reason="why")
        batch.ack_many([3, 4], [1, 1], record_keys=[1, 2])
    acker.reset_timeout(3)
    app_of(acker).ledger.settle(np.arange(9, 12).astype(np.uint64), np.zeros(3, np.uint64), 7, 0, "settle")
    acker.confirm(acker.poll())
    acker.stats()
    acker.inspect(3)
    letter = DeadLetter(3, "run", 5, "failed", payload=b"message")
    decided = [(letter, Decision("orders", 1, "a/0", 3))]
    decided_letters.add(app_of(acker).client, "contract", decided)
    lease = app_of(acker).lease(lane=0, run_id="run")
    lease.acquire()
    lease.release()
    turn = app_of(acker).turn("run", 1)
    turn.claim(0, b"digest")
    turn.close()
    state = TopologyState(app_of(acker).client, "contract", "words")
    epoch, _ = state.open({"count": "shape"})
    written = state.turn(epoch, 1).write("count:0", "one", {b"a": b"1"})
    state.turn(epoch, 1).commit([written])
    state.turn(epoch, 2).load("count:0")
    state.turn(epoch, 2).read("count:0", [b"a"])
    state.turn(epoch, 2).close()
    state.end(epoch, 2)
    epoch, _ = state.open({"count": "shape"})
    state.forget_tasks(epoch, lambda task: task == "count:0")
    state.turn(epoch, 1).commit([state.turn(epoch, 1).write("count:1", "one", {b"a": b"1"})])
    state.empty()
    acker.admin.set_limits(Limits(dead_letter_days=1))
    LetterExpiry(app_of(acker).client, "contract").step()
    for _ in range(4):
        acker.admin.rotate(force=True)
    assert {call.script.name for call in calls} == set(scripts.NAMES)
    groups = {
        "bucket": 5, "dedup": 5, "acked": 3, "failed": 3, "scratch": 2, "attempt": 1, "values": 1, "attempts": 1, "replays": 1,
    }  # fmt: skip
    for call in calls:
        assert len(call.keys) == sum(groups[slot.name] if slot.many else 1 for slot in call.script.keys)
        if call.script.args[-1].endswith("*"):
            assert len(call.args) >= len(call.script.args)
        else:
            assert len(call.args) == len(call.script.args)


@pytest.mark.parametrize("name", LIBRARY)
def test_lua_library_file_includes_the_files_it_uses(name: str) -> None:
    defined = {
        word: other
        for other, text in LIBRARY.items()
        if other != "lib/report"  # of the reports alone, and long: locals of others have the same names
        for words in re.findall(r"^local (?:function )?([\w, ]+)", text, re.MULTILINE)
        for word in words.split(", ")
    }
    reached, todo = set[str](), [name]
    while todo:
        current = todo.pop()
        reached.add(current)
        todo += re.findall(r'^--- @include "(.*)"$', LIBRARY[current], re.MULTILINE)
    words = set(re.findall(r"(?<![.\w])\w+\b", re.sub(r"--.*|'[^']*'", "", LIBRARY[name])))
    assert {defined[word] for word in words & defined.keys()} <= reached


def test_a_script_includes_each_file_it_uses_once(script: scripts.Script) -> None:
    for name, text in LIBRARY.items():
        code = re.sub(r"^---? .*\n", "", text, flags=re.MULTILINE).strip()
        assert script.source.count(code) <= 1, f"{name} is included twice"
    assert not re.search(r'@include "', script.source)


@pytest.fixture
def lua_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lua/ of the test's own, with a script `ack` that includes lib/one."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "scripts").mkdir()
    header = "#!lua\n--[[\nack: test.\n\nKEYS\n  meta  HASH  x\nARGV\n  a  b\nReturns\n  c\n]]\n"
    (tmp_path / "scripts" / "ack.lua").write_text(header + '--- @include "lib/one"\n--- @include "lib/two"\nreturn 1\n')
    monkeypatch.setattr(scripts, "root", lambda: tmp_path)
    return tmp_path


def load_uncached() -> scripts.Script:
    return scripts.load.__wrapped__("ack")


def test_an_include_of_an_include_is_resolved_once(lua_folder: Path) -> None:
    (lua_folder / "lib" / "one.lua").write_text('--- @include "lib/two"\nlocal one = two\n')
    (lua_folder / "lib" / "two.lua").write_text("local two = 2\n")
    assert load_uncached().source.endswith("]]\nlocal two = 2\nlocal one = two\nreturn 1\n")


def test_a_missing_include_raises(lua_folder: Path) -> None:
    with pytest.raises(ScriptFailedError, match=r"lib/one\.lua is missing"):
        load_uncached()


def test_a_circular_include_raises(lua_folder: Path) -> None:
    (lua_folder / "lib" / "one.lua").write_text('--- @include "lib/two"\n')
    (lua_folder / "lib" / "two.lua").write_text('--- @include "lib/one"\n')
    with pytest.raises(ScriptFailedError, match=r"Circular include.*one\.lua -> lib/two\.lua -> lib/one\.lua"):
        load_uncached()


def test_a_file_without_header_raises(lua_folder: Path) -> None:
    (lua_folder / "scripts" / "ack.lua").write_text("return 1\n")
    with pytest.raises(ScriptFailedError, match="header"):
        load_uncached()


def test_a_script_reads_no_unknown_global_and_writes_none(script: scripts.Script, tmp_path: Path) -> None:
    luajit = required("luajit", "luajit")  # SCRIPT LOAD checks the syntax as well
    path = tmp_path / f"{script.name}.lua"
    path.write_bytes(script.text_for(shebang=False))
    listing = subprocess.run([luajit, "-bl", str(path)], capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r'GGET.*"(\w+)"', listing)) <= GLOBALS
    assert "GSET" not in listing


def test_every_script_loads_on_every_server(real_url: str) -> None:
    client = redis.Redis.from_url(real_url)
    knows_shebang = int(client.info("server")["redis_version"].split(".")[0]) >= 7
    for name in scripts.NAMES:
        text = scripts.load(name).text_for(shebang=knows_shebang)
        assert client.script_load(text) == scripts.sha1(text)
    client.close()
