"""Settings of ingest, door by door."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from pydantic import Field

from moraine.settings.values import Duration, Properties, Section, revealed


class IngestRestSettings(Section):
    """NDJSON over HTTP."""

    max_body_bytes: int = Field(64 << 20, ge=1, description="Also once it is unpacked")
    wait: Duration = Field(
        timedelta(seconds=30), description="How long a request waits for its commit"
    )
    requests_per_second: float = Field(1000, gt=0, description="For each database and process")
    burst: int = Field(2000, ge=1, description="How many may come at once")


class IngestWriterSettings(Section):
    """What the writer puts in one commit, and how long it may take."""

    max_batch_bytes: int = Field(256 << 20, ge=1)
    max_batch_rows: int = Field(2_000_000, ge=1)
    max_batch_requests: int = Field(256, ge=1)
    linger: Duration = Field(timedelta(0), description="How long it waits for more to come")
    piece_bytes: int = Field(32 << 20, ge=1, description="What one Spark task reads of a body")
    tables_at_once: int = Field(4, ge=1)
    lease: Duration = Field(
        timedelta(seconds=30), description="Without a heartbeat for so long, a writer is lost"
    )
    run_duration: Duration = Field(
        timedelta(hours=1), description="After so long a Dag run ends, and the next begins"
    )
    commit_attempts: int = Field(20, ge=1, description="When others commit to the same table")
    snapshots_kept: int = Field(
        100, ge=2, description="Of tables that ingest made and nobody else rewrites"
    )


class OtlpSettings(Section):
    """Logs in OTLP, over HTTP at /ingest/v1/logs and over gRPC."""

    host: str = "127.0.0.1"
    grpc_port: int = Field(0, ge=0, le=65535, description="4317 is what exporters expect; 0 is off")
    database: str = "otel"
    table: str = "otel_logs"
    max_body_bytes: int = Field(16 << 20, ge=1, description="Also once it is unpacked")


class KafkaTopicSettings(Section):
    """A topic, and the table it is read into."""

    table: str = Field(pattern=r"^[^.]+(\.[^.]+)+$", description="DATABASE.TABLE")
    auto_create: bool = True
    start: Literal["earliest", "latest"] = Field(
        "earliest", description="Where to begin with a topic that was never read"
    )


class KafkaSettings(Section):
    """Topics that are read into tables."""

    bootstrap_servers: str = Field("", description="HOST:PORT, separated by commas")
    properties: Properties = Field({}, description="Of the client, such as security.protocol")
    topics: dict[str, KafkaTopicSettings] = Field({})
    dead_letters: str = Field("_dead_letters", min_length=1, description="Appended to the table")
    max_messages: int = Field(500_000, ge=1, description="Of one partition in one commit")
    missing_messages: Literal["fail", "skip"] = Field(
        "fail", description="When the broker has lost what was not read yet"
    )
    poll_interval: Duration = timedelta(seconds=1)
    run_duration: Duration = Field(
        timedelta(hours=1), description="After so long a Dag run ends, and the next begins"
    )
    commit_attempts: int = Field(20, ge=1, description="When others commit to the same table")

    @property
    def enabled(self) -> bool:
        return bool(self.topics and self.bootstrap_servers)

    @property
    def plain_properties(self) -> dict[str, str]:
        """With their secrets: not to be logged."""
        return revealed(self.properties)


class PrefixSettings(Section):
    """A folder that is watched for `DATABASE/TABLE/FILE`.

    `storage` has the FileIO properties that open it. In Dags, the connection
    `moraine_filedrop_NAME` comes first.
    """

    location: str = Field(min_length=1, pattern=r"[^/:]", description="The folder")
    storage: Properties = Field({})
    settle: Duration = Field(
        timedelta(seconds=10), description="So long a file must stay as it is before it is taken"
    )
    after: Literal["keep", "delete", "move"] = Field(
        "keep", description="What becomes of a file that is in its table"
    )
    done: str = Field("", description="Where `move` puts it; by default _done in the location")
    failed: str = Field("", description="Where bad files go; by default _failed in the location")
    auto_create: bool = True
    schema_evolve: bool = True

    @property
    def storage_properties(self) -> dict[str, str]:
        """With their secrets: not to be logged."""
        return revealed(self.storage)


class FileDropSettings(Section):
    """Files that become rows."""

    prefixes: dict[str, PrefixSettings] = Field({})
    max_file_bytes: int = Field(1 << 30, ge=1, description="Also once it is unpacked")
    files_at_once: int = Field(4, ge=1, le=64)
    poll_interval: Duration = Field(
        timedelta(seconds=5), description="How long until it looks for new files again"
    )
    run_duration: Duration = Field(
        timedelta(minutes=1), description="So long a look waits for what it found to be done"
    )
    watch_duration: Duration = Field(
        timedelta(hours=1), description="After so long a Dag run ends, and the next begins"
    )


class IngestSettings(Section):
    """Bytes that become rows, through any door."""

    enabled: bool = True
    catalog: str = Field("", description="Where the tables are; by default the only one there is")
    lifetime: Duration = Field(timedelta(hours=24), description="How long a key is known")
    grace: Duration = Field(timedelta(hours=1), description="How much later it is swept")
    cleanup_batch: int = Field(1000, ge=1, description="Keys removed in one statement")
    inline_bytes: int = Field(64 << 10, ge=0, description="Up to so much is kept in the ledger")
    max_waiting_bytes: int = Field(4 << 30, ge=1, description="More may not wait to be written")
    max_waiting_requests: int = Field(10_000, ge=1)
    auto_create: bool = Field(False, description="Make tables on first sight, if nobody says")
    schema_evolve: bool = Field(True, description="Make columns on first sight, if nobody says")
    new_columns: int = Field(32, ge=0, description="Made for one request at most")
    rest: IngestRestSettings = IngestRestSettings()
    filedrop: FileDropSettings = FileDropSettings()
    writer: IngestWriterSettings = IngestWriterSettings()
    kafka: KafkaSettings = KafkaSettings()
    otlp: OtlpSettings = OtlpSettings()
