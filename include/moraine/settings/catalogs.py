"""Settings of the Iceberg REST catalogs that Moraine works for."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, SecretStr, model_validator

from moraine.secret_names import is_secret_property
from moraine.settings.oauth import OAuthClientSettings
from moraine.settings.tls import ClientTlsSettings
from moraine.settings.values import Address, Folder, Properties, Section, revealed


class CatalogAuthSettings(OAuthClientSettings):
    """Moraine's own principal. In Dags, the connection `moraine_catalog_NAME` takes precedence."""

    kind: Literal["none", "bearer", "oauth2"] = "none"
    token: SecretStr = Field(SecretStr(""), description="For bearer")
    token_uri: Address = Field("", description="By default the catalog's own v1/oauth/tokens")
    scope: str = Field("catalog", description="Empty requests no scope")

    @model_validator(mode="after")
    def _kind_fits(self) -> Self:
        given = self.client_id or self.client_secret or self.token or self.private_key
        if self.kind == "none" and given:
            raise ValueError("credentials are given, but kind is none; set it to oauth2 or bearer")
        return self


class CatalogSettings(Section):
    """An Iceberg REST catalog, under the name that tasks use for it.

    `storage` has the FileIO properties for a catalog that vends no credentials. Those that are not
    secrets also complete vended credentials. In Dags, the connection `moraine_storage_NAME` takes
    precedence.
    """

    uri: Address
    warehouse: str = ""
    auth: CatalogAuthSettings = CatalogAuthSettings()
    tls: ClientTlsSettings = ClientTlsSettings()
    storage: Properties = Field({})
    allowed_locations: list[Folder] = Field(
        [],
        description="Folders below which Moraine may delete; by default the warehouse that the "
        "catalog reports. Local folders only if they are listed here",
    )

    @model_validator(mode="after")
    def _tls_has_an_effect(self) -> Self:
        self.tls.require_https(self.uri)
        return self

    @property
    def storage_properties(self) -> dict[str, str]:
        """Contains secrets: do not log."""
        return revealed(self.storage)

    @property
    def plain_storage_properties(self) -> dict[str, str]:
        """Those that are not secrets: endpoint, region, path style."""
        found = self.storage_properties.items()
        return {name: value for name, value in found if not is_secret_property(name)}

    @property
    def holds_storage_keys(self) -> bool:
        """Whether the files can be reached without credentials from the catalog."""
        return any(
            value for name, value in self.storage_properties.items() if is_secret_property(name)
        )

    def revealed(self) -> dict[str, Any]:
        """For another process's environment. Contains secrets: do not log."""
        secrets = {"token": self.auth.token, "client_secret": self.auth.client_secret}
        plain = self.model_dump(mode="json", exclude={"storage"})
        return {
            **plain,
            "auth": {**plain["auth"], **revealed(secrets)},
            "storage": self.storage_properties,
        }
