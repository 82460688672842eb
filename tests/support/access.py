"""The whole API before a stand-in for a catalog, with a policy: a site for callers and strangers.

with running_site(postgres, folder, POLICY) as site:
    site.api(sub="alice").submit("orders")
    site.audited(act="submit", subject="alice")
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
from psycopg.rows import dict_row

from moraine.drops.tombstones import TombstoneStore
from moraine.gateway.model import GATEWAY_PATH
from moraine.ledger.pools import open_pool
from moraine.local.stack import Stack
from moraine.settings import Settings
from moraine.tasks.store import TaskStore
from support.api_server import Api, Hand, running_api
from support.gateway import Caller
from support.ingest import free_port
from support.issuer import URL, Issuer
from support.ledger import everything_in, new_ledger
from support.relay import Answer, Request, Scripted

ALL_SCOPES = "execute_tasks ingest:write otlp:write audit:read"
CATALOG = "prod"
"""Behind the gateway, and where ingest writes."""


@dataclass
class AccessSite:
    origin: str
    ledger: str
    issuer: Issuer
    catalog: Scripted
    grpc_port: int
    hand: Hand

    def token(self, **claims: Any) -> str:
        return self.issuer.token(**{"scope": ALL_SCOPES, **claims})

    def api(self, **claims: Any) -> Api:
        """A caller of the API, `polaris` by default."""
        return Api(self.origin, self.token(**claims))

    def gateway(self, **claims: Any) -> Caller:
        headers = {"Authorization": f"Bearer {self.token(**claims)}"}
        return Caller(f"{self.origin}{GATEWAY_PATH}/{CATALOG}", headers)

    def hide(self, table: str, task_id: str) -> None:
        """As a drop of CATALOG.shop.TABLE does, whose purge is this task."""
        with open_pool(self.ledger) as pool:
            store = TombstoneStore(pool, "demo")
            added = store.add(CATALOG, ("shop",), table, str(uuid4()), UUID(task_id), "some caller")
            assert added is not None

    def state(self) -> str:
        """Everything in the ledger but the audit log."""
        return everything_in(self.ledger, but=("audit_log",))

    def audited(self, **wanted: str) -> list[dict[str, Any]]:
        """Rows of the audit log, oldest first."""
        where = " AND ".join(f"{name}::text = %({name})s" for name in wanted) or "true"
        query = f"SELECT * FROM audit_log WHERE {where} ORDER BY id"
        with psycopg.connect(self.ledger, row_factory=dict_row) as connection:
            return connection.execute(query, wanted).fetchall()  # type: ignore[arg-type]

    @contextmanager
    def without_audit_log(self) -> Iterator[None]:
        """As if the role might not write there."""
        with psycopg.connect(self.ledger, autocommit=True) as connection:
            connection.execute("ALTER TABLE audit_log RENAME TO audit_log_away")
            try:
                yield
            finally:
                connection.execute("ALTER TABLE audit_log_away RENAME TO audit_log")


def has_nothing(request: Request) -> Answer:
    """A catalog that has nothing, and no opinion on callers."""
    found = request.path.endswith("/v1/config")
    model = {"message": "Not there", "type": "NotFoundException", "code": 404}
    return Answer(200 if found else 404, json.dumps({} if found else {"error": model}).encode())


@contextmanager
def running_site(
    postgres: Stack,
    folder: Path,
    policy: str = "",
    *,
    issuer: Issuer | None = None,
    say: Callable[[Request], Answer] = has_nothing,
    catalog_settings: Callable[[str], dict[str, Any]] = lambda uri: {"uri": uri},
    **sections: Any,
) -> Iterator[AccessSite]:
    issuer = issuer or Issuer()
    with ExitStack() as stack:
        ledger = stack.enter_context(new_ledger(postgres))
        catalog = stack.enter_context(Scripted(say))
        port = free_port()
        if policy:
            (folder / "policy.toml").write_text(policy)
        given: dict[str, Any] = {
            "realm": "demo",
            "workspace": (folder / "workspace").as_uri(),
            "ledger": {"url": ledger, "pool_size": 4},
            "airflow": {"url": "http://127.0.0.1:9", "password": "x", "timeout": "1s"},
            "api": {
                "accept_airflow_tokens": False,
                "jwt": {"issuer": URL, "jwks_file": issuer.write_key_set(folder)},
            },
            "policy": {"file": folder / "policy.toml" if policy else None},
            "delegation": {"synchronous": {"wait_limit": "1s"}},
            "catalogs": {CATALOG: catalog_settings(catalog.url)},
            "gateway": {"require_token": True, "purge": {"wait_limit": "1s"}},
            "ingest": {"rest": {"wait": "1s"}, "otlp": {"grpc_port": port}},
        }
        settings = Settings(**{**given, **sections})
        origin = stack.enter_context(running_api(settings))
        pool = stack.enter_context(open_pool(ledger))
        yield AccessSite(origin, ledger, issuer, catalog, port, Hand(TaskStore(pool), settings))
