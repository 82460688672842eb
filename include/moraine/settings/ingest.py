"""Settings of ingest: what is common, and each source of data."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from pydantic import Field

from moraine.settings.tls import ListenerTlsSettings
from moraine.settings.values import Duration, Properties, Section, revealed


class IngestRestSettings(Section):
    """NDJSON over HTTP."""

    max_body_bytes: int = Field(64 << 20, ge=1, description="Maximum, compressed and decompressed")
    wait: Duration = Field(
        timedelta(seconds=30), description="How long a request waits for its commit"
    )
    requests_per_second: float = Field(1000, gt=0, description="Per client and process")
    burst: int = Field(2000, ge=1, description="Requests accepted in one burst")
    requests_per_client: int = Field(
        1000, ge=1, description="Requests of one client address at once"
    )


class IngestWriterSettings(Section):
    """What the writer puts into one commit, and how long it may take."""

    max_batch_bytes: int = Field(256 << 20, ge=1)
    max_batch_rows: int = Field(2_000_000, ge=1)
    max_batch_requests: int = Field(256, ge=1)
    linger: Duration = Field(timedelta(0), description="How long to wait for further requests")
    piece_bytes: int = Field(
        32 << 20, ge=1, description="Bytes of a body that one Spark task reads"
    )
    tables_at_once: int = Field(4, ge=1)
    lease: Duration = Field(
        timedelta(seconds=30), description="How long after the last heartbeat a writer is lost"
    )
    run_duration: Duration = Field(
        timedelta(hours=1), description="How long one Dag run lasts; the next one follows"
    )
    commit_attempts: int = Field(
        20, ge=1, description="Attempts while others commit to the same table"
    )
    snapshots_kept: int = Field(
        100, ge=2, description="For tables that ingest created and that are only appended to"
    )


class OtlpSettings(Section):
    """Logs in OTLP, over HTTP at /ingest/v1/logs and over gRPC."""

    host: str = "127.0.0.1"
    grpc_port: int = Field(0, ge=0, le=65535, description="Exporters expect 4317; 0 is off")
    database: str = "otel"
    table: str = "otel_logs"
    tls: ListenerTlsSettings = Field(
        ListenerTlsSettings(), description="Of gRPC; without a `cert`, all of `api.tls` applies"
    )
    max_body_bytes: int = Field(16 << 20, ge=1, description="Maximum, compressed and decompressed")
    max_connections: int = Field(1000, ge=1, description="gRPC connections of one process")
    requests_at_once: int = Field(
        32, ge=1, description="gRPC requests that one process receives and stores at once"
    )
    read_timeout: Duration = Field(
        timedelta(seconds=30), description="How long a gRPC request may take to arrive"
    )


class KafkaTopicSettings(Section):
    """A topic and the table for its messages."""

    table: str = Field(pattern=r"^[^.]+(\.[^.]+)+$", description="DATABASE.TABLE")
    auto_create: bool = True
    start: Literal["earliest", "latest"] = Field(
        "earliest", description="Where to begin with a topic that was not read before"
    )


class KafkaSettings(Section):
    """Kafka topics that are read into tables."""

    bootstrap_servers: str = Field("", description="HOST:PORT, separated by commas")
    properties: Properties = Field({}, description="Client properties such as security.protocol")
    topics: dict[str, KafkaTopicSettings] = Field({})
    dead_letters: str = Field("_dead_letters", min_length=1, description="Suffix of the table")
    max_messages: int = Field(500_000, ge=1, description="Per partition and commit")
    missing_messages: Literal["fail", "skip"] = Field(
        "fail", description="What to do if the broker lost messages that were not read yet"
    )
    poll_interval: Duration = timedelta(seconds=1)
    run_duration: Duration = Field(
        timedelta(hours=1), description="How long one Dag run lasts; the next one follows"
    )
    commit_attempts: int = Field(
        20, ge=1, description="Attempts while others commit to the same table"
    )

    @property
    def enabled(self) -> bool:
        return bool(self.topics and self.bootstrap_servers)

    @property
    def plain_properties(self) -> dict[str, str]:
        """Contains secrets: do not log."""
        return revealed(self.properties)


class PrefixSettings(Section):
    """A folder that is watched for `DATABASE/TABLE/FILE`.

    `storage` has the FileIO properties that open it. In Dags, the connection
    `moraine_filedrop_NAME` takes precedence.
    """

    location: str = Field(min_length=1, pattern=r"[^/:]", description="The folder")
    storage: Properties = Field({})
    settle: Duration = Field(
        timedelta(seconds=10), description="How long a file must stay unchanged before it is taken"
    )
    after: Literal["keep", "delete", "move"] = Field(
        "keep", description="What to do with a file after its rows are committed"
    )
    done: str = Field("", description="Where `move` puts it; by default _done in the location")
    failed: str = Field("", description="Where bad files go; by default _failed in the location")
    databases: list[str] = Field(
        [], description="The only databases that its files may go to; empty: any"
    )
    auto_create: bool = True
    schema_evolve: bool = True

    @property
    def storage_properties(self) -> dict[str, str]:
        """Contains secrets: do not log."""
        return revealed(self.storage)


class FileDropSettings(Section):
    """Dropped files that are read into tables."""

    prefixes: dict[str, PrefixSettings] = Field({})
    max_file_bytes: int = Field(1 << 30, ge=1, description="Maximum, compressed and decompressed")
    files_at_once: int = Field(4, ge=1, le=64)
    poll_interval: Duration = Field(
        timedelta(seconds=5), description="How often to list the folders"
    )
    run_duration: Duration = Field(
        timedelta(minutes=1), description="How long one pass waits for the files it took"
    )
    watch_duration: Duration = Field(
        timedelta(hours=1), description="How long one Dag run lasts; the next one follows"
    )


class IngestSettings(Section):
    """Ingest from all sources."""

    enabled: bool = True
    catalog: str = Field("", description="The catalog of the tables; by default the only one")
    lifetime: Duration = Field(timedelta(hours=24), description="How long a key is kept")
    grace: Duration = Field(timedelta(hours=1), description="How much later it is removed")
    cleanup_batch: int = Field(1000, ge=1, description="Keys removed by one statement")
    inline_bytes: int = Field(64 << 10, ge=0, description="Maximum body kept in the ledger")
    max_waiting_bytes: int = Field(4 << 30, ge=1, description="Maximum that may wait to be written")
    max_waiting_requests: int = Field(10_000, ge=1)
    database_share: float = Field(
        0.5, gt=0, le=1, description="The part of both maximums that one database may use"
    )
    auto_create: bool = Field(False, description="Create missing tables by default")
    schema_evolve: bool = Field(True, description="Add missing columns by default")
    new_columns: int = Field(32, ge=0, description="Maximum added for one request")
    rest: IngestRestSettings = IngestRestSettings()
    filedrop: FileDropSettings = FileDropSettings()
    writer: IngestWriterSettings = IngestWriterSettings()
    kafka: KafkaSettings = KafkaSettings()
    otlp: OtlpSettings = OtlpSettings()
