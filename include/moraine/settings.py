"""Settings: `moraine.toml`, overridden by `MORAINE_…` environment variables, read once.

Keys are written with hyphens in the file and with underscores in the environment, where two
underscores step into a section: `delegation.task.retention` is
`MORAINE_DELEGATION__TASK__RETENTION`. A name that does not exist is an error at start.
"""

from __future__ import annotations

import os
import re
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from moraine.catalog.properties import as_texts, is_secret_property
from moraine.errors import CatalogNotConfigured
from moraine.settings_file import read_file, with_names_of

_SHORT_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?")


def parse_duration(value: Any) -> Any:
    """`30s`, `1h30m` or `7d`; ISO-8601 (`PT30M`) is left to pydantic."""
    short = value.strip() if isinstance(value, str) else ""
    if short and (match := _SHORT_DURATION.fullmatch(short)):
        days, hours, minutes, seconds = (float(group or 0) for group in match.groups())
        return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    return value


Duration = Annotated[timedelta, BeforeValidator(parse_duration), Field(ge=timedelta(0))]


class Section(BaseModel):
    # A message never repeats what was given: it may be a secret.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class RetrySettings(Section):
    """One retry policy; what a type leaves out it takes from `default`."""

    max_attempts: int | None = Field(None, ge=1)
    initial_backoff_duration: Duration | None = None
    backoff_multiplier: float | None = Field(None, ge=1)
    max_backoff_duration: Duration | None = None
    jitter: float | None = Field(None, ge=0, le=1)


class LeaseSettings(Section):
    lost_timeout_duration: Duration = timedelta(hours=1)
    heartbeat_interval: Duration = timedelta(seconds=2)


class TaskSettings(Section):
    lease: LeaseSettings = LeaseSettings()
    retention: Duration = timedelta(days=30)
    cleanup_batch: int = Field(1000, ge=1)
    sweep_batch: int = Field(100, ge=1)


class SynchronousSettings(Section):
    wait_limit: Duration = timedelta(hours=1)


_SEED_RETRY = {
    "default": RetrySettings(
        max_attempts=5,
        initial_backoff_duration=timedelta(seconds=30),
        backoff_multiplier=2.0,
        max_backoff_duration=timedelta(hours=1),
        jitter=0.1,
    ),
    "TABLE_PURGE": RetrySettings(max_attempts=10, initial_backoff_duration=timedelta(minutes=1)),
}


class DelegationSettings(Section):
    retry: dict[str, RetrySettings] = Field(default_factory=dict, validate_default=True)
    task: TaskSettings = TaskSettings()
    synchronous: SynchronousSettings = SynchronousSettings()

    @field_validator("retry")
    @classmethod
    def _fill_from_defaults(cls, given: dict[str, RetrySettings]) -> dict[str, RetrySettings]:
        """Lay what is set over the built-in policies.

        The environment knows no upper case, so a type may come twice: as the file names it and,
        sorted after that and laid over it, as the environment does.
        """
        policies = dict(_SEED_RETRY)
        for key in sorted(given):
            name = key if key == "default" else key.upper()
            policies[name] = policies.get(name, RetrySettings()).model_copy(
                update=given[key].model_dump(exclude_none=True)
            )
        return policies


class IssuerSettings(Section):
    """Bearer JWTs from an issuer other than Airflow. Off while `issuer` is empty."""

    issuer: str = ""
    audience: str = "moraine"
    jwks_url: str = ""
    jwks_file: Path | None = None
    algorithms: list[str] = ["RS256", "ES256"]
    scope: str = "execute_tasks"

    @property
    def enabled(self) -> bool:
        return bool(self.issuer)


class ApiSettings(Section):
    host: str = "127.0.0.1"
    port: int = 8182
    max_body_bytes: int = Field(1_048_576, ge=1)
    accept_airflow_tokens: bool = True
    jwt: IssuerSettings = IssuerSettings()
    metrics_cache_duration: Duration = timedelta(seconds=5)


class LedgerSettings(Section):
    url: SecretStr = SecretStr("")
    pool_size: int = Field(10, ge=1)


class AirflowSettings(Section):
    """Where Dag runs are started. In Dags, the Airflow connection `moraine_airflow` comes first."""

    url: str = "http://127.0.0.1:8080"
    username: str = "admin"
    password: SecretStr = SecretStr("")
    timeout: Duration = timedelta(seconds=10)


def _without_user(uri: str) -> str:
    """Addresses are shown in errors and logs, so they hold no secret."""
    if "@" in urlsplit(uri).netloc:
        raise ValueError("an address holds no user or password; use the auth section")
    return uri


Address = Annotated[str, AfterValidator(_without_user)]


