"""Help of commands with subcommands: list each with its whole first sentence."""

from typing import Any

from typer.core import TyperGroup


class Group(TyperGroup):
    """Group that lists the whole first sentence of each command. Typer cuts it to one line."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands."""
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        rows = [
            (name, _first_sentence(command.help or ""))
            for name, command in commands.items()
            if command and not command.hidden
        ]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


class ShowsByDefault(Group):
    """Group whose default command is `show`: `dead-letters --app orders` means `dead-letters show --app orders`.

    So its help has the options of `show`.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert `show` if no command is named."""
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["show", *args]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Mark the command's name as optional."""
        return ["[show|replay]", "OPTIONS"]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options of `show`, then the commands."""
        self.commands["show"].format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


def _first_sentence(text: str) -> str:
    paragraph = " ".join(text.strip().split("\n\n")[0].split())
    return paragraph.partition(". ")[0].removesuffix(".") + "."
