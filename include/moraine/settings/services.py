"""Settings of what Moraine runs and talks to: ledger, API, Airflow and the embedded stack."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Self
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from pydantic import Field, SecretStr, model_validator

from moraine.settings.access import IssuerSettings
from moraine.settings.limits import ApiLimitSettings
from moraine.settings.tls import ClientTlsSettings, ListenerTlsSettings, ProxySettings
from moraine.settings.values import Duration, Section


class LedgerSettings(Section):
    """The PostgreSQL ledger. In Dags, the Airflow connection `moraine_ledger` takes precedence."""

    url: SecretStr = SecretStr("")
    executor_url: SecretStr = Field(
        SecretStr(""), description="The same database for Spark's executors, as a role of their own"
    )
    tls: ClientTlsSettings = Field(
        ClientTlsSettings(), description="Once one of it is set: `sslmode=verify-full`"
    )
    pool_size: int = Field(10, ge=1, description="Maximum connections of one API process")

    @property
    def address(self) -> str:
        """The address with what TLS needs. Contains a secret: do not log."""
        return self.secured(self.url.get_secret_value())

    def secured(self, url: str) -> str:
        """The address with libpq's parameters for TLS, in place of those that it has."""
        if not url or not self.tls.enabled:
            return url
        own = {
            "sslmode": "verify-full",
            "sslrootcert": str(self.tls.ca or "system"),
            **({"sslcert": str(self.tls.cert)} if self.tls.cert else {}),
            **({"sslkey": str(self.tls.key)} if self.tls.key else {}),
        }
        parts = urlsplit(url)
        kept = [
            pair for pair in parse_qsl(parts.query, keep_blank_values=True) if pair[0] not in own
        ]
        # Not urlencode's own quoting: libpq does not read + as a space.
        return urlunsplit(parts._replace(query=urlencode([*kept, *own.items()], quote_via=quote)))


class ApiSettings(Section):
    """Moraine's own API."""

    host: str = "127.0.0.1"
    port: int = 8182
    max_body_bytes: int = Field(1_048_576, ge=1)
    accept_airflow_tokens: bool = True
    jwt: IssuerSettings = IssuerSettings()
    issuers: dict[str, IssuerSettings] = Field({}, description="Further issuers, by any name")
    metrics_cache_duration: Duration = timedelta(seconds=5)
    tls: ListenerTlsSettings = Field(ListenerTlsSettings(), description="Of `moraine api`")
    proxy: ProxySettings = ProxySettings()
    limits: ApiLimitSettings = ApiLimitSettings()


class AirflowSettings(Section):
    """Where Dag runs are started. In Dags, the connection `moraine_airflow` takes precedence."""

    url: str = "http://127.0.0.1:8080"
    username: str = "admin"
    password: SecretStr = SecretStr("")
    tls: ClientTlsSettings = ClientTlsSettings()
    timeout: Duration = timedelta(seconds=10)
    access_control: dict[str, dict[str, list[str]]] = Field(
        {},
        description="Roles and what they may do with the Dags, for auth managers that have such "
        "roles. Dags read it from the environment of the Dag processor",
    )

    @model_validator(mode="after")
    def _tls_has_an_effect(self) -> Self:
        self.tls.require_https(self.url)
        return self


class PortSettings(Section):
    """The ports of the embedded stack, on 127.0.0.1 only."""

    postgres: int = Field(15432, ge=1, le=65535)
    catalog: int = Field(8181, ge=1, le=65535)
    spark: int = Field(15002, ge=1, le=65535, description="Spark Connect")
    spark_ui: int = Field(4040, ge=1, le=65535)
    airflow: int = Field(8080, ge=1, le=65535, description="UI, REST API and Moraine's own API")
    api: int = Field(8182, ge=1, le=65535, description="Moraine's API by mutual TLS, with `tls`")
    otlp: int = Field(4317, ge=1, le=65535, description="OTLP logs over gRPC")
    airflow_logs: int = Field(8793, ge=1, le=65535, description="Logs of running tasks, for the UI")


class StackSettings(Section):
    """The embedded stack on one machine (`moraine up`)."""

    home: Path = Field(Path(".moraine"), description="All its data; relative to the project")
    cache: Path | None = Field(
        None, description="Jars, shared between clones; by default moraine/jars in XDG_CACHE_HOME"
    )
    ports: PortSettings = PortSettings()
    tls: bool = Field(
        False, description="PostgreSQL and Airflow with TLS, and Moraine's API by mutual TLS"
    )
    spark_master: str = "local[2]"
    spark_memory: str = Field("1g", pattern=r"^\d+[mg]$", description="Heap of the Spark server")
    catalog_memory: str = Field("256m", pattern=r"^\d+[mg]$")
    start_timeout: Duration = Field(
        timedelta(minutes=3), description="How long a part may take to become ready"
    )
    min_free_disk_gb: float = Field(2, ge=0)
    ivy_settings: Path | None = Field(
        None, description="An Ivy settings file that names your own artifact repository"
    )
