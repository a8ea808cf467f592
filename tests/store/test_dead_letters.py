"""The dead-letter stream: bounded letters, read page by page, whatever else stands in it."""

import json
from itertools import islice
from typing import Any

import pytest
from typer.testing import CliRunner

from acker_redis import Acker, BadBatchError, DeadLetter, FormatVersionError
from acker_redis.acker import app_of
from acker_redis.cli import app
from acker_redis.client.client import Client
from acker_redis.model.types import MAX_PAYLOAD_BYTES
from acker_redis.store.dead_letter import DamagedLetter
from acker_redis.store.dead_letters import TEXT_CHARS

KEY = "acker:{test}:dead_letters"


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, arguments)


def letters(count: int, payload: bytes = b"x") -> list[DeadLetter]:
    return [DeadLetter(number, "run", 3, "failed", "parse", "bad", payload) for number in range(count)]


def test_dead_letter_with_a_too_long_payload_writes_nothing(source, connect) -> None:
    acker: Acker = connect()
    longest = b"x" * MAX_PAYLOAD_BYTES
    with pytest.raises(BadBatchError, match=r"dead letter 0 has 1048577 bytes, but at most 1048576 are kept"):
        acker.dead_letters.add([*letters(2), *letters(1, longest + b"x")])
    assert acker.dead_letters.count() == 0
    acker.dead_letters.add(letters(3, longest))
    assert [letter.payload == longest for letter in acker.dead_letters.read()] == [True] * 3


def test_too_long_kept_payload_is_refused_and_writes_nothing(source, connect) -> None:
    payloads = app_of(connect()).payloads("run")
    with pytest.raises(BadBatchError, match=r"message 2 has 1048577 bytes"):
        payloads.put([(1, b"x"), (2, b"x" * (MAX_PAYLOAD_BYTES + 1))])
    assert payloads.get([1, 2]) == [None, None]
    payloads.put([(2, b"x" * MAX_PAYLOAD_BYTES)])


def test_dead_letter_texts_are_truncated(source, connect) -> None:
    acker: Acker = connect()
    long = "ä" * 100_000
    acker.dead_letters.add([DeadLetter(1, long, 1, long, long, long)])
    (letter,) = acker.dead_letters.read()
    assert {letter.run_id, letter.reason, letter.last_component, letter.detail} == {"ä" * TEXT_CHARS}


def damage(raw: Any) -> list[bytes]:
    """Entries that are no dead letters, before, between and behind two that are."""
    entry_ids = [raw.xadd(KEY, {"theirs": b"\xff"})]
    raw.xadd(KEY, {"format": 2, "message_id": 1, "attempts": 2})
    entry_ids.append(raw.xadd(KEY, {"format": 2, "message_id": "one", "attempts": 2}))
    entry_ids.append(raw.xadd(KEY, {"format": 2, "message_id": 1}))
    raw.xadd(KEY, {"format": 2, "message_id": 2, "attempts": 2, "reason": b"\xff"})
    return [*entry_ids, raw.xadd(KEY, {b"format": 2, b"message_id": b"\xff", b"attempts": b""})]


def test_damaged_entries_do_not_block_reading(source, raw, connect, caplog) -> None:
    acker: Acker = connect()
    entry_ids = [entry_id.decode() for entry_id in damage(raw)]
    assert [letter.message_id for letter in acker.dead_letters.read()] == [1, 2]
    assert [letter.message_id for letter in acker.dead_letters.read(count=1)] == [1]
    assert (
        f"damaged dead letter skipped key={KEY} entry_id={entry_ids[0]} reason='field message_id is missing'"
        in caplog.text
    )
    found = list(acker.dead_letters.scan())
    damaged = [letter for letter in found if isinstance(letter, DamagedLetter)]
    assert len(found) == 6
    assert [letter.entry_id for letter in damaged] == entry_ids
    assert [letter.why for letter in damaged] == [
        "field message_id is missing",
        "message_id, attempts, spout_id or first_secs is not a number",
        "field attempts is missing",
        "message_id, attempts, spout_id or first_secs is not a number",
    ]
    assert damaged[0].fields == {b"theirs": b"\xff"}
    assert acker.dead_letters.delete(letter.entry_id for letter in damaged) == 4
    assert len(list(acker.dead_letters.scan())) == 2


