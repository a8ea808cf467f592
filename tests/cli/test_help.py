"""The command line explains itself."""

import pytest
from typer.testing import CliRunner

from acker_redis.cli import app

COMMANDS = (
    "rotator", "stats", "inspect", "dead-letters show", "dead-letters replay", "apps", "delete-app", "status", "pending",
    "lag", "doctor", "pause", "resume", "drain", "rotate", "abandon", "limit",
    "topology run", "topology describe", "topology metrics", "topology rescale", "topology empty-state",
)  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command) -> None:
    shown = CliRunner().invoke(app, [*command.split(), "--help"])
    assert shown.exit_code == 0, shown.exception
    assert "redis://[[user]:password@]host[:port][/db]" in shown.output


def help_of(*command: str) -> str:
    shown = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "80"})
    assert shown.exit_code == 0, shown.exception
    assert max(map(len, shown.output.splitlines())) <= 80
    return " ".join(shown.output.split())


@pytest.mark.parametrize(
    "command", [(), ("dead-letters",), ("topology",), ("once",), *((*one.split(),) for one in COMMANDS)]
)
def test_help_texts_are_not_cut_off(command) -> None:
    assert "..." not in help_of(*command).replace("COMMAND [ARGS]...", "")


def test_each_command_is_listed_with_its_first_sentence() -> None:
    assert "exit 1 if something is bad. script" in help_of()
    assert "drain Pause the app, and wait until no root is pending and no outcome waits; exit 1" in help_of()


def test_help_of_dead_letters_lists_its_own_options() -> None:
    shown = help_of("dead-letters")
    assert "--app <str> Name of the app. [env var: ACKER_APP; required]" in shown
    assert "show Print dead letters" in shown and "replay Replay dead letters: the app's streams" in shown


def test_mistyped_dead_letters_command_suggests_the_right_name() -> None:
    shown = CliRunner().invoke(app, ["dead-letters", "repaly", "--app", "orders"])
    assert shown.exit_code == 2
    assert "No such command 'repaly'. Did you mean 'replay'?" in shown.output
