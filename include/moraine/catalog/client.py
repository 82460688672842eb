"""A client for Iceberg REST catalogs, limited to what Moraine needs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeVar
from urllib.parse import quote, unquote

import requests
from requests.auth import AuthBase

from moraine.catalog.answers import AnswerTooLarge, read_error, read_json, words_of
from moraine.catalog.auth import auth_for
from moraine.errors import CatalogRefused, CatalogUnavailable, MoraineError, TableNotFound
from moraine.iceberg.config import ServerConfig
from moraine.iceberg.endpoints import Endpoint
from moraine.iceberg.paths import DEFAULT_SEPARATOR
from moraine.settings import CatalogSettings
from moraine.settings.properties import texts_of
from moraine.storage.credentials import Credentials
from moraine.tls.contexts import secured

_TIMEOUT = (5, 60)
_PAGE_SIZE = 1000
# A table's metadata grows with its snapshots: half a megabyte at 500 of them.
_MAX_BYTES = 256 << 20
DELEGATION = {"X-Iceberg-Access-Delegation": "vended-credentials"}
Snapshots = Literal["all", "refs"]
T = TypeVar("T")


class CatalogFailed(CatalogUnavailable):
    """The catalog answered with an internal error."""


class RequestRefused(CatalogRefused):
    """The catalog rejects this request, whichever principal sends it."""


class MetadataMissing(TableNotFound):
    """The catalog has the table, but the table's metadata file is gone."""

    code = "TABLE_METADATA_MISSING"


class NoSuchPage(TableNotFound):
    """There is no such page. Whether the table exists is unknown."""


@dataclass(frozen=True, slots=True)
class LoadedTable:
    """A table as the catalog returns it. Vended credentials are in no repr."""

    metadata_location: str
    metadata: Mapping[str, Any] = field(repr=False)
    config: Mapping[str, str] = field(default_factory=dict, repr=False)
    storage_credentials: Sequence[Mapping[str, Any]] = field(default=(), repr=False)

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> LoadedTable:
        """From the answer to a load, a create or a commit. Only a staged table has no file yet."""
        metadata, config, vended = (
            body.get(name) for name in ("metadata", "config", "storage-credentials")
        )
        if not isinstance(metadata, dict) or not isinstance(metadata.get("location"), str):
            raise ValueError("a table without its metadata or its location")
        return cls(
            str(body.get("metadata-location") or ""),
            metadata,
            texts_of(config),
            [one for one in vended if isinstance(one, dict)] if isinstance(vended, list) else (),
        )

    @property
    def uuid(self) -> str:
        """Empty for a table of format version 1 that has none."""
        return str(self.metadata.get("table-uuid") or "")

    @property
    def location(self) -> str:
        return str(self.metadata["location"])

    @property
    def properties(self) -> Mapping[str, str]:
        return self.metadata.get("properties") or {}

    @property
    def credentials(self) -> Credentials:
        """Only what the catalog sent with the table; see `access.credentials_of`."""
        return Credentials.from_load_table(
            {"config": self.config, "storage-credentials": self.storage_credentials}
        )


