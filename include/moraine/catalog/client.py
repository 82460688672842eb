"""A client for Iceberg REST catalogs, as far as Moraine needs one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeVar
from urllib.parse import quote, unquote

import requests

from moraine.catalog.answers import AnswerTooLarge, read_json, read_object
from moraine.catalog.auth import auth_for
from moraine.catalog.properties import as_texts
from moraine.errors import CatalogRefused, CatalogUnavailable, TableNotFound
from moraine.settings import CatalogSettings
from moraine.storage.credentials import Credentials

_TIMEOUT = (5, 60)
_DEFAULT_SEPARATOR = "%1F"
_PAGE_SIZE = 1000
# A table's metadata grows with its snapshots: half a megabyte at 500 of them.
_MOST_BYTES = 256 << 20
_MOST_ERROR_BYTES = 1 << 20
DELEGATION = {"X-Iceberg-Access-Delegation": "vended-credentials"}
_LOCATIONS = (
    "write.data.path",
    "write.metadata.path",
    "write.object-storage.path",
    "write.folder-storage.path",
)

Snapshots = Literal["all", "refs"]
T = TypeVar("T")


class CatalogFailed(CatalogUnavailable):
    """The catalog answered that it failed itself."""


class MetadataMissing(TableNotFound):
    """The catalog has the table, but not what the table consists of."""


@dataclass(frozen=True, slots=True)
class LoadedTable:
    """A table as the catalog has it. What it vends with the table is in no repr."""

    metadata_location: str
    metadata: Mapping[str, Any] = field(repr=False)
    config: Mapping[str, str] = field(default_factory=dict, repr=False)
    storage_credentials: Sequence[Mapping[str, Any]] = field(default=(), repr=False)

    @property
    def uuid(self) -> str:
        """Empty for a table of format version 1 that never got one."""
        return str(self.metadata.get("table-uuid") or "")

    @property
    def location(self) -> str:
        return str(self.metadata["location"])

    @property
    def properties(self) -> Mapping[str, str]:
        return self.metadata.get("properties") or {}

    @property
    def credentials(self) -> Credentials:
        """What came with the table, and nothing else; see `access.credentials_of`."""
        return Credentials.from_load_table(
            {"config": self.config, "storage-credentials": self.storage_credentials}
        )


def table_locations(table: LoadedTable) -> list[str]:
    """Every folder that the table says its files are written to."""
    given = (table.properties.get(name) for name in _LOCATIONS)
    return [table.location, *(str(path) for path in given if path)]


class RestCatalog:
    """One catalog, spoken to as Moraine's own principal. Threads may share it."""

    def __init__(self, settings: CatalogSettings, session: requests.Session | None = None) -> None:
        self._base = settings.uri.rstrip("/")
        self._warehouse = settings.warehouse
        self._session = session or requests.Session()
        self._auth = auth_for(settings)

    def load_table(
        self,
        namespace: Sequence[str],
        table: str,
        *,
        vend: bool = True,
        snapshots: Snapshots = "all",
    ) -> LoadedTable:
        """The table, with credentials for its files if `vend` and the catalog gives any.

        `refs` leaves out snapshots that no branch or tag names, where the catalog can do that.
        """
        body = self._request(
            "GET",
            f"{self._namespace_path(namespace)}/tables/{quote(table, safe='')}",
            params={"snapshots": snapshots},
            headers=DELEGATION if vend else {},
        )
        return _loaded(body)

    def drop_table(self, namespace: Sequence[str], table: str) -> None:
        """Drop the metadata; the files are none of the catalog's business."""
        path = f"{self._namespace_path(namespace)}/tables/{quote(table, safe='')}"
        self._request("DELETE", path, params={"purgeRequested": "false"})

    def list_namespaces(self, parent: Sequence[str] | None = None) -> Iterator[tuple[str, ...]]:
        """Every namespace below `parent`, or of the catalog, each before those below it."""
        above = tuple(parent or ())
        # A server without nested namespaces may list the same ones again, whatever the parent.
        parameters = {"parent": self._separator.join(above)} if above else {}
        listed = self._pages(f"{self._root}/namespaces", "namespaces", list, parameters)
        below = dict.fromkeys(tuple(map(str, levels)) for levels in listed)
        for levels in below:
            if len(levels) <= len(above) or levels[: len(above)] != above:
                continue
            yield levels
            try:
                yield from self.list_namespaces(levels)
            except TableNotFound:
                continue  # dropped meanwhile

    def list_tables(self, namespace: Sequence[str]) -> Iterator[str]:
        path = f"{self._namespace_path(namespace)}/tables"
        for identifier in self._pages(path, "identifiers", dict):
            yield str(identifier.get("name"))

    def _pages(
        self, path: str, key: str, kind: type[T], parameters: Mapping[str, str] | None = None
    ) -> Iterator[T]:
        """What is listed under `key`, page by page; from one page if the server has only one."""
        token: str | None = ""
        seen: set[str] = set()
        while token is not None and token not in seen:
            seen.add(token)
            page = {"pageToken": token, "pageSize": str(_PAGE_SIZE)}
            body = self._request("GET", path, params={**(parameters or {}), **page})
            found = body.get(key) or []
            if not isinstance(found, list) or not all(isinstance(one, kind) for one in found):
                raise self._unusable(f"its {key} are no list of them")
            yield from found
            token = body.get("next-page-token") or None

    @property
    def _root(self) -> str:
        prefix = self._config.get("prefix")
        return f"v1/{prefix}" if prefix else "v1"

    @property
    def _separator(self) -> str:
        # It is advertised percent-encoded, as it goes into the path.
        return unquote(self._config.get("namespace-separator", _DEFAULT_SEPARATOR))

    def _namespace_path(self, namespace: Sequence[str]) -> str:
        return f"{self._root}/namespaces/{quote(self._separator.join(namespace), safe='')}"

    @cached_property
    def _config(self) -> Mapping[str, str]:
        parameters = {"warehouse": self._warehouse} if self._warehouse else {}
        try:
            body = self._request("GET", "v1/config", params=parameters)
        except TableNotFound as error:
            raise CatalogRefused(
                f"{self._base} has no Iceberg REST catalog, or none with the warehouse "
                f"{self._warehouse!r}. Check the catalog's uri and warehouse."
            ) from error
        layers = [body.get("defaults"), body.get("overrides")]
        return {k: str(v) for one in layers if isinstance(one, dict) for k, v in one.items()}

    def _request(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        try:
            response = self._session.request(
                method,
                f"{self._base}/{path}",
                auth=self._auth,
                timeout=_TIMEOUT,
                allow_redirects=False,
                stream=True,
                **options,
            )
            if response.status_code >= 300:
                raise _refusal(response)
            body = read_json(response, _MOST_BYTES)
        except (requests.RequestException, ValueError) as error:
            raise self._unusable(type(error).__name__) from error
        except AnswerTooLarge as error:
            raise CatalogRefused(
                f"The catalog at {self._base} sent more than {_MOST_BYTES >> 20} MiB in answer to "
                f"{path}. Expire the table's old snapshots."
            ) from error
        if not isinstance(body, dict):
            raise self._unusable("no JSON object")
        return body

    def _unusable(self, why: str) -> CatalogUnavailable:
        return CatalogUnavailable(
            f"The catalog at {self._base} did not give a usable answer ({why})."
        )


def _loaded(body: Mapping[str, Any]) -> LoadedTable:
    place, metadata = body.get("metadata-location"), body.get("metadata")
    if not place or not isinstance(place, str):
        raise CatalogRefused(
            "The catalog does not say where the table's metadata file is (metadata-location); "
            "without it the table cannot be told from another."
        )
    if not isinstance(metadata, dict) or not isinstance(metadata.get("location"), str):
        raise CatalogRefused("The catalog sent the table without its metadata or its location.")
    config, vended = body.get("config"), body.get("storage-credentials")
    return LoadedTable(
        place,
        metadata,
        as_texts(config) if isinstance(config, dict) else {},
        [one for one in vended if isinstance(one, dict)] if isinstance(vended, list) else (),
    )


def _refusal(response: requests.Response) -> CatalogUnavailable | CatalogRefused | TableNotFound:
    status = response.status_code
    error = read_object(response, _MOST_ERROR_BYTES).get("error")
    error = error if isinstance(error, dict) else {}
    message = f"The catalog answered {status}: {_words(response, error)}"
    if status == 404:
        kind = str(error.get("type") or "NoSuch")
        return TableNotFound(message) if "NoSuch" in kind else MetadataMissing(message)
    if status == 500:
        return CatalogFailed(message)
    if status >= 500 or status in (408, 429):
        return CatalogUnavailable(message)
    return CatalogRefused(message)


def _words(response: requests.Response, error: Mapping[str, Any]) -> str:
    """The catalog's own words, if it speaks Iceberg's error form; never a page, nor the token."""
    words = str(error.get("message") or response.reason or "no reason given")
    token = str(response.request.headers.get("Authorization", "")).removeprefix("Bearer ")
    return (words.replace(token, "***") if token else words)[:500]
