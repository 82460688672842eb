"""A catalog as people's scripts speak to it: under keys, and with errors that tell all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self, TypeVar

import requests
from requests.auth import AuthBase

from moraine.catalog.adapter import IdempotentAdapter
from moraine.catalog.auth import BearerAuth, NoAuth, auth_for
from moraine.catalog.client import HttpCatalog
from moraine.catalog.config import ServerConfig, is_suspect
from moraine.catalog.endpoints import Endpoint
from moraine.catalog.errors import (
    BadRequest,
    CatalogError,
    EndpointNotSupported,
    ServerError,
    ServiceUnavailable,
    error_for,
    key_of,
    unknown_for,
)
from moraine.catalog.retries import never_left
from moraine.idempotency.key import HEADER, PATTERN
from moraine.settings import CatalogSettings

T = TypeVar("T")
Json = Mapping[str, Any]


class KeyedCatalog(HttpCatalog):
    """The way to a catalog, without the operations; `IcebergCatalog` has those."""

    def __init__(
        self,
        uri: str,
        *,
        warehouse: str = "",
        token: str = "",
        auth: AuthBase | None = None,
        properties: Mapping[str, str] | None = None,
        session: requests.Session | None = None,
        adapter: IdempotentAdapter | None = None,
        timeout: tuple[float, float] = (5, 60),
    ) -> None:
        """`session` is for whoever needs proxies, certificates or headers; it gets the adapter."""
        auth = auth or (BearerAuth(token) if token else NoAuth())
        super().__init__(uri, warehouse, auth, session, timeout)
        self._own = dict(properties or {})
        adapter = adapter or IdempotentAdapter(uri=self._base, warehouse=warehouse)
        self._configs = adapter.configs
        self._place = (self._base, warehouse)
        self._session.mount(f"{self._base}/", adapter)

    @classmethod
    def from_settings(cls, settings: CatalogSettings, **options: Any) -> Self:
        """A catalog of Moraine's settings, as the principal that they name."""
        auth = auth_for(settings)
        return cls(settings.uri, warehouse=settings.warehouse, auth=auth, **options)

    def close(self) -> None:
        self._session.close()

    @property
    def server_config(self) -> ServerConfig:
        """At most an hour old."""
        config = self._configs.get(self._place, self._fetch_config)
        assert config is not None  # fetching it raises otherwise
        return config

    @property
    def config(self) -> Mapping[str, str]:
        """The server's defaults, then the client's own properties, then the server's overrides."""
        return self.server_config.merged(self._own)

    @property
    def endpoints(self) -> frozenset[str]:
        return self.server_config.endpoints

    def supports(self, endpoint: str) -> bool:
        """Whether the catalog has, say, `POST /v1/{prefix}/namespaces`."""
        return endpoint in self.endpoints

    def _ask(self, endpoint: Endpoint, **options: Any) -> dict[str, Any]:
        if not self.supports(endpoint):
            raise EndpointNotSupported(
                f"The catalog at {self._base} does not advertise {endpoint}; nothing was sent."
            )
        return super()._ask(endpoint, **options)

    def _change(
        self, endpoint: Endpoint, payload: Json | None, key: str | None, **options: Any
    ) -> dict[str, Any]:
        if key is not None and not PATTERN.fullmatch(key):
            raise BadRequest(
                "An idempotency key has 1 to 255 letters, digits, '_', '.' or '-', and begins with "
                "a letter or digit; nothing was sent.",
                key=key,
            )
        if payload is not None:
            options["json"] = {name: value for name, value in payload.items() if value is not None}
        return self._ask(endpoint, headers={HEADER: key} if key else {}, **options)

    def _read_as(self, kind: Callable[[Json], T], endpoint: Endpoint, body: Json) -> T:
        try:
            return kind(body)
        except ValueError as error:
            raise self._unusable(endpoint, str(error)) from error

    @property
    def _properties(self) -> Mapping[str, str]:
        return self.config

    def _refusal(self, endpoint: Endpoint, response: requests.Response) -> CatalogError:
        error = error_for(endpoint, response)
        # An answer to HEAD has no body to name anything in.
        if endpoint.method != "HEAD" and is_suspect(response.status_code, error.named):
            self._configs.forget(self._place)
        return error

    def _unusable(
        self, endpoint: Endpoint, why: str, error: Exception | None = None
    ) -> CatalogError:
        message = f"The catalog at {self._base} gave no usable answer to {endpoint} ({why})."
        key = key_of(getattr(error, "request", None))
        lost = isinstance(error, requests.RequestException)
        if never_left(error):
            return ServiceUnavailable(message, key=key)
        if endpoint.mutates:
            return unknown_for(endpoint)(message, key=key)
        return ServiceUnavailable(message) if lost else ServerError(message)
