"""Listeners with TLS, passwords, both, or tokens: source, sink and letters pass, and no text shows a secret."""

import base64
import json
import logging
import os
import time
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from acker_redis import AckerError, OutageError
from acker_redis.kafka.letter_topic import Letter, LetterTopic, about
from acker_redis.kafka.producer import producer_settings
from acker_redis.spark.worker.kafka import KafkaWrite
from tests.kafka.test_group_member import driving, numbered, texts
from tests.support.kafka import Broker, broker

pytestmark = pytest.mark.server

PASSWORD = "pa55word-of-billing"


def tls(folder: Path) -> tuple[dict[str, object], dict[str, object]]:
    """Settings of a node and of its clients, with a certificate of our own."""
    import trustme
    from cryptography.hazmat.primitives import serialization as form

    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    key = form.load_pem_private_key(certificate.private_key_pem.bytes(), None)
    pem = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    (folder / "node.pem").write_bytes(pem + b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    node: dict[str, object] = {
        "ssl.keystore.type": "PEM", "ssl.keystore.location": folder / "node.pem",
        "ssl.truststore.type": "PEM", "ssl.truststore.location": folder / "ca.pem",
    }  # fmt: skip
    return node, {"ssl.ca.location": str(folder / "ca.pem")}


def passwords(protocol: str) -> tuple[dict[str, object], dict[str, object]]:
    """Settings of a node and of its clients."""
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    users = f'username="node" password="node" user_node="node" user_billing="{PASSWORD}"'
    node = _sasl(protocol, "PLAIN", f"{login} {users};")
    return node, {"sasl.mechanisms": "PLAIN", "sasl.username": "billing", "sasl.password": PASSWORD}


def tokens(protocol: str, folder: Path) -> tuple[dict[str, object], dict[str, object]]:
    """Settings of a node that believes unsigned tokens, and of its clients, whose tokens are noted in a folder."""
    login = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
    node = _sasl(protocol, "OAUTHBEARER", f'{login} unsecuredLoginStringClaim_sub="node";')
    return node, {"sasl.mechanisms": "OAUTHBEARER", "oauth_cb": partial(token, str(folder))}


def _sasl(protocol: str, mechanism: str, login: str) -> dict[str, object]:
    return {
        "sasl.enabled.mechanisms": mechanism,
        "sasl.mechanism.inter.broker.protocol": mechanism,
        f"listener.name.{protocol.lower()}.{mechanism.lower()}.sasl.jaas.config": login,
    }


AWAY = "away"
"""File that exists while the service of tokens is away. It names the process that gets tokens all the same."""


def token(folder: str, _: str, secs: float = 3600.0) -> tuple[str, float]:
    """A callback of the client, in any process: a token of its own for each call, in a file that names the process."""
    if (Path(folder) / AWAY).exists() and (Path(folder) / AWAY).read_text() != str(os.getpid()):
        raise ConnectionError("the service of tokens is away")
    now, name = time.time(), uuid.uuid4().hex
    parts = {"alg": "none"}, {"sub": "billing", "iat": now, "exp": now + secs, "jti": name}
    header, claims = (base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
    text = f"{header}.{claims}."
    (Path(folder) / f"{os.getpid()}-{name}.token").write_text(text)
    return text, now + secs


def issued(folder: Path) -> dict[str, int]:
    """Tokens so far, and the processes that asked for them."""
    return {file.read_text(): int(file.name.partition("-")[0]) for file in folder.glob("*.token")}


def start(kind: str, folder: Path) -> Any:
    """A broker with a listener of this kind."""
    protocol = {"tls": "SSL", "tls_and_passwords": "SASL_SSL"}.get(kind, "SASL_PLAINTEXT")
    node: dict[str, object] = {}
    client: dict[str, object] = {"security.protocol": protocol}
    for part in (
        tls(folder) if "SSL" in protocol else ({}, {}),
        passwords(protocol) if "passwords" in kind else ({}, {}),
        tokens(protocol, folder) if kind == "tokens" else ({}, {}),
    ):
        node |= part[0]
        client |= part[1]
    return broker(protocol=protocol, client=client, **node)


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"


@pytest.fixture(params=["tls_and_passwords", "tls", "passwords", "tokens"])
def secured(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    with start(request.param, tmp_path) as started:
        yield started


def test_source_sink_and_letters_pass_secured_listeners(
    secured: Broker, group: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients write their lines about protocols, too, and none of them shows a password or a token."""
    kafka = {**secured.client, "log_level": 7, "debug": "security,broker,protocol"}
    caplog.set_level(logging.DEBUG)
    topic, out, letters = secured.topic(), secured.topic(), secured.topic()
    secured.produce(topic, numbered(10, 1))
    with driving(secured, topic, group, **kafka) as driver:
        assert driver.until_read(10) == texts(*range(10))
        driver.until_lag(topic, 0)
        shown = [repr(driver.member), repr(driver.member.topics)]
    rows = pa.RecordBatch.from_pydict({"value": [b"a", b"b"]})
    write = KafkaWrite("write_kafka", out, producer_settings(kafka))
    write(iter([rows]), 0)
    assert sorted(message.value() for message in secured.read(out)) == [b"a", b"b"]
    place = {"topic": topic, "topic_id": "A" * 22, "partition": 0, "offset": 1}
    of = about(app="a", group=group, place=place, stage=None, reason="failed", detail=None, attempts=1, run_id="r")
    dead = LetterTopic(kafka, letters)
    dead.send("1", Letter(b"k", b"v", [], of))
    dead.close(60)
    assert dead.collect() == (["1"], [])
    assert [message.value() for message in secured.read(letters)] == [b"v"]
    shown += [repr(write), repr(dead), caplog.text]
    assert "client reports" in caplog.text
    tokens = issued(tmp_path)
    assert set(tokens.values()) == ({os.getpid()} if "oauth_cb" in kafka else set())
    for secret in (PASSWORD, *tokens):
        assert all(secret not in text for text in shown)


@pytest.mark.chaos
@pytest.mark.parametrize("secured", ["tokens"], indirect=True)
def test_member_goes_on_with_its_token_while_no_other_comes(
    secured: Broker, group: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The client asks for another token after four fifths of the time of the one that it has, and then every ten seconds."""
    topic = secured.topic()
    kafka = {**secured.client, "oauth_cb": partial(token, str(tmp_path), secs=90.0)}
    with driving(secured, topic, group, **kafka) as driver:
        driver.until(lambda: driver.member.owned, "partitions are assigned")
        (tmp_path / AWAY).touch()
        driver.until(lambda: "no token for the brokers, asking again" in caplog.text, "the log says it")
        secured.client |= {"oauth_cb": partial(token, str(tmp_path / "others"))}
        (tmp_path / "others").mkdir()
        secured.produce(topic, numbered(10, 1))
        driver.until_read(10)
        before = len(issued(tmp_path))
        (tmp_path / AWAY).unlink()
        driver.until(lambda: len(issued(tmp_path)) > before, "tokens come again")
        driver.until_lag(topic, 0)
        assert (len(driver.read), driver.events) == (10, [])


@pytest.mark.parametrize("secured", ["tokens"], indirect=True)
def test_member_that_is_out_joins_once_tokens_come_again(
    secured: Broker, group: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topic = secured.topic()
    secured.produce(topic, numbered(10, 1))
    with driving(secured, topic, group, **secured.client) as driver:
        driver.until_read(10)
        driver.until_lag(topic, 0)
        (tmp_path / AWAY).touch()
        driver.member._give_up(OutageError("The brokers were away."))
        driver.until(lambda: "oauth_cb gave no token" in caplog.text, "it asks for a token in vain")
        (tmp_path / AWAY).unlink()
        secured.produce(topic, numbered(10, 1, 10))
        assert driver.until_read(20) == texts(*range(20))
        driver.until_lag(topic, 0)


@pytest.mark.parametrize("secured", ["tokens"], indirect=True)
def test_refused_token_ends_the_membership_and_shows_nowhere(
    secured: Broker, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "t0ken-of-billing"
    kafka = {**secured.client, "oauth_cb": lambda _: (secret, time.time() + 3600)}
    with caplog.at_level(logging.DEBUG), driving(secured, "t", group, **kafka) as driver:
        with pytest.raises(AckerError, match="_AUTHENTICATION") as raised:
            driver.until(lambda: False, "the broker refuses")
        assert secret not in f"{caplog.text} {driver.member!r} {raised.value!r}"
