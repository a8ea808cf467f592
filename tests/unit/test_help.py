"""The command line explains itself."""

import pytest
from typer.testing import CliRunner

from acker_redis.cli import app

COMMANDS = (
    "rotator", "stats", "inspect", "dead-letters show", "dead-letters replay", "apps", "evict", "status", "pending",
    "doctor", "pause", "resume", "drain", "rotate", "abandon", "limit",
)  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command) -> None:
    shown = CliRunner().invoke(app, [*command.split(), "--help"])
    assert shown.exit_code == 0, shown.exception
    assert "redis://[[user]:password@]host[:port][/db]" in shown.output
