"""The commands of `acker-redis dead-letters`: `show` (the default) and `replay`."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from acker_redis.cli import help_pages, output
from acker_redis.cli.exit_status import UNHEALTHY, exit_on_error
from acker_redis.cli.options import (
    DEFAULT_URL,
    AsJson,
    Component,
    Messages,
    OneApp,
    Reason,
    Run,
    Since,
    Text,
    Until,
    Url,
    UrlFile,
    confirmed,
    connected,
    letter_filter,
)
from acker_redis.store.apps import stored_config
from acker_redis.store.dead_letter import EVERY_LETTER, DamagedLetter, DeadLetter, DeadLetterFilter
from acker_redis.store.dead_letters import DeadLetters

_LETTERS_PER_DELETE = 1000

_SELECTING = {
    "message_id": Messages,
    "run_id": Run,
    "reason": Reason,
    "component": Component,
    "text": Text,
    "since": Since,
    "until": Until,
}
"""Options that select letters, in the order of the parameters of `letter_filter`."""

app = typer.Typer(
    cls=help_pages.ShowsByDefault,
    rich_markup_mode=None,
    help="Print dead letters (`show`), which are messages whose attempts are exhausted, or request their replay (`replay`).",
)


def _selects_letters(command: Callable[..., None]) -> Callable[..., None]:
    """Replace a command's parameter `wanted` by the options of `_SELECTING`, and pass it the filter they describe."""

    @wraps(command)
    def run(**given: Any) -> None:
        selected = [given.pop(name) for name in _SELECTING]
        with exit_on_error():
            given["wanted"] = letter_filter(*selected)
        command(**given)

    by_name = inspect.Parameter.KEYWORD_ONLY
    options = [inspect.Parameter(name, by_name, default=None, annotation=option) for name, option in _SELECTING.items()]
    parameters = [
        option
        for own in inspect.signature(command).parameters.values()
        for option in (options if own.name == "wanted" else [own.replace(kind=by_name)])
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


@app.command()
@_selects_letters
def show(
    context: typer.Context,
    app_name: OneApp,
    redis: Url = DEFAULT_URL,
    redis_file: UrlFile = None,
    count: Annotated[int, typer.Option("--count", min=1, help="Print at most this many, the oldest first.")] = 100,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the letters after printing them.")] = False,
    wanted: DeadLetterFilter = EVERY_LETTER,
    as_json: AsJson = False,
) -> None:
    """Print dead letters, the oldest first. A dead letter is a message whose attempts are exhausted."""
    with exit_on_error(), _stream(context, redis, redis_file, app_name) as stream:
        letters = islice(stream.scan() if wanted == EVERY_LETTER else stream.find(wanted), count)
        printed = 0
        while part := _printed(islice(letters, _LETTERS_PER_DELETE), as_json):
            printed += len(part)
            if delete:
                stream.delete(part)
        left = stream.count()
        output.line(f"{printed} printed{' and deleted' if delete else ''}, {left} in the stream", err=True)


@app.command()
@_selects_letters
def replay(
    context: typer.Context,
    app_name: OneApp,
    redis: Url = DEFAULT_URL,
    redis_file: UrlFile = None,
    wanted: DeadLetterFilter = EVERY_LETTER,
    rate: Annotated[float | None, typer.Option("--rate", help="Request at most this many per second.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Skip the confirmation.")] = False,
) -> None:
    """Replay dead letters: the app's streams and topologies emit their messages again, with all attempts.

    A letter is deleted when its message is done.
    """
    if rate is not None and rate <= 0:
        raise typer.BadParameter(f"--rate={rate:g} is invalid. Use a number above 0.")
    with exit_on_error(), _stream(context, redis, redis_file, app_name) as stream:
        selected = stream.survey(wanted)
        output.line(
            f"{selected.letters} letters, {selected.replayable} of them can be replayed{_by_spout_id(selected.spout_ids)}"
        )
        if selected.letters > selected.replayable:
            output.line(
                f"{selected.letters - selected.replayable} letters can't be replayed from here. They are from a batch run "
                "that is over, stand for records that Kafka deleted unread, or were stored without their message: "
                "dead_letter_bytes, or a message of a topology that can't be pickled or has more than 1 MiB. Run the messages "
                "of a batch run from the source with run_tracked(..., only_dead_letters=DeadLetterFilter(...)), which deletes "
                'the letters. After output="whole", run all messages.',
                err=True,
            )
        if not selected.replayable:
            raise typer.Exit(UNHEALTHY)
        if not yes and not confirmed("Replay these?"):
            output.line("Nothing was requested.", err=True)
            raise typer.Exit(UNHEALTHY)
        with typer.progressbar(length=selected.replayable, label="requesting") as bar:
            requested = stream.replay(wanted, per_sec=rate, progress=bar.update)
        output.line(
            f"{requested} letters will be replayed. Each is deleted when its message is done. If its source no longer has "
            "the message, or has another one there, the letter stays, and the driver's log names it."
        )


@contextmanager
def _stream(context: typer.Context, redis: str, redis_file: Path | None, app_name: str) -> Iterator[DeadLetters]:
    """Open the dead letters of an app. They aren't in its shards, so they can be read even if shards are lost."""
    with connected(context, redis, redis_file) as client:
        stored_config(client, app_name)
        yield DeadLetters(client, app_name)


def _by_spout_id(spout_ids: dict[int, int]) -> str:
    """Return the number of letters per spout, if there are several spouts."""
    parts = [f"{count} by spout_id {spout_id}" for spout_id, count in spout_ids.items()]
    return f" ({', '.join(parts)})" if len(parts) > 1 else ""


def _printed(letters: Iterable[DeadLetter | DamagedLetter], as_json: bool) -> list[str]:
    """Print letters, and return their entry ids."""
    entry_ids = []
    for letter in letters:
        values = _shown(letter)
        if as_json:
            output.json_line(values)
        else:
            output.fields({name: value for name, value in values.items() if value is not False}, "")
        entry_ids.append(letter.entry_id)
    return entry_ids


def _shown(letter: DeadLetter | DamagedLetter) -> dict[str, object]:
    if isinstance(letter, DamagedLetter):
        fields = {_text(name): _text(value) for name, value in letter.fields.items()}
        return {"damaged": letter.why, "fields": fields, "entry_id": letter.entry_id}
    payload = None if letter.payload is None else _text(letter.payload)
    return letter._replace(payload=None)._asdict() | {"payload": payload}


def _text(value: bytes) -> str:
    return value.decode(errors="replace")
