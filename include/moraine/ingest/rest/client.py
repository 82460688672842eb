"""A client of the REST door, for the command line and the demo."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from moraine.client.session import open_session
from moraine.errors import MoraineError
from moraine.ingest.rest.app import INGEST_PATH
from moraine.settings import Settings

_TIMEOUT = 120


class DoorError(MoraineError):
    """The door refused the request."""

    def __init__(self, status: int, body: dict[str, Any]) -> None:
        error = body.get("error", {})
        super().__init__(f"{error.get('code', f'HTTP {status}')}: {error.get('message', '')}")
        self.status = status


class IngestClient:
    def __init__(self, settings: Settings) -> None:
        self._session = open_session(settings)

    def send(
        self,
        database: str,
        table: str,
        lines: Path | bytes,
        *,
        key: str | None = None,
        create: bool = False,
        evolve: bool = True,
    ) -> dict[str, Any]:
        """Without a key, the table and the content make one: sent again, it is a replay."""
        body = lines.read_bytes() if isinstance(lines, Path) else lines
        content = hashlib.sha256(f"{database}.{table}:".encode() + body).hexdigest()
        return self.call(
            "POST",
            "/v1/ingest",
            data=body,
            headers={
                "Content-Type": "application/x-ndjson",
                "X-Database": database,
                "X-Table": table,
                "X-Idempotency-Key": key or f"content:{content}",
                "X-Auto-Create": str(create).lower(),
                "X-Schema-Evolve": str(evolve).lower(),
            },
            timeout=_TIMEOUT,
        )

    def call(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        response = self._session.request(method, f"{INGEST_PATH}{path}", **options)
        try:
            body = dict(response.json())
        except ValueError:
            body = {}
        if response.status_code >= 400:
            raise DoorError(response.status_code, body)
        return body