def test_damaged_entry_is_printed_with_its_entry_id(url, raw, connect) -> None:
    connect()
    entry_ids = [entry_id.decode() for entry_id in damage(raw)]
    result = run("dead-letters", "--app", "test", "--redis", url)
    assert result.exit_code == 0, result.exception
    for entry_id in entry_ids:
        assert f"entry_id  {entry_id}" in result.stdout
    assert "damaged   field message_id is missing" in result.stdout
    result = run("dead-letters", "--app", "test", "--redis", url, "--json", "--delete")
    shown = [json.loads(line) for line in result.stdout.splitlines()]
    assert [one["entry_id"] for one in shown if "damaged" in one] == entry_ids
    assert [one["message_id"] for one in shown if "damaged" not in one] == [1, 2]
    assert "6 printed and deleted, 0 in the stream" in result.stderr


@pytest.mark.parametrize(
    "fields",
    [
        {"message_id": 1, "run_id": "run", "attempts": 2, "reason": "failed", "last_stage": "parse", "task": 0},
        {"format": 3, "message": 1},
    ],
    ids=["1", "3"],
)
def test_dead_letters_of_another_format_are_refused_and_left_unchanged(
    source, raw, connect, fields: dict[str, Any]
) -> None:
    acker: Acker = connect()
    acker.dead_letters.add(letters(1))
    entry_id = raw.xadd(KEY, fields).decode()
    version = fields.get("format", 1)
    sentence = rf"Entry {entry_id} of .* holds a dead letter of format {version}, but .* Then delete them"
    for read in (
        acker.dead_letters.read,
        lambda: list(acker.dead_letters.scan()),
        acker.dead_letters.survey,
        acker.dead_letters.replay,
    ):
        with pytest.raises(FormatVersionError, match=sentence):
            read()
    assert acker.dead_letters.get([entry_id]) == [None]  # a replay that was asked for goes on with the others
    assert raw.xlen(KEY) == 2
    assert acker.dead_letters.delete([entry_id]) == 1
    assert [letter.message_id for letter in acker.dead_letters.read()] == [0]


def test_stream_of_format_1_is_refused_and_left_unchanged(source, raw, connect) -> None:
    acker: Acker = connect()
    old = "acker:{test}:dead"
    raw.xadd(old, {"message_id": 1, "run_id": "run", "attempts": 2, "reason": "failed", "last_stage": "parse"})
    for read in (acker.dead_letters.read, acker.dead_letters.count, acker.dead_letters.survey):
        with pytest.raises(
            FormatVersionError, match=r":dead holds a dead letter of format 1, .* delete-app --app test"
        ):
            read()
    assert raw.xlen(old) == 1
    raw.delete(old)
    assert acker.dead_letters.read() == []


@pytest.fixture
def pages(monkeypatch) -> list[int]:
    """How many entries each read asks for."""
    asked: list[int] = []
    pipeline = Client.pipeline

    def noted(self: Client, commands: Any, **options: Any) -> Any:
        asked.extend(command[-1] for command in commands if command[0] == "XRANGE")
        return pipeline(self, commands, **options)

    monkeypatch.setattr(Client, "pipeline", noted)
    return asked


def test_scan_reads_letters_in_growing_chunks(source, connect, pages) -> None:
    acker: Acker = connect()
    acker.dead_letters.add(letters(3_000))
    found = list(acker.dead_letters.scan())
    assert [letter.message_id for letter in found if isinstance(letter, DeadLetter)] == list(range(3_000))
    assert len({letter.entry_id for letter in found}) == 3_000
    assert pages[:4] == [16, 64, 256, 1_000]
    assert max(pages) == 1_000
    half = found[1_499].entry_id
    assert [letter.entry_id for letter in acker.dead_letters.scan(half)] == [one.entry_id for one in found[1_500:]]
    assert [letter.message_id for letter in acker.dead_letters.read(3, after=half)] == [1_500, 1_501, 1_502]


