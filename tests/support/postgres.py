"""A PostgreSQL server of one's own: on loopback, in a folder of its own, and as another user where the tests run as root."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from acker_redis.testing import wait_until
from acker_redis.testing.server import free_port
from tests.support.servers import required

_USER = "nobody"


def _program(name: str) -> str:
    """Debian installs them outside of PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(found[-1]) if found else required(name, "postgresql")


@contextmanager
def postgres() -> Iterator[str]:
    """Start a server. Yields its JDBC URL; the user is `tests`."""
    initdb, server = _program("initdb"), _program("postgres")
    folder = Path(tempfile.mkdtemp(prefix="postgres-"))  # pytest's folders can't be entered by others
    user = None
    if os.getuid() == 0:  # PostgreSQL refuses to run as root
        user = _USER
        os.chown(folder, pwd.getpwnam(user).pw_uid, -1)
    data = folder / "data"
    subprocess.run(
        [initdb, "-D", data, "-A", "trust", "-U", "tests", "--no-sync"],
        check=True, stdout=subprocess.DEVNULL, user=user, cwd=folder,
    )  # fmt: skip
    port = free_port()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [server, "-D", data, "-p", str(port), "-h", "127.0.0.1", "-k", folder, "-F"],
            stdout=log, stderr=log, user=user, cwd=folder,
        )  # fmt: skip
    try:
        wait_until(lambda: _answers(port) or process.poll() is not None, "PostgreSQL answers")
        assert process.poll() is None, (folder / "log").read_text()
        yield f"jdbc:postgresql://127.0.0.1:{port}/postgres"
    finally:
        process.terminate()
        process.wait(timeout=60)
        shutil.rmtree(folder, ignore_errors=True)


def _answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
