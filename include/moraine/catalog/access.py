"""A table's credentials, for whoever has to reach its files: this process, an executor, Spark."""

from __future__ import annotations

from dataclasses import dataclass

from moraine.catalog.auth import token_uri
from moraine.catalog.client import DELEGATION, LoadedTable, RestCatalog
from moraine.settings import CatalogSettings
from moraine.storage.credentials import Credentials


@dataclass(frozen=True)
class TableAccess:
    """All it takes to load a table, wherever this is sent: it needs no settings there."""

    catalog: CatalogSettings
    namespace: tuple[str, ...]
    table: str

    def load(self) -> LoadedTable:
        return RestCatalog(self.catalog).load_table(self.namespace, self.table)

    def credentials(self) -> Credentials:
        """Fresh ones."""
        loaded = RestCatalog(self.catalog).load_table(self.namespace, self.table, snapshots="refs")
        return credentials_of(loaded, self.catalog)


def credentials_of(loaded: LoadedTable, catalog: CatalogSettings) -> Credentials:
    """What the catalog vended with the table; if nothing, what the settings have.

    A catalog may leave the endpoint or the region to its clients, so settings that are no
    secrets lie beneath what it vended.
    """
    vended = loaded.credentials.vended
    beneath = catalog.plain_storage_properties if vended else catalog.storage_properties
    return Credentials(config=beneath).overlaid(loaded.credentials)


def spark_options(catalog: CatalogSettings) -> dict[str, str]:
    """The properties of a Spark catalog for the same principal. They hold secrets: do not log.

    Iceberg's REST catalog finds the right FileIO for each location by itself; `io-impl` among
    the storage properties chooses one for all of them.
    """
    auth = catalog.auth
    options = {
        **catalog.storage_properties,
        "type": "rest",
        "uri": catalog.uri,
        "warehouse": catalog.warehouse,
        **{f"header.{name}": value for name, value in DELEGATION.items()},
    }
    if auth.kind == "bearer":
        options |= {
            "rest.auth.type": "oauth2",
            "token": auth.token.get_secret_value().strip(),
            "token-refresh-enabled": "false",
        }
    elif auth.kind == "oauth2":
        options |= {
            "rest.auth.type": "oauth2",
            "credential": f"{auth.client_id}:{auth.client_secret.get_secret_value()}",
            "oauth2-server-uri": token_uri(catalog),
            "scope": auth.scope,
            # Renewed as Moraine renews its own: many servers know no other grant.
            "token-exchange-enabled": "false",
        }
    return {name: value for name, value in options.items() if value}
