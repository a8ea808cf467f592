"""Nodes of Kafka as processes on loopback, from Kafka's own jars. Demos, benchmarks, the development stack and tests use them.

The jars come from the folder `kafka-broker` in ACKER_JARS. Without that variable, the Ivy inside of PySpark fetches them
once, into `build/`. They need Java, but neither Maven nor docker.
"""

import base64
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acker_redis.errors import AckerError
from acker_redis.extras import install_hint
from acker_redis.spark import prepare_environment
from acker_redis.testing import wait_until
from acker_redis.testing.server import free_port

ROOT = Path(__file__).resolve().parents[2]
MODULES = Path(__file__).with_name("kafka-broker.xml")

STARTS_IN_SECS, ENDS_IN_SECS, FETCHES_IN_SECS = 120.0, 30.0, 500.0

_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_LOG = """<Configuration status="ERROR">
<Appenders><Console name="out"><PatternLayout pattern="%d %p %c{1} %m%n"/></Console></Appenders>
<Loggers><Root level="WARN"><AppenderRef ref="out"/></Root></Loggers></Configuration>"""


class KafkaNotFoundError(AckerError):
    """Something that a broker needs is missing: its jars, or the client."""


def jars() -> Path:
    """Return the folder of Kafka's jars. The first call downloads them, 39 MB.

    Raises:
        KafkaNotFoundError: they can't be downloaded.
        JavaNotFoundError: no Java was found.
    """
    if (folder := os.environ.get("ACKER_JARS")) is not None:
        given = Path(folder) / "kafka-broker"
        if not given.is_dir():
            raise KafkaNotFoundError(
                "No broker can start: the folder ACKER_JARS has no kafka-broker. Add Kafka's jars."
            )
        return given
    there = _fetched()
    if not there.exists():
        _fetch_once(there)
    return there


def are_here() -> bool:
    """Return True if `jars` needs no network."""
    return "ACKER_JARS" in os.environ or _fetched().exists()


def archive() -> Path:
    """Return the path of an archive of Java's classes, with which programs of Kafka start faster. The tests create it."""
    return _fetched().with_suffix(".jsa")


def _fetched() -> Path:
    """Return the folder of the downloaded jars. Another list of jars has another folder."""
    return ROOT / "build" / f"kafka-broker-{zlib.crc32(MODULES.read_bytes()):08x}"


def _fetch_once(there: Path) -> None:
    """Download the jars, or wait for another process that does. Two at once break each other's files in Ivy's cache."""
    there.parent.mkdir(exist_ok=True)
    with there.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not there.exists():
            _fetch(there)


