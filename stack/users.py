"""`python -m stack.users > stack/redis/users.acl`: the users of the development stack, whose passwords all are `dev`."""

from acker_redis.ops.acl import Role, users

APPS = ("word-count", "order-stream")
PASSWORD = "dev"  # noqa: S105


def lines() -> list[str]:
    """Return the lines of the file: without a name a client may only ping, as health checks do; `admin` may do everything."""
    of_apps = [user for app in APPS for user in users(app, roles=[Role.SPOUT, Role.EXECUTOR], password=PASSWORD)]
    return [
        "user default on nopass resetkeys resetchannels -@all +ping",
        f"user admin on >{PASSWORD} ~* &* +@all",
        *(user.as_file_line for user in [*users(password=PASSWORD), *of_apps]),
    ]


if __name__ == "__main__":
    print("\n".join(lines()))