class HttpCatalog(ABC):
    """What all clients of a catalog have in common: paths, pages and bounded answers.

    A subclass provides the configuration and translates errors.
    """

    def __init__(
        self,
        uri: str,
        warehouse: str,
        auth: AuthBase,
        session: requests.Session | None,
        timeout: tuple[float, float] = _TIMEOUT,
    ) -> None:
        self._base = uri.rstrip("/")
        self._warehouse = warehouse
        self._session = session or requests.Session()
        self._auth = auth
        self._timeout = timeout

    @property
    @abstractmethod
    def _properties(self) -> Mapping[str, str]:
        """The server's configuration, merged with the client's own."""

    @abstractmethod
    def _refusal(self, endpoint: Endpoint, response: requests.Response) -> MoraineError:
        """The error for an unsuccessful answer."""

    @abstractmethod
    def _unusable(
        self, endpoint: Endpoint, why: str, error: Exception | None = None
    ) -> MoraineError:
        """The error for a missing or unusable answer."""

    def _fetch_config(self) -> ServerConfig:
        parameters = {"warehouse": self._warehouse} if self._warehouse else {}
        return ServerConfig.from_json(
            self._send(Endpoint.GET_CONFIG, "v1/config", params=parameters)
        )

    def _ask(
        self,
        endpoint: Endpoint,
        *,
        namespace: Sequence[str] = (),
        name: str = "",
        **options: Any,
    ) -> dict[str, Any]:
        """Send a request; `name` is the name of a table or view."""
        quoted = quote(name, safe="")
        names = {
            "namespace": quote(self._separator.join(namespace), safe=""),
            "table": quoted,
            "view": quoted,
        }
        return self._send(endpoint, endpoint.path(self.prefix, names), **options)

    def _pages(
        self,
        endpoint: Endpoint,
        key: str,
        kind: type[T],
        parameters: Mapping[str, str] | None = None,
        **names: Any,
    ) -> Iterator[T]:
        """The items under `key` of all pages. A server without pages answers with one."""
        token: str | None = ""
        seen: set[str] = set()
        while token is not None and token not in seen:
            seen.add(token)
            page = {"pageToken": token, "pageSize": str(_PAGE_SIZE)}
            body = self._ask(endpoint, params={**(parameters or {}), **page}, **names)
            found = body.get(key) or []
            if not isinstance(found, list) or not all(isinstance(one, kind) for one in found):
                raise self._unusable(endpoint, f"its {key} are no list of them")
            yield from found
            token = body.get("next-page-token") or None

    def _namespaces_in(self, parent: Sequence[str]) -> Iterator[tuple[str, ...]]:
        above = tuple(parent)
        # A server without nested namespaces may list the same ones for every parent.
        parameters = {"parent": self._separator.join(above)} if above else {}
        listed = self._pages(Endpoint.LIST_NAMESPACES, "namespaces", list, parameters)
        for levels in dict.fromkeys(tuple(map(str, levels)) for levels in listed):
            if len(levels) > len(above) and levels[: len(above)] == above:
                yield levels

    def _tables_in(self, namespace: Sequence[str]) -> Iterator[str]:
        pages = self._pages(Endpoint.LIST_TABLES, "identifiers", dict, namespace=namespace)
        return (str(identifier.get("name")) for identifier in pages)

    @property
    def prefix(self) -> str:
        """The prefix of every path, percent-encoded."""
        return self._properties.get("prefix") or ""

    @property
    def separator(self) -> str:
        """The separator between a namespace's levels in a path, percent-encoded."""
        return self._properties.get("namespace-separator", DEFAULT_SEPARATOR)

    @property
    def _separator(self) -> str:
        return unquote(self.separator)

    def _send(self, endpoint: Endpoint, path: str, **options: Any) -> dict[str, Any]:
        try:
            response = self._session.request(
                endpoint.method,
                f"{self._base}/{path}",
                auth=self._auth,
                timeout=self._timeout,
                allow_redirects=False,
                stream=True,
                **options,
            )
            if response.status_code >= 300:
                raise self._refusal(endpoint, response)
            body = read_json(response, _MAX_BYTES)
        except MoraineError:
            raise  # already translated, though it may be an error of requests as well
        except AnswerTooLarge as error:
            why = f"more than {_MAX_BYTES >> 20} MiB in answer to {path}"
            raise self._unusable(endpoint, why, error) from error
        except (requests.RequestException, ValueError) as error:
            raise self._unusable(endpoint, type(error).__name__, error) from error
        if not isinstance(body, dict):
            raise self._unusable(endpoint, "no JSON object")
        return body


