"""The commands of `acker-redis once`: `show`, `check`, `publish`, `reopen` and `skip`. They need no server."""

from typing import Annotated

import typer

from acker_redis.cli import help_pages, output
from acker_redis.cli.exit_status import UNHEALTHY, exit_on_error
from acker_redis.cli.options import AsJson, confirmed
from acker_redis.ops.publish_logs import LogUpkeep

_Log = Annotated[
    str, typer.Argument(metavar="LOG", help="Folder of the log: location/data, or the location without data.")
]
_Yes = Annotated[bool, typer.Option("--yes", help="Skip the confirmation.")]

app = typer.Typer(
    cls=help_pages.Group,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Look at a publish log of once=, and complete or give up what it decided.",
)


_DELTA = "a Delta table, which the next run compares with the log"
_WITHOUT_FILES = {
    "iceberg": "an Iceberg table, which the next run compares with the log",
    "store": "a store, into which only the functions of the sink can look",
}
"""What the URI of a table that isn't a folder begins with, and what to say of it."""


@app.command()
def show(
    location: _Log,
    dead: Annotated[bool, typer.Option("--dead", help="Print the dead messages, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print what a log has accepted, how many messages are dead, and which rows aren't known to be published."""
    with exit_on_error():
        upkeep = LogUpkeep(location)
        state, waiting = upkeep.log.state, upkeep.waiting()
        values = {
            "app": upkeep.owner.app,
            "spout_id": upkeep.owner.spout_id,
            "ids": ", ".join(upkeep.owner.ids),
            "run": state.run,
            "records": state.number,
            "accepted": len(state.accepted),
            "dead": sum(map(len, state.dead.values())),
            "finished": state.is_finished,
            "letters_to_store": sum(len(dead.letters) for dead in state.to_store.values()),
        }
        messages = [(partition, one) for partition in sorted(state.dead) for one in sorted(state.dead[partition])]
        if as_json:
            shown = {"dead_messages": messages} if dead else {}
            output.json_line(values | shown | {"not_published": [vars(one) for one in waiting]})
            return
        lines = [
            f"record {one.number}: {one.rows} rows for {one.sink!r} in {one.target}, {one.staged} files in the stage"
            for one in waiting
        ]
        output.fields(values, *(["not known to be published:", *lines] if lines else []))
        if dead:
            output.line(*(f"dead: {partition} {one}" if partition else f"dead: {one}" for partition, one in messages))


@app.command()
def check(
    location: _Log,
    tables: Annotated[
        list[str] | None, typer.Argument(metavar="[TABLE]...", help="Folders of tables that a lost log doesn't know.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Hold the tables against a log. Files that a compaction has replaced count as gone.

    Exits with 1 if a table has files of a record that the log lacks, if accepted rows are in the stage, or without tables.
    """
    with exit_on_error():
        upkeep = LogUpkeep(location)
        newest = upkeep.log.state.newest_accepted
        is_lost, found = False, upkeep.tables(tables or ())
        for table in found:
            is_lost = is_lost or (table.newest or 0) > newest
            if as_json:
                output.json_line(vars(table) | {"known": newest})
            elif table.newest is None:
                output.line(f"{table.target}: {_WITHOUT_FILES.get(table.target.partition('://')[0], _DELTA)}")
            else:
                lacks = f", files of record {table.newest}, which the log lacks" if table.newest > newest else ""
                output.line(f"{table.target}: {table.there} files there, {table.gone} gone{lacks}")
        waiting = {one.number for one in upkeep.waiting() if one.staged}
        if not found:
            output.line("error: The log knows no table. If it should, it was lost: name the tables.", err=True)
        if is_lost:
            output.line("error: The log was lost or set back. Restore it before the next run starts.", err=True)
        if waiting:
            output.line(
                f"error: {len(waiting)} records wait. A run that works, the next start, or `publish` moves them.",
                err=True,
            )
        if is_lost or waiting or not found:
            raise typer.Exit(UNHEALTHY)


@app.command()
def publish(
    location: _Log,
    assume_moved: Annotated[
        bool,
        typer.Option(
            "--assume-moved", help="Take files that are nowhere for moved into their table, and compacted since."
        ),
    ] = False,
    yes: _Yes = False,
) -> None:
    """Move accepted rows into their tables, as the next start would. A run that still works is fenced, and ends."""
    with exit_on_error():
        upkeep = LogUpkeep(location)
        count = len(upkeep.log.state.to_publish)
        if count:
            _confirm(yes, f"{count} records wait in {upkeep.location}.", "Publish them?")
        output.line(f"{upkeep.publish(assume_moved=assume_moved)} records are published")


@app.command()
def reopen(location: _Log, yes: _Yes = False) -> None:
    """Run the dead messages of a batch again, at the next run of its data. A run that still works is fenced, and ends.

    Letters of a stream are replayed by `acker-redis dead-letters replay`.
    """
    with exit_on_error():
        upkeep = LogUpkeep(location)
        if dead := sum(map(len, upkeep.log.state.dead.values())):
            _confirm(yes, f"{dead} messages are dead in {upkeep.location}.", "Run them again at the next start?")
        output.line(f"{upkeep.reopen()} messages run again at the next start")


@app.command()
def skip(
    location: _Log,
    number: Annotated[int, typer.Argument(metavar="NUMBER", help="Number of the record.")],
    sink: Annotated[str, typer.Argument(metavar="SINK", help="Name of the sink.")],
    yes: _Yes = False,
) -> None:
    """Give up the rows of one record for one sink. Their files are kept elsewhere. A run that still works is fenced."""
    with exit_on_error():
        upkeep = LogUpkeep(location)
        waits = upkeep.waits(number, sink)
        text = (
            f"{waits.rows:,} rows of record {number} won't get into the table of {sink!r}. Files that are there stay."
        )
        _confirm(yes, text, "Give them up?")
        place = upkeep.skip(number, sink)
        output.line(
            f"record {number} waits for {sink!r} no more" + ("" if place is None else f", its files are in {place}")
        )


def _confirm(yes: bool, text: str, question: str) -> None:
    output.line(text)
    if not yes and not confirmed(question):
        output.line("Nothing was changed.", err=True)
        raise typer.Exit(UNHEALTHY)