def _fetch(there: Path) -> None:
    import pyspark

    (ivy,) = (Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar")
    draft = Path(tempfile.mkdtemp(dir=there.parent))
    command: list[str | Path] = [java(), "-jar", ivy, "-ivy", MODULES, "-types", "jar", "bundle", "-error"]
    command += ["-retrieve", f"{draft}/[artifact]-[revision].[ext]"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=FETCHES_IN_SECS)
        if done.returncode:
            raise KafkaNotFoundError(
                "No broker can start: the jars of Kafka can't be downloaded, and ACKER_JARS is not set. Connect to a network, "
                "or set it to a folder that has them in kafka-broker."
            )
        draft.rename(there)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def java() -> str:
    """Return the path of Java.

    Raises:
        JavaNotFoundError: there is none.
    """
    prepare_environment()
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else str(shutil.which("java"))


def command_of(folder: Path, main: str, *arguments: object) -> list[str]:
    """Return the command of one of Kafka's programs.

    Args:
        folder: folder that gets the settings of its log.
        main: class of the program.
        arguments: its arguments.
    """
    log = folder / "log4j2.xml"
    log.write_text(_LOG)
    classes = f"{jars()}/*"
    archived = [f"-XX:SharedArchiveFile={archive()}", "-Xlog:disable"] if archive().exists() else []
    return [java(), *_JVM, *archived, f"-Dlog4j2.configurationFile={log}", "-cp", classes, main, *map(str, arguments)]


@dataclass(frozen=True)
class Quorum:
    """Nodes that make a cluster.

    Attributes:
        cluster_id: id of the cluster.
        ports: ports of each node, as broker and as controller.
    """

    cluster_id: str
    ports: tuple[tuple[int, int], ...]

    @classmethod
    def drawn(cls, count: int = 1) -> "Quorum":
        """Draw an id, and find free ports."""
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        return cls(cluster_id, tuple((free_port(), free_port()) for _ in range(count)))


class Node:
    """A node that is broker and controller. It keeps its folder and its ports when it ends and is started again.

    Attributes:
        address: host and port.
        client: settings of a client, as librdkafka names them.
        folder: folder with its data, and with its output in `out`.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, object],
        *,
        quorum: Quorum | None = None,
        number: int = 1,
        protocol: str = "PLAINTEXT",
    ) -> None:
        """Format the folder.

        Args:
            folder: an empty folder.
            settings: settings of the node beside the usual ones.
            quorum: nodes of the cluster. None: this one alone.
            number: number of this node among them, from 1 on.
            protocol: security protocol of clients and brokers.

        Raises:
            AckerError: Kafka refuses the settings.
            KafkaNotFoundError: Kafka's jars can't be downloaded.
            JavaNotFoundError: no Java was found.
        """
        self.folder, self._quorum = folder, quorum or Quorum.drawn()
        port, controller = self._quorum.ports[number - 1]
        self.address = f"127.0.0.1:{port}"
        self.client: dict[str, Any] = {"bootstrap.servers": self.address, "log_level": 0}
        self._process: subprocess.Popen[bytes] | None = None
        voters = ",".join(f"{n}@127.0.0.1:{one}" for n, (_, one) in enumerate(self._quorum.ports, 1))
        usual: dict[str, object] = {
            "process.roles": "broker,controller",
            "node.id": number,
            "listeners": f"{protocol}://{self.address},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"{protocol}://{self.address}",
            "listener.security.protocol.map": f"CONTROLLER:PLAINTEXT,{protocol}:{protocol}",
            "security.inter.broker.protocol": protocol,
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": voters,
            "log.dirs": folder / "logs",
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": len(self._quorum.ports),
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": len(self._quorum.ports),
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 4,
            "group.initial.rebalance.delay.ms": 0,
            "log.retention.check.interval.ms": 1000,
            "log.segment.delete.delay.ms": 500,
            "log.cleaner.dedupe.buffer.size": 16_000_000,
            "log.cleaner.threads": 1,
            "num.io.threads": 4,
            "num.network.threads": 2,
        }
        properties = folder / "server.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in {**usual, **settings}.items()))
        # One word, because the tool takes an id that begins with a hyphen for an option.
        cluster = f"--cluster-id={self._quorum.cluster_id}"
        format_it = command_of(folder, "kafka.tools.StorageTool", "format", cluster, "-c", properties)
        done = subprocess.run(format_it, capture_output=True, text=True, check=False)
        if done.returncode:
            raise AckerError(f"Kafka refuses the settings of a node: {(done.stdout + done.stderr)[-2000:]}")
        self._command = command_of(folder, "kafka.Kafka", properties)

    def start(self, *, wait: bool = True) -> None:
        """Start it, and wait until it answers.

        Raises:
            KafkaNotFoundError: the client is not installed.
            AckerError: the node has ended.
        """
        with (self.folder / "out").open("ab") as out:
            self._process = subprocess.Popen(self._command, stdout=out, stderr=out, start_new_session=True)
        if wait:
            self.wait()

    def wait(self) -> None:
        """Wait until the node and the others of its cluster answer.

        Raises:
            KafkaNotFoundError: the client is not installed.
            AckerError: the node has ended.
        """
        answers = self._asks()
        wait_until(lambda: not self.is_running or answers(), "the broker of Kafka answers", STARTS_IN_SECS)
        if not self.is_running:
            raise AckerError(f"The broker of Kafka has ended: {(self.folder / 'out').read_text()[-2000:]}")

    @property
    def is_running(self) -> bool:
        """Return True while the process runs."""
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """End it gracefully."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(ENDS_IN_SECS)
        self.kill()

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def admin(self) -> Any:
        """Return a client for administration. What it was asked ends with it."""
        from confluent_kafka.admin import AdminClient

        return AdminClient(self.client)

    def topic(self, name: str, partitions: int = 1, **settings: str) -> str:
        """Create a topic, and wait until the broker knows it. Settings are spelled with underscores. Return its name."""
        from confluent_kafka.cimpl import NewTopic

        config = {key.replace("_", "."): value for key, value in settings.items()}
        admin, copies = self.admin(), len(self._quorum.ports)
        admin.create_topics([NewTopic(name, partitions, copies, config=config)])[name].result(60)

        def is_known() -> bool:  # the controller answers before the brokers have heard of it
            return len(admin.list_topics(name, timeout=60).topics[name].partitions) == partitions

        wait_until(is_known, f"the broker knows the topic {name}")
        return name

    def _asks(self) -> Callable[[], bool]:
        try:
            from confluent_kafka import KafkaException
        except ImportError as exc:
            raise KafkaNotFoundError(
                f"The package confluent-kafka is not installed, so nothing can talk to the broker. {install_hint('kafka')}"
            ) from exc
        admin = self.admin()

        def answers() -> bool:
            try:
                return len(admin.list_topics(timeout=2).brokers) == len(self._quorum.ports)
            except KafkaException:
                return False

        return answers


@contextmanager
def running(settings: Mapping[str, object] | None = None) -> Iterator[Node]:
    """Start a node in a temporary folder, and end it afterwards.

    Raises:
        AckerError: it can't start.
    """
    with tempfile.TemporaryDirectory(prefix="kafka-", ignore_cleanup_errors=True) as folder:
        node = Node(Path(folder), settings or {})
        try:
            node.start()
            yield node
        finally:
            node.stop()
