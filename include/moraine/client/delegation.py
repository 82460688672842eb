"""The delegation API from a caller's side, for the command line, the demo and the tests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from moraine.client.session import open_session
from moraine.errors import MoraineError
from moraine.http import DELEGATION_PATH
from moraine.settings import Settings


class ApiError(MoraineError):
    """The API refused the request."""

    def __init__(self, status: int, body: dict[str, Any]) -> None:
        code = body.get("error_code", f"HTTP_{status}")
        super().__init__(
            f"{code}: {body.get('message', 'no message')}", details=body.get("details")
        )
        self.status = status
        self.body = body


class DelegationClient:
    def __init__(self, settings: Settings) -> None:
        self._session = open_session(settings)
        self._realm = settings.realm

    def purge(
        self, catalog: str, namespace: list[str], table: str, *, wait: bool = False, **given: str
    ) -> dict[str, Any]:
        """Submit a purge; the answer has the task's id. With `wait` it comes when the purge has
        ended. `given` are the purge's properties."""
        payload = self.purge_payload(catalog, namespace, table, **given)
        if wait:
            return self.call("POST", "/v1/tasks/execute/synchronous", json=payload, timeout=None)
        return self.call("POST", "/v1/tasks", json=payload)

    def purge_payload(
        self, catalog: str, namespace: list[str], table: str, **properties: str
    ) -> dict[str, Any]:
        return {
            "common_payload": {"operation_type": "TABLE_PURGE", "realm_identifier": self._realm},
            "operation_parameters": {
                "table_identity": {
                    "catalog_name": catalog,
                    "namespace_levels": namespace,
                    "table_name": table,
                },
                "properties": properties,
            },
        }

    def task(self, task_id: str) -> dict[str, Any]:
        return self.call("GET", f"/v1/tasks/{task_id}")

    def tasks(self, **filters: Any) -> dict[str, Any]:
        return self.call("GET", "/v1/tasks", params=filters)

    def events(self, task_id: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Events of a task as they happen, until it is terminal."""
        path = f"{DELEGATION_PATH}/v1/tasks/{task_id}/events"
        with self._session.request("GET", path, stream=True, timeout=(10, 60)) as response:
            if response.status_code != 200:
                raise ApiError(response.status_code, _body(response))
            name = ""
            for line in response.iter_lines(decode_unicode=True):
                field, _, value = line.partition(": ")
                if field == "event":
                    name = value
                elif field == "data" and name:
                    yield name, json.loads(value)

    def call(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        response = self._session.request(method, f"{DELEGATION_PATH}{path}", **options)
        if response.status_code >= 400:
            raise ApiError(response.status_code, _body(response))
        return _body(response)


def _body(response: Any) -> dict[str, Any]:
    try:
        return dict(response.json())
    except ValueError:
        return {}
