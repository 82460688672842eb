"""The paths of each catalog, from its configuration, fetched as Moraine's own principal.

The answer to a caller would not do: the caller's headers and parameters influence it, and all
callers share the result."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from moraine.catalog.client import RestCatalog
from moraine.errors import CatalogUnavailable, MoraineError
from moraine.gateway.errors import UpstreamUnreachable
from moraine.iceberg.paths import CatalogPaths
from moraine.log import get_logger
from moraine.settings import CatalogSettings

log = get_logger(__name__)

_MAX_AGE = 3600.0
# A catalog may have moved, but an unknown caller must not trigger a fetch with every request.
RECENT = 30.0


class ConfigUnknown(UpstreamUnreachable):
    """The catalog behind the gateway does not tell its configuration."""

    code = "CATALOG_CONFIG_UNKNOWN"


class DiscoveredPaths:
    """The paths of one catalog. The last answer holds while the catalog does not answer."""

    def __init__(
        self, name: str, settings: CatalogSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name = name
        self._settings = settings
        self._clock = clock
        self._paths: CatalogPaths | None = None
        self._fetched_at = 0.0
        self._fetching: asyncio.Task[CatalogPaths] | None = None

    async def get(self, max_age: float = _MAX_AGE) -> CatalogPaths:
        if self._paths is not None and self._clock() - self._fetched_at < max_age:
            return self._paths
        if self._fetching is None or self._fetching.done():
            self._fetching = asyncio.create_task(self._fetch())
        try:
            # All waiting requests share it: a caller that hangs up does not cancel it.
            return await asyncio.shield(self._fetching)
        except ConfigUnknown:
            if self._paths is None:
                raise
            return self._paths

    async def _fetch(self) -> CatalogPaths:
        asked_at = self._clock()
        try:
            self._paths = await asyncio.to_thread(self._ask)
        except MoraineError as error:
            # Neither quotes the catalog: its message may repeat Moraine's credentials.
            log.warning("gateway.config_unknown", catalog=self._name, error=type(error).__name__)
            raise ConfigUnknown(self._explain(error)) from error
        self._fetched_at = asked_at
        return self._paths

    def _ask(self) -> CatalogPaths:
        catalog = RestCatalog(self._settings)
        return CatalogPaths.of(catalog.prefix, catalog.separator)

    def _explain(self, error: MoraineError) -> str:
        if isinstance(error, CatalogUnavailable):
            return f"The catalog {self._name!r} does not answer /v1/config now. Ask again later."
        return (
            f"The catalog {self._name!r} refuses /v1/config to Moraine's own principal, so the "
            "gateway does not know the catalog's paths. Check catalogs."
            f"{self._name}.uri, .warehouse and .auth."
        )