class CatalogAuthSettings(Section):
    """Moraine's own principal. In Dags, the connection `moraine_catalog_NAME` comes first."""

    kind: Literal["none", "bearer", "oauth2"] = "none"
    token: SecretStr = Field(SecretStr(""), description="For bearer")
    client_id: str = ""
    client_secret: SecretStr = SecretStr("")
    token_uri: Address = Field("", description="By default the catalog's own v1/oauth/tokens")
    scope: str = Field("catalog", description="Empty asks for none")
    client_auth: Literal["body", "basic"] = "body"

    @model_validator(mode="after")
    def _kind_fits(self) -> Self:
        given = self.client_id or self.client_secret or self.token
        if self.kind == "none" and given:
            raise ValueError("credentials are given, but kind is none; set it to oauth2 or bearer")
        return self


Properties = Annotated[dict[str, SecretStr], BeforeValidator(as_texts)]


class CatalogSettings(Section):
    """An Iceberg REST catalog, by the name that tasks use for it.

    `storage` has the FileIO properties for a catalog that vends nothing; those that are no
    secrets also fill the gaps of what one vends. In Dags, the connection `moraine_storage_NAME`
    comes first.
    """

    uri: Address
    warehouse: str = ""
    auth: CatalogAuthSettings = CatalogAuthSettings()
    storage: Properties = {}

    @property
    def storage_properties(self) -> dict[str, str]:
        """With their secrets: not to be logged."""
        return {name: value.get_secret_value() for name, value in self.storage.items()}

    @property
    def plain_storage_properties(self) -> dict[str, str]:
        """The endpoint, the region, the path style: whatever is no secret."""
        found = self.storage_properties.items()
        return {name: value for name, value in found if not is_secret_property(name)}

    def revealed(self) -> dict[str, Any]:
        """With its secrets, for another process's environment: not to be logged."""
        auth = {
            name: value.get_secret_value() if isinstance(value, SecretStr) else value
            for name, value in self.auth
        }
        own = {"uri": self.uri, "warehouse": self.warehouse}
        return {**own, "auth": auth, "storage": self.storage_properties}


class PurgeSettings(Section):
    """How tables are purged."""

    max_files_named: int = Field(100, ge=1, description="Failed paths kept in a task's result")
    outside_files: Literal["fail", "skip"] = Field(
        "fail", description="What to do about files outside the table's locations"
    )
    sibling_check: Literal["namespace", "catalog", "off"] = Field(
        "namespace", description="Where to look for tables that share the table's location"
    )
    sibling_limit: int = Field(200, ge=0, description="Tables loaded for that check at most")
    small_table_files: int = Field(
        1000, ge=0, description="Up to so many files are deleted without a Spark job"
    )
    requests_at_once: int = Field(
        4, ge=1, le=64, description="Bulk deletes that one Spark task has under way"
    )
    keys_per_request: int = Field(1000, ge=1, le=1000)
    storage_patience: Duration = Field(
        timedelta(minutes=2), description="How long to wait for a store that throttles"
    )


class CleanupSettings(Section):
    enabled: bool = True
    batch: int = Field(1000, ge=1, description="Records removed in one statement")


class IdempotencySettings(Section):
    """Requests with an Idempotency-Key."""

    enabled: bool = True
    lifetime: Duration = Field(
        timedelta(minutes=30), description="How long clients may reuse a key"
    )
    grace: Duration = Field(timedelta(minutes=5), description="How much longer it is known here")
    key_format: Literal["any", "uuid", "uuid7"] = "any"
    check_payload: bool = Field(True, description="Refuse a key with another payload")
    wait: Duration = Field(
        timedelta(seconds=5), description="How long a duplicate waits for the first one's result"
    )
    lease: Duration = Field(
        timedelta(seconds=30), description="Without a heartbeat for so long, an execution is lost"
    )
    max_stored_bytes: int = Field(
        4 << 20, ge=0, description="A larger answer, compressed, is made anew for a replay"
    )
    cleanup: CleanupSettings = CleanupSettings()

    @field_validator("lifetime", "lease")
    @classmethod
    def _positive(cls, given: timedelta) -> timedelta:
        if not given:
            raise ValueError("must be longer than nothing")
        return given


class GatewayPurgeSettings(Section):
    """What becomes of a DELETE with purgeRequested=true."""

    task_type: Literal["delegated", "local"] = "delegated"
    mode: Literal["synchronous", "fire-and-forget"] = "synchronous"
    wait_limit: Duration = Field(
        timedelta(hours=1), description="How long a synchronous drop may take"
    )


class GatewaySettings(Section):
    """The gateway in front of the configured catalogs."""

    enabled: bool = True
    default_catalog: str = Field("", description="Who answers below /catalog/v1")
    public_uri: Address = Field("", description="How clients reach /catalog, if not as they say")
    max_body_bytes: int = Field(64 << 20, ge=1)
    max_connections: int = Field(200, ge=1, description="To all catalogs, from one process")
    connect_timeout: Duration = timedelta(seconds=5)
    read_timeout: Duration = Field(
        timedelta(minutes=2), description="How long a catalog may be silent"
    )
    purge: GatewayPurgeSettings = GatewayPurgeSettings()


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
    topics: dict[str, KafkaTopicSettings] = {}
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
        return {name: value.get_secret_value() for name, value in self.properties.items()}


