"""A server with several catalogs, as Polaris is one: each below a prefix of its own, and a token
for each caller, with rights in each of them. Behind it is one real catalog for all."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from support.keyed_catalog import as_json, error
from support.relay import Answer, Forward, Relay, Request

Right = Literal["read", "write"]


class GuardedCatalog(Relay):
    """`secretive` makes it answer 404 to those who may not see a thing, instead of 401 or 403."""

    def __init__(self, upstream: str, **principals: dict[str, Right]) -> None:
        super().__init__(upstream)
        self.principals = principals
        self.secretive = False
        self.separators: dict[str, str] = {}
        self.seen: list[Request] = []

    @property
    def changes(self) -> list[Request]:
        return [request for request in self.seen if request.method not in ("GET", "HEAD")]

    def asked_by(self, token: str) -> list[Request]:
        return [one for one in self.seen if one.header("Authorization") == f"Bearer {token}"]

    def answer(self, request: Request, forward: Forward) -> Answer:
        self.seen.append(request)
        token = request.header("Authorization").removeprefix("Bearer ")
        rights = self.principals.get(token)
        if request.path == "/v1/config":
            return self._config(request) if rights is not None else error(401)
        if rights is None:
            return self._refuse(401)
        _, _, catalog, *_ = request.target.split("/")
        right = rights.get(catalog)
        if right is None or (right == "read" and request.method not in ("GET", "HEAD")):
            return self._refuse(403)
        return forward(replace(request, target=request.target.replace(f"/{catalog}", "", 1)))

    def _refuse(self, status: int) -> Answer:
        return error(404, kind="NoSuchTableException") if self.secretive else error(status)

    def _config(self, request: Request) -> Answer:
        warehouse = request.query.get("warehouse", "")
        if not any(warehouse in rights for rights in self.principals.values()):
            return error(400, kind="BadRequestException")
        separator = self.separators.get(warehouse, "%2E")
        return as_json(200, {"overrides": {"prefix": warehouse, "namespace-separator": separator}})
