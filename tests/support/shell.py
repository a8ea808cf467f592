"""Shell lines of a page, run against servers of a test: `redis-cli`, `redis-server` and `acker-redis` lead to these."""

import os
import subprocess
import sys
from pathlib import Path

from acker_redis.testing.server import Server
from tests.support.servers import required


class Shell:
    """Runs blocks of a page.

    Attributes:
        shown: what the last block printed.
    """

    def __init__(self, folder: Path, *servers: Server) -> None:
        """The first server is 10.0.0.1 of the page, and the one that is meant where none is named; the second is 10.0.0.2."""
        redis_cli = required("redis-cli", "redis-tools")
        self.shown = ""
        self._folder, self._servers = folder, servers
        self.variables = {"DATA": str(servers[0].folder), "BACKUP": str(folder), "ACKER_REDIS_URL": servers[0].url}
        places = "".join(
            f'"-h 10.0.0.{number}") shift 2; set -- -p {server.port} "$@" ;;\n'
            for number, server in enumerate(servers, 1)
        )
        first = servers[0]
        own = f"--port {first.port} --bind 127.0.0.1 --dir {first.folder} --save '' --logfile {first.folder}/server.log"
        for name, text in (
            (
                "redis-cli",
                f'case "$1 $2" in\n{places}*) set -- -p {first.port} "$@" ;;\nesac\nexec {redis_cli} -e "$@"',
            ),
            ("redis-server", f'shift\nexec {first.program} {own} "$@"'),  # without the page's configuration file
            ("acker-redis", f'exec {sys.executable} -m acker_redis "$@"'),
        ):
            (folder / name).write_text(f"#!/bin/sh\n{text}\n")
            (folder / name).chmod(0o755)

    def run(self, block: str, *, status: int = 0) -> str:
        """Run a block as a whole, which ends with this status; returns what it printed."""
        for number, server in enumerate(self._servers, 1):
            block = block.replace(f"10.0.0.{number} 6379", f"127.0.0.1 {server.port}")
        done = subprocess.run(
            ["sh", "-e", "-c", block],
            cwd=self._folder,
            env={
                **os.environ,
                **self.variables,
                "PATH": f"{self._folder}{os.pathsep}{os.environ['PATH']}",
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            },
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == status, (block, done)
        return done.stdout + done.stderr
