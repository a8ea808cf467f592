"""The command `acl`: print an app's ACL users, without contacting a server."""

from dataclasses import asdict
from typing import Annotated

import typer

from acker_redis.cli import output
from acker_redis.cli.exit_status import exit_on_error
from acker_redis.cli.options import AsJson
from acker_redis.errors import BadConfigError
from acker_redis.ops import acl as acl_users
from acker_redis.ops.acl import Role, ServerKind

app = typer.Typer()


@app.command()
def acl(
    app_name: Annotated[
        str | None, typer.Argument(metavar="[APP]", help="Name of the app. Without it: users that serve all apps.")
    ] = None,
    roles: Annotated[
        list[Role] | None, typer.Option("--role", help="Print only this user. Repeat for several.", show_default=False)
    ] = None,
    server: Annotated[
        ServerKind,
        typer.Option("--server", help="Redis 7 or newer, or Valkey, with `install`ed functions; or Redis 6.2."),
    ] = ServerKind.FUNCTIONS,
    as_file: Annotated[bool, typer.Option("--file", help="Print lines for the server's `aclfile`.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print ACL users with only the permissions they need. Each gets a new random password. No server is contacted."""
    if as_file and as_json:
        raise typer.BadParameter("--file and --json exclude each other. Pass one of them.")
    with exit_on_error():
        if app_name is None and any(role not in acl_users.SHARED_ROLES for role in roles or ()):
            raise BadConfigError(
                "--role spout and --role executor need the name of an app. Pass it, as in `acker-redis acl orders`."
            )
        for user in acl_users.users(app_name, roles=tuple(roles or Role), kind=server):
            if as_json:
                output.json_line({**asdict(user), "login": user.login})
            else:
                output.line(user.as_file_line if as_file else user.as_command)
