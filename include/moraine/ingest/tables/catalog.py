"""The catalog through PyIceberg: every table of ingest is loaded here.

PyIceberg lets the properties of a table choose the class that opens its files, the class that names
them, endpoints and credentials. Any principal that may set a property could run code with Moraine's
rights, or have rows sent elsewhere, signed with Moraine's keys. Here FileIO gets properties from
the settings and the catalog, never from the table; and no answer of a server chooses a class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import requests
from pyiceberg.catalog.rest import RestCatalog, TableResponse
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableRequirement, TableUpdate

from moraine.catalog.access import vending_options
from moraine.catalog.auth import auth_for
from moraine.catalog.client import DELEGATION
from moraine.settings import CatalogSettings
from moraine.tls.contexts import secured


class IngestCatalog(RestCatalog):
    """Moraine's own principal at one catalog."""

    def __init__(self, name: str, settings: CatalogSettings) -> None:
        # PyIceberg loads the configuration in its constructor, so the principal is set first.
        self._principal = auth_for(settings)
        self._tls = settings.tls
        vending = vending_options(settings)
        self._asks_for_keys = bool(vending)
        self._chosen = {
            name: value
            for name, value in settings.storage_properties.items()
            if _chooses_class(name)
        }
        properties = {
            "uri": settings.uri,
            **vending,
            **({"warehouse": settings.warehouse} if settings.warehouse else {}),
            **settings.storage_properties,
        }
        super().__init__(name, **properties)

    def _create_session(self) -> requests.Session:
        """PyIceberg's own would follow `auth` and `ssl` of the server's configuration."""
        session = secured(requests.Session(), self._tls)
        self._config_headers(session)
        if not self._asks_for_keys:  # PyIceberg asks by default
            for header in DELEGATION:
                session.headers.pop(header, None)
        session.auth = self._principal
        return session

    def _refresh_token(self) -> None:
        """The principal renews its token itself."""

    def _fetch_config(self) -> None:
        super()._fetch_config()
        self.properties = {**_plain(self.properties), **self._chosen}

    def _load_file_io(
        self, properties: Mapping[str, Any] | None = None, location: str | None = None
    ) -> FileIO:
        return load_file_io({**self.properties, **_plain(properties or {})}, location)

    def _response_to_table(self, identifier: tuple[str, ...], answer: TableResponse) -> Table:
        location = answer.metadata_location or answer.metadata.location
        vended = self._resolve_storage_credentials(answer.storage_credentials, location)
        return Table(
            identifier=identifier,
            metadata_location=location,
            metadata=_without_classes(answer.metadata),
            io=self._load_file_io({**answer.config, **vended}, location),
            catalog=self,
        )

    def commit_table(
        self,
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        answer: CommitTableResponse = super().commit_table(table, requirements, updates)
        return answer.model_copy(update={"metadata": _without_classes(answer.metadata)})

    @staticmethod
    def _delete_old_metadata(*_: Any) -> None:
        """The catalog does that."""


def _chooses_class(name: str) -> bool:
    """`py-io-impl`, `write.py-location-provider.impl`, `s3.retry-strategy-impl`, and the like."""
    return name.lower().endswith("impl")


def _plain(properties: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: value
        for name, value in properties.items()
        if isinstance(value, str) and not _chooses_class(name)
    }


def _without_classes(metadata: TableMetadata) -> TableMetadata:
    return metadata.model_copy(update={"properties": _plain(metadata.properties)})