class RestCatalog(HttpCatalog):
    """A catalog, accessed as Moraine's own principal. Threads may share it."""

    def __init__(self, settings: CatalogSettings, session: requests.Session | None = None) -> None:
        session = session or secured(requests.Session(), settings.tls)
        super().__init__(settings.uri, settings.warehouse, auth_for(settings), session)

    def load_table(
        self,
        namespace: Sequence[str],
        table: str,
        *,
        vend: bool = True,
        snapshots: Snapshots = "all",
    ) -> LoadedTable:
        """The table, with credentials for its files if `vend` is set and the catalog vends any.

        `refs` omits snapshots that no branch or tag references, if the catalog supports that.
        """
        try:
            return self._load(namespace, table, snapshots, DELEGATION if vend else {})
        except RequestRefused:
            if not vend:
                raise
        # A Polaris without STS refuses requests for credentials.
        return self._load(namespace, table, snapshots, {})

    def _load(
        self, namespace: Sequence[str], table: str, snapshots: Snapshots, headers: Mapping[str, str]
    ) -> LoadedTable:
        parameters = {"snapshots": snapshots}
        names: dict[str, Any] = {"namespace": namespace, "name": table}
        return _loaded(self._ask(Endpoint.LOAD_TABLE, **names, params=parameters, headers=headers))

    def read(self, endpoint: Endpoint, path: str, query: str) -> dict[str, Any] | None:
        """The catalog's answer for a path, or None if there is no such object."""
        try:
            return self._send(endpoint, path.lstrip("/"), params=query)
        except (MetadataMissing, NoSuchPage):
            raise
        except TableNotFound:
            return None

    def drop_table(self, namespace: Sequence[str], table: str) -> None:
        """Drop the table from the catalog, which must not delete its files."""
        parameters = {"purgeRequested": "false"}
        self._ask(Endpoint.DROP_TABLE, namespace=namespace, name=table, params=parameters)

    def list_namespaces(self, parent: Sequence[str] | None = None) -> Iterator[tuple[str, ...]]:
        """All namespaces below `parent`, or of the catalog. A parent comes before its children."""
        for levels in self._namespaces_in(parent or ()):
            yield levels
            try:
                yield from self.list_namespaces(levels)
            except TableNotFound:
                continue  # dropped meanwhile

    def list_tables(self, namespace: Sequence[str]) -> Iterator[str]:
        return self._tables_in(namespace)

    @property
    def properties(self) -> Mapping[str, str]:
        """The catalog's configuration."""
        return self._properties

    @cached_property
    def _properties(self) -> Mapping[str, str]:
        try:
            return self._fetch_config().merged({})
        except TableNotFound as error:
            raise CatalogRefused(
                f"{self._base} has no Iceberg REST catalog, or none with the warehouse "
                f"{self._warehouse!r}. Check the catalog's uri and warehouse."
            ) from error

    def _refusal(
        self, endpoint: Endpoint, response: requests.Response
    ) -> CatalogUnavailable | CatalogRefused | TableNotFound:
        del endpoint
        status, error = response.status_code, read_error(response)
        words = words_of(response, error)
        message = f"The catalog answered {status}: {words}"
        if status == 404:
            if not error:  # another server may have answered
                return NoSuchPage(message)
            kind = str(error.get("type") or "NoSuch")
            # The message is for operators of the catalog: which file, in which class.
            return (TableNotFound if "NoSuch" in kind else MetadataMissing)(details=words)
        if status == 500:
            return CatalogFailed(message)
        if status >= 500 or status in (408, 429):
            return CatalogUnavailable(message)
        return RequestRefused(message) if status == 400 else CatalogRefused(message)

    def _unusable(
        self, endpoint: Endpoint, why: str, error: Exception | None = None
    ) -> CatalogUnavailable | CatalogRefused:
        del endpoint
        if isinstance(error, AnswerTooLarge):
            return CatalogRefused(
                f"The catalog at {self._base} sent {why}. Expire the table's old snapshots."
            )
        return CatalogUnavailable(
            f"The catalog at {self._base} did not give a usable answer ({why})."
        )


def _loaded(body: Mapping[str, Any]) -> LoadedTable:
    place = body.get("metadata-location")
    if not place or not isinstance(place, str):
        raise CatalogRefused(
            "The catalog does not say where the table's metadata file is (metadata-location); "
            "without it the table cannot be identified."
        )
    try:
        return LoadedTable.from_json(body)
    except ValueError as error:
        raise CatalogRefused(f"The catalog sent {error}.") from error
