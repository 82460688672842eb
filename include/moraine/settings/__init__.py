"""Settings: `moraine.toml`, overridden by `MORAINE_…` environment variables, read once.

Keys are written with hyphens in the file and with underscores in the environment, where two
underscores separate sections: `delegation.task.retention` is
`MORAINE_DELEGATION__TASK__RETENTION`. An unknown name is an error at start.
"""

from __future__ import annotations

import os
from functools import cache

from pydantic import Field
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from moraine.errors import CatalogNotConfigured
from moraine.settings.access import Action, IssuerSettings, PolicySettings
from moraine.settings.catalogs import CatalogAuthSettings, CatalogSettings
from moraine.settings.file import read_file, with_names_of
from moraine.settings.gateway import GatewayPurgeSettings, GatewaySettings, IdempotencySettings
from moraine.settings.ingest import IngestSettings
from moraine.settings.login import LoginSettings
from moraine.settings.services import (
    AirflowSettings,
    ApiSettings,
    LedgerSettings,
    PortSettings,
    StackSettings,
)
from moraine.settings.tasks import DelegationSettings, PurgeSettings, RetrySettings
from moraine.settings.tls import ClientTlsSettings, ListenerTlsSettings, ProxySettings

__all__ = [
    "Action",
    "AirflowSettings",
    "ApiSettings",
    "CatalogAuthSettings",
    "CatalogSettings",
    "ClientTlsSettings",
    "DelegationSettings",
    "GatewayPurgeSettings",
    "GatewaySettings",
    "IdempotencySettings",
    "IngestSettings",
    "IssuerSettings",
    "LedgerSettings",
    "ListenerTlsSettings",
    "LoginSettings",
    "PolicySettings",
    "PortSettings",
    "ProxySettings",
    "PurgeSettings",
    "RetrySettings",
    "Settings",
    "StackSettings",
    "get_settings",
]


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
    policy: PolicySettings = PolicySettings()
    airflow: AirflowSettings = AirflowSettings()
    login: LoginSettings = LoginSettings()
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
    def otlp_tls(self) -> ListenerTlsSettings:
        """TLS of OTLP over gRPC. There is no plain one beside an API with TLS."""
        return self.ingest.otlp.tls if self.ingest.otlp.tls.enabled else self.api.tls

    @property
    def ingest_is_on(self) -> bool:
        return self.ingest.enabled and bool(self._ingest_catalog)

    @property
    def ingest_catalog(self) -> str:
        """The name of the catalog that ingest writes to. Raises if ingest is off."""
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
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - pydantic names it
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - pydantic names it
    ) -> tuple[PydanticBaseSettingsSource, ...]:
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
