"""The command line explains itself."""

import pytest
from typer.testing import CliRunner

from acker_redis.cli import app


@pytest.mark.parametrize(
    "command", ["rotator", "stats", "inspect", "dead-letters show", "dead-letters replay", "apps", "evict"]
)
def test_every_command_has_help(command) -> None:
    shown = CliRunner().invoke(app, [*command.split(), "--help"])
    assert shown.exit_code == 0, shown.exception
    assert "redis://[[user]:password@]host[:port][/db]" in shown.output