class PrefixSettings(Section):
    """A folder that is watched for `DATABASE/TABLE/FILE`.

    `storage` has the FileIO properties that open it. In Dags, the connection
    `moraine_filedrop_NAME` comes first.
    """

    location: str = Field(min_length=1, pattern=r"[^/:]", description="The folder")
    storage: Properties = {}
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
        return {name: value.get_secret_value() for name, value in self.storage.items()}


class FileDropSettings(Section):
    """Files that become rows."""

    prefixes: dict[str, PrefixSettings] = {}
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


class PortSettings(Section):
    """Where the embedded stack listens, on 127.0.0.1 only."""

    postgres: int = Field(15432, ge=1, le=65535)
    catalog: int = Field(8181, ge=1, le=65535)
    spark: int = Field(15002, ge=1, le=65535, description="Spark Connect")
    spark_ui: int = Field(4040, ge=1, le=65535)
    airflow: int = Field(8080, ge=1, le=65535, description="UI, REST API and Moraine's own API")
    otlp: int = Field(4317, ge=1, le=65535, description="OTLP logs over gRPC")
    airflow_logs: int = Field(8793, ge=1, le=65535, description="Logs of running tasks, for the UI")


class StackSettings(Section):
    """The embedded stack of one machine (`moraine up`)."""

    home: Path = Field(Path(".moraine"), description="All its data; relative to the project")
    cache: Path | None = Field(
        None, description="Jars, shared between clones; by default moraine/jars in XDG_CACHE_HOME"
    )
    ports: PortSettings = PortSettings()
    spark_master: str = "local[2]"
    spark_memory: str = Field("1g", pattern=r"^\d+[mg]$", description="Heap of the Spark server")
    catalog_memory: str = Field("256m", pattern=r"^\d+[mg]$")
    start_timeout: Duration = Field(
        timedelta(minutes=3), description="How long a part may take until it answers"
    )
    min_free_disk_gb: float = Field(2, ge=0)
    ivy_settings: Path | None = Field(
        None, description="An Ivy settings file that names your own artifact repository"
    )


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix="MORAINE_",
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
    )

    realm: str = "demo"
    workspace: str = Field("file:///var/lib/moraine", description="Inventories and reports")
    ledger: LedgerSettings = LedgerSettings()
    api: ApiSettings = ApiSettings()
    airflow: AirflowSettings = AirflowSettings()
    delegation: DelegationSettings = DelegationSettings()
    catalogs: dict[str, CatalogSettings] = {}
    purge: PurgeSettings = PurgeSettings()
    idempotency: IdempotencySettings = IdempotencySettings()
    gateway: GatewaySettings = GatewaySettings()
    ingest: IngestSettings = IngestSettings()
    stack: StackSettings = StackSettings()

    def catalog(self, name: str) -> CatalogSettings:
        if name not in self.catalogs:
            known = ", ".join(sorted(self.catalogs)) or "none"
            raise CatalogNotConfigured(
                f"No catalog {name!r} is configured here; known are {known}. "
                f"Add [catalogs.{name}] with its uri."
            )
        return self.catalogs[name]

    @property
    def ingest_is_on(self) -> bool:
        return self.ingest.enabled and bool(self._ingest_catalog)

    @property
    def ingest_catalog(self) -> str:
        """The name of the catalog that ingest writes to. Raises where it is off."""
        if not self.ingest_is_on:
            raise CatalogNotConfigured(
                "Ingest is off here: set ingest.enabled, and name its catalog in ingest.catalog."
            )
        return self._ingest_catalog

    @property
    def _ingest_catalog(self) -> str:
        only = next(iter(self.catalogs)) if len(self.catalogs) == 1 else ""
        return self.ingest.catalog or self.gateway.default_catalog or only

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        del dotenv_settings, file_secret_settings
        file = read_file(settings_cls)
        environment = with_names_of(file, env_settings())
        return (
            init_settings,
            InitSettingsSource(settings_cls, environment),
            InitSettingsSource(settings_cls, file),
        )


@cache
def get_settings() -> Settings:
    known = {f"MORAINE_{name.upper()}" for name in Settings.model_fields} | {
        "MORAINE_CONFIG",
        "MORAINE_FAILPOINTS",
    }
    for name in os.environ:
        if name.startswith("MORAINE_") and name.split("__")[0] not in known:
            raise ValueError(
                f"{name} is not a setting; the sections are {', '.join(sorted(known))}"
            )
    return Settings()
