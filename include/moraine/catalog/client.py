"""A client for Iceberg REST catalogs, as far as Moraine needs one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import quote, unquote

import requests

from moraine.errors import CatalogRefused, CatalogUnavailable, TableNotFound
from moraine.settings import CatalogSettings

_TIMEOUT = (5, 60)
_DEFAULT_SEPARATOR = "%1F"


@dataclass(frozen=True, slots=True)
class LoadedTable:
    metadata_location: str
    metadata: Mapping[str, Any]

    @property
    def uuid(self) -> str:
        return str(self.metadata["table-uuid"])

    @property
    def location(self) -> str:
        return str(self.metadata["location"])

    @property
    def properties(self) -> Mapping[str, str]:
        return self.metadata.get("properties") or {}


class RestCatalog:
    """One catalog, spoken to as Moraine's own principal."""

    def __init__(self, settings: CatalogSettings, session: requests.Session | None = None) -> None:
        self._base = settings.uri.rstrip("/")
        self._warehouse = settings.warehouse
        self._session = session or requests.Session()

    def load_table(self, namespace: Sequence[str], table: str) -> LoadedTable:
        body = self._request(
            "GET",
            self._table_path(namespace, table),
            headers={"X-Iceberg-Access-Delegation": "vended-credentials"},
        )
        return LoadedTable(body["metadata-location"], body["metadata"])

    def drop_table(self, namespace: Sequence[str], table: str) -> None:
        """Drop the metadata; the files are none of the catalog's business."""
        self._request(
            "DELETE", self._table_path(namespace, table), params={"purgeRequested": "false"}
        )

    def _table_path(self, namespace: Sequence[str], table: str) -> str:
        # The separator is advertised percent-encoded, as it goes into the path.
        separator = unquote(self._config.get("namespace-separator", _DEFAULT_SEPARATOR))
        levels = quote(separator.join(namespace), safe="")
        prefix = self._config.get("prefix")
        root = f"v1/{prefix}" if prefix else "v1"
        return f"{root}/namespaces/{levels}/tables/{quote(table, safe='')}"

    @cached_property
    def _config(self) -> Mapping[str, str]:
        parameters = {"warehouse": self._warehouse} if self._warehouse else {}
        body = self._request("GET", "v1/config", params=parameters)
        return {**(body.get("defaults") or {}), **(body.get("overrides") or {})}

    def _request(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        try:
            response = self._session.request(
                method, f"{self._base}/{path}", timeout=_TIMEOUT, allow_redirects=False, **options
            )
            return _answer(response)
        except (requests.RequestException, ValueError) as error:
            raise CatalogUnavailable(
                f"The catalog at {self._base} did not give a usable answer "
                f"({type(error).__name__})."
            ) from error


def _answer(response: requests.Response) -> dict[str, Any]:
    status = response.status_code
    if status < 300:
        return dict(response.json()) if response.content else {}
    message = f"The catalog answered {status}: {_message(response)}"
    if status == 404:
        raise TableNotFound(message)
    if status >= 500 or status in (408, 429):
        raise CatalogUnavailable(message)
    raise CatalogRefused(message)


def _message(response: requests.Response) -> str:
    """The catalog's own words, if it speaks Iceberg's error form; never a whole page."""
    try:
        return str(response.json()["error"]["message"])[:500]
    except (ValueError, KeyError, TypeError):
        return response.reason or "no reason given"
