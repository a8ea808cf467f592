"""TLS with an own authority, certificates of clients, and what is wrong with them, told at once."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import trustme

from acker_redis import Acker, AckerConfig, BadConfigError, TlsError
from acker_redis.client import client
from acker_redis.ops.rotation_check import check
from acker_redis.testing import wait_until
from acker_redis.testing.server import Server, free_port
from tests.support.rounds import full_round
from tests.support.servers import REDIS7

CONFIG = AckerConfig("test", shards=2)


class Files:
    """An authority's certificate, and one of a server or client of its."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir()
        authority = trustme.CA()
        mine = authority.issue_cert(name)
        self.ca, self.cert, self.key = folder / "ca.pem", folder / "cert.pem", folder / "key.pem"
        authority.cert_pem.write_to_path(self.ca)
        mine.private_key_pem.write_to_path(self.key)
        self.cert.write_bytes(b"".join(blob.bytes() for blob in mine.cert_chain_pems))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "tls", "127.0.0.1")


@pytest.fixture
def start_tls(files: Files) -> Iterator[Callable[..., Server]]:
    """A server that speaks TLS only, and asks clients for a certificate unless told otherwise; Redis 7, built with TLS."""
    started: list[Server] = []

    def start(*options: str, clients: str = "no") -> Server:
        port = free_port()
        arguments = [
            "--port", "0", "--tls-port", str(port), "--tls-cert-file", str(files.cert),
            "--tls-key-file", str(files.key), "--tls-ca-cert-file", str(files.ca), "--tls-auth-clients", clients,
            "--tls-replication", "yes",
        ]  # fmt: skip
        server = Server(REDIS7.program(), *arguments, *options, port=port)
        started.append(server)
        server.start(wait=False)
        raw = redis.Redis(
            host="127.0.0.1",
            port=server.port,
            ssl=True,
            ssl_ca_certs=str(files.ca),
            ssl_certfile=str(files.cert),
            ssl_keyfile=str(files.key),
        )
        wait_until(lambda: answers(raw), "the server answers")
        raw.close()
        return server

    yield start
    for server in reversed(started):
        server.stop()


def answers(raw: Any) -> bool:
    try:
        return bool(raw.ping())
    except redis.ConnectionError:
        return False


def test_tls_connection_runs_every_operation(start_tls, files, start_process) -> None:
    url = f"rediss://127.0.0.1:{start_tls().port}/0?ssl_ca_certs={files.ca}"
    with Acker.connect(url, CONFIG) as acker:
        full_round(acker)
        rotator = start_process("rotator", "--redis", url, "--app", "test")
        wait_until(lambda: "rotating" in rotator.log(), "the rotator works")
    assert [health.app for health in check(url)] == ["test"]


def test_client_certificate_is_sent_and_its_absence_refused(start_tls, files) -> None:
    url = f"rediss://127.0.0.1:{start_tls(clients='yes').port}/0?ssl_ca_certs={files.ca}"
    with Acker.connect(f"{url}&ssl_certfile={files.cert}&ssl_keyfile={files.key}", CONFIG) as acker:
        full_round(acker)
    with pytest.raises(TlsError, match=r"(?i)certificate"):
        Acker.connect(url, CONFIG)


def test_invalid_certificates_are_reported_at_once(start_tls, files, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(client.Client, "_start_over", lambda *_: pytest.fail("it tries again"))
    port = start_tls().port
    strange = Files(tmp_path / "strange", "127.0.0.1")
    for url, words in (
        (f"rediss://127.0.0.1:{port}/0", "certificate verify failed"),
        (f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={strange.ca}", "certificate verify failed"),
        (f"rediss://localhost:{port}/0?ssl_ca_certs={files.ca}", "(?i)hostname mismatch|not valid for"),
    ):
        with pytest.raises(TlsError, match=words):
            Acker.connect(url, CONFIG)
    with pytest.raises(BadConfigError, match=r"ssl_ca_certs of .*that file does not exist"):
        Acker.connect(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs=/no/such/ca.pem", CONFIG)


def test_sentinel_and_server_with_tls_run_every_operation(start_tls, files, start_sentinel) -> None:
    primary = start_tls()
    lines = (
        "tls-port {port}", "port 0", f"tls-cert-file {files.cert}", f"tls-key-file {files.key}",
        f"tls-ca-cert-file {files.ca}", "tls-auth-clients no", "tls-replication yes",
    )  # fmt: skip
    port = start_sentinel(primary, *lines, login={"ssl": True, "ssl_ca_certs": str(files.ca)})
    with Acker.connect(f"rediss+sentinel://127.0.0.1:{port}/service?ssl_ca_certs={files.ca}", CONFIG) as acker:
        full_round(acker)
    with pytest.raises(TlsError):
        Acker.connect(f"rediss+sentinel://127.0.0.1:{port}/service", CONFIG, outage_timeout_secs=0)
