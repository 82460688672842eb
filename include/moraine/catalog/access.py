"""Access to a table's files, for this process, an executor or Spark."""

from __future__ import annotations

from dataclasses import dataclass

from moraine.catalog.auth import token_uri, tokens_for
from moraine.catalog.client import DELEGATION, LoadedTable, RestCatalog
from moraine.settings import CatalogSettings
from moraine.storage.credentials import Credentials


@dataclass(frozen=True)
class TableAccess:
    """All that is needed to load a table. It can be sent to a process without settings."""

    catalog: CatalogSettings
    namespace: tuple[str, ...]
    table: str

    def load(self) -> LoadedTable:
        return RestCatalog(self.catalog).load_table(self.namespace, self.table)

    def credentials(self) -> Credentials:
        """New credentials, from a new load of the table."""
        loaded = RestCatalog(self.catalog).load_table(self.namespace, self.table, snapshots="refs")
        return credentials_of(loaded, self.catalog)


def credentials_of(loaded: LoadedTable, catalog: CatalogSettings) -> Credentials:
    """The credentials that the catalog vended with the table, or those of the settings.

    A catalog may leave the endpoint or the region to its clients, so settings that are not secrets
    complete vended credentials.
    """
    vended = loaded.credentials.vended
    beneath = catalog.plain_storage_properties if vended else catalog.storage_properties
    return Credentials(config=beneath).overlaid(loaded.credentials)


def vending_options(catalog: CatalogSettings) -> dict[str, str]:
    """Options that make an Iceberg client request credentials. Only if the settings have none:
    a catalog that cannot vend any may refuse the request."""
    if catalog.holds_storage_keys:
        return {}
    return {f"header.{name}": value for name, value in DELEGATION.items()}


def spark_options(catalog: CatalogSettings) -> dict[str, str]:
    """The properties of a Spark catalog for the same principal. Contains secrets: do not log.

    Iceberg's own client knows client secrets only. With a private key or a certificate, Moraine
    fetches the token and hands it over. It has at least half of its lifetime left, and the next
    job gets a newer one.

    Iceberg's REST catalog selects the FileIO for each location; `io-impl` among the storage
    properties sets one for all of them.
    """
    auth = catalog.auth
    options = {
        **catalog.storage_properties,
        "type": "rest",
        "uri": catalog.uri,
        "warehouse": catalog.warehouse,
        **vending_options(catalog),
    }
    if auth.kind == "bearer":
        options |= _fixed_token(auth.token.get_secret_value().strip())
    elif auth.kind == "oauth2" and auth.client_auth not in ("body", "basic"):
        options |= _fixed_token(tokens_for(catalog).get(fresh=True))
    elif auth.kind == "oauth2":
        options |= {
            "rest.auth.type": "oauth2",
            "credential": f"{auth.client_id}:{auth.client_secret.get_secret_value()}",
            "oauth2-server-uri": token_uri(catalog),
            "scope": auth.scope,
            # Renewed like Moraine's own: many servers support no other grant.
            "token-exchange-enabled": "false",
        }
    return {name: value for name, value in options.items() if value}


def _fixed_token(token: str) -> dict[str, str]:
    return {"rest.auth.type": "oauth2", "token": token, "token-refresh-enabled": "false"}
