"""A real Kafka broker for tests: one node in KRaft mode, which bears kill -9.

with running_broker(tmp_path / "kafka") as broker:
    broker.create_topic("events", partitions=3)
    Producer({"bootstrap.servers": broker.servers})
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from moraine.local.java import find_java
from moraine.local.part import LOOPBACK, free_ports, is_taken
from support.certificates import write_certificates
from support.s3_catalog import fetch_jars

PASSWORDS = {"PLAIN": 'a "quoted" back\\slash', "SCRAM-SHA-512": "none-of-that"}
"""Of the user `reader` at the secure listener, by mechanism."""
_CLUSTER_ID = "MoraineTestsBrokerAAAA"
_SECONDS_TO_START = 120
_SECONDS_TO_STOP = 20
_SECONDS_TO_ANSWER = 10
# One of each: there is one broker, and no consumer waits for others to join its group.
_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller_port}
listeners={listeners},CONTROLLER://{host}:{controller_port}
advertised.listeners={listeners}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SECURE:SASL_SSL,CONTROLLER:PLAINTEXT
listener.name.secure.ssl.keystore.type=PEM
listener.name.secure.ssl.keystore.location={keystore}
listener.name.secure.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512
listener.name.secure.plain.sasl.jaas.config={modules}.plain.PlainLoginModule {plain};
listener.name.secure.scram-sha-512.sasl.jaas.config={modules}.scram.ScramLoginModule required;
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={data}
auto.create.topics.enable=false
num.network.threads=2
num.io.threads=2
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
min.insync.replicas=1
log.cleaner.backoff.ms=200
"""


class Broker:
    """One broker. It keeps its ports and its data from one start to the next."""

    def __init__(self, folder: Path) -> None:
        ports = free_ports()
        self.port = ports.catalog
        self._controller_port = ports.spark_ui
        self._secure_port = ports.airflow
        self.authority = folder
        """The certificate of the secure listener: a file, once the broker is formatted."""
        self._folder = folder
        self._settings = folder / "server.properties"
        self._log = folder / "kafka.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def servers(self) -> str:
        """For `bootstrap.servers`."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def secure_servers(self) -> str:
        """The same over TLS, for the one user there is."""
        return f"{LOOPBACK}:{self._secure_port}"

    @property
    def pid(self) -> int:
        return self._running().pid

    def format(self) -> None:
        """Make the folder one of a new cluster."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self.authority, keystore = write_certificates(self._folder)
        self._settings.write_text(
            _SETTINGS.format(
                host=LOOPBACK,
                listeners=f"PLAINTEXT://{self.servers},SECURE://{self.secure_servers}",
                controller_port=self._controller_port,
                keystore=keystore,
                modules="org.apache.kafka.common.security",
                plain=_in_properties(f'required user_reader="{_in_jaas(PASSWORDS["PLAIN"])}"'),
                data=self._folder / "data",
            )
        )
        scram = PASSWORDS["SCRAM-SHA-512"]
        arguments = ["format", "--cluster-id", _CLUSTER_ID, "--config", str(self._settings)]
        arguments += ["--add-scram", f"SCRAM-SHA-512=[name=reader,password={scram}]"]
        done = subprocess.run(
            self._java("128m", "kafka.tools.StorageTool", *arguments),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise AssertionError(f"Kafka's storage was not formatted.\n{done.stdout}{done.stderr}")

    def start(self) -> None:
        """Return when it answers. The data of the last run, killed or not, is still there."""
        has_ended = self._process is None or self._process.poll() is not None
        assert has_ended, "the broker runs already"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._java("384m", "kafka.Kafka", str(self._settings)),
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        give_up_at = time.monotonic() + _SECONDS_TO_START
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > give_up_at:
                raise AssertionError(f"Kafka did not start.\n{self._log.read_text()[-2000:]}")
            time.sleep(0.1)

    def kill(self) -> None:
        """As kill -9 does: the broker has no time for anything."""
        process = self._running()
        process.kill()
        process.wait()
        self._process = None

    def stop(self) -> None:
        process = self._running()
        process.terminate()
        try:
            process.wait(_SECONDS_TO_STOP)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._process = None

    def close(self) -> None:
        """Leave no process behind, whatever state the test left the broker in."""
        if self._process is not None:
            self.stop()

    def create_topic(self, name: str, partitions: int = 1, **settings: str) -> None:
        admin = self.admin()  # kept: its requests end with it
        topic = NewTopic(name, partitions, 1, config=settings)
        for done in admin.create_topics([topic]).values():
            done.result(_SECONDS_TO_ANSWER)

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.servers})

    def _answers(self) -> bool:
        # A client would write each refused connection into the test's output.
        if not is_taken(self.port):
            return False
        with contextlib.suppress(KafkaException):
            return bool(self.admin().list_topics(timeout=1).brokers)
        return False

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the broker does not run"
        return self._process

    def _java(self, memory: str, main: str, *arguments: str) -> list[str]:
        jars = fetch_jars("kafka").class_path("kafka")
        return [
            str(find_java().java),
            f"-Xmx{memory}",
            "-XX:+UseSerialGC",
            "-XX:-UsePerfData",
            "-cp",
            ":".join(str(jar) for jar in jars),
            main,
            *arguments,
        ]


def _in_jaas(text: str) -> str:
    return _in_properties(text).replace('"', '\\"')


def _in_properties(text: str) -> str:
    return text.replace("\\", "\\\\")


@contextlib.contextmanager
def running_broker(folder: Path) -> Iterator[Broker]:
    """A broker of the caller's own, with its data and its log below the folder."""
    broker = Broker(folder)
    broker.format()
    try:
        broker.start()
        yield broker
    finally:
        broker.close()
