"""Settings: `moraine.toml`, overridden by `MORAINE_…` environment variables, read once.

Keys are written with hyphens in the file and with underscores in the environment, where two
underscores step into a section: `delegation.task.retention` is
`MORAINE_DELEGATION__TASK__RETENTION`. A name that does not exist is an error at start.
"""

from __future__ import annotations

import os
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from moraine.catalog.properties import is_secret_property
from moraine.errors import CatalogNotConfigured
from moraine.settings.file import read_file, with_names_of
from moraine.settings.ingest import IngestSettings
from moraine.settings.values import Address, Duration, Properties, Section, revealed


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
    algorithms: list[str] = Field(["RS256", "ES256"])
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


class CatalogSettings(Section):
    """An Iceberg REST catalog, by the name that tasks use for it.

    `storage` has the FileIO properties for a catalog that vends nothing; those that are no
    secrets also fill the gaps of what one vends. In Dags, the connection `moraine_storage_NAME`
    comes first.
    """

    uri: Address
    warehouse: str = ""
    auth: CatalogAuthSettings = CatalogAuthSettings()
    storage: Properties = Field({})

    @property
    def storage_properties(self) -> dict[str, str]:
        """With their secrets: not to be logged."""
        return revealed(self.storage)

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
