"""Help pages of commands that have commands: what each of these does, in its whole first sentence."""

from typing import Any

from typer.core import TyperGroup


class Group(TyperGroup):
    """Says of each command what it does; typer cuts that to what fits into a line."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list."""
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        rows = [(name, _first_sentence(one.help or "")) for name, one in commands.items() if one and not one.hidden]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


class ShowsByDefault(Group):
    """`dead-letters --app orders` is `dead-letters show --app orders`; so its page has the options of `show`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the name in."""
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["show", *args]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """A name need not be given."""
        return ["[show|replay]", "OPTIONS"]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Those of `show`, then the commands."""
        self.commands["show"].format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


def _first_sentence(text: str) -> str:
    paragraph = " ".join(text.strip().split("\n\n")[0].split())
    return paragraph.partition(". ")[0].removesuffix(".") + "."