def test_scan_reads_long_letters_in_small_chunks(source, connect, pages) -> None:
    acker: Acker = connect()
    acker.dead_letters.add(letters(40, b"x" * (MAX_PAYLOAD_BYTES // 2)))
    assert len(list(acker.dead_letters.scan())) == 40
    assert max(pages) == 16
    assert set(pages[1:]) <= {1, 2}


def test_scan_yields_the_first_letter_before_reading_more(url, raw, connect, pages) -> None:
    acker: Acker = connect()
    acker.dead_letters.add(letters(3_000))
    (first,) = islice(acker.dead_letters.scan(), 1)
    assert (first.entry_id, pages) == (raw.xrange(KEY, count=1)[0][0].decode(), [16])


def test_dead_letters_command_prints_and_deletes_chunk_by_chunk(url, connect, pages) -> None:
    acker: Acker = connect()
    acker.dead_letters.add(letters(3_000))
    result = run("dead-letters", "--app", "test", "--redis", url, "--count", "2500", "--json", "--delete")
    assert [json.loads(line)["message_id"] for line in result.stdout.splitlines()] == list(range(2_500))
    assert "2500 printed and deleted, 500 in the stream" in result.stderr
    assert pages[0] == 16
    assert [letter.message_id for letter in acker.dead_letters.read(1)] == [2_500]


def test_replay_command_counts_letters_and_asks_for_confirmation(url, connect) -> None:
    acker: Acker = connect()
    acker.dead_letters.add([one._replace(replay="payload", spout_id=one.message_id % 2) for one in letters(5)])
    acker.dead_letters.add(letters(1))
    ask = ("dead-letters", "replay", "--app", "test", "--redis", url, "--text", "BAD")
    refused = CliRunner().invoke(app, ask, input="n\n")
    assert refused.exit_code == 1
    assert "6 letters, 5 of them can be replayed (3 by spout_id 0, 2 by spout_id 1)" in refused.stdout
    assert "1 letters can't be replayed from here" in refused.stderr
    assert "run_tracked(..., only_dead_letters=DeadLetterFilter(...))" in refused.stderr
    assert acker.dead_letters.replaying() == 0
    done = run(*ask, "--yes", "--rate", "1000")
    assert done.exit_code == 0, done.exception
    assert "5 letters will be replayed" in done.stdout
    assert [acker.dead_letters.replaying(spout_id) for spout_id in (0, 1)] == [3, 2]
    assert run(*ask, "--yes").exit_code == 0  # asked twice is asked once
    assert [acker.dead_letters.replaying(spout_id) for spout_id in (0, 1)] == [3, 2]


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (("--id", "9"), 1, "0 letters"),
        (("--rate", "0"), 2, "above 0"),
        (("--since", "2026-01-02", "--until", "2026-01-01"), 2, "not before"),
        (("--since", "yesterday"), 2, "such as 2026-01-31T20:00:00"),
    ],
)
def test_replay_command_without_match_or_with_bad_options_fails(
    url, connect, options: tuple[str, ...], status: int, said: str
) -> None:
    connect().dead_letters.add(letters(1))
    done = run("dead-letters", "replay", "--app", "test", "--redis", url, "--yes", *options)
    assert done.exit_code == status
    assert said in done.stdout + done.stderr


def test_dead_letters_command_filters_by_id_and_reason(url, connect) -> None:
    connect().dead_letters.add(letters(3))
    shown = run("dead-letters", "--app", "test", "--redis", url, "--id", "1", "--reason", "failed", "--json")
    assert [json.loads(line)["message_id"] for line in shown.stdout.splitlines()] == [1]
    assert "1 printed, 3 in the stream" in shown.stderr
