"""A caller of an Iceberg REST catalog who sees every answer, good or bad."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import requests


@dataclass(frozen=True)
class RestClient:
    url: str
    prefix: str = ""
    """As the catalog's configuration names it, encoded."""
    token: str = ""

    def load(self, namespace: str, table: str, *, delegated: bool = True) -> requests.Response:
        headers = {"X-Iceberg-Access-Delegation": "vended-credentials"} if delegated else {}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        prefix = f"{self.prefix}/" if self.prefix else ""
        path = f"{self.url}/v1/{prefix}namespaces/{namespace}/tables/{table}"
        return requests.get(path, headers=headers, timeout=20)

    def loaded(self, namespace: str, table: str) -> dict[str, Any]:
        response = self.load(namespace, table)
        assert response.status_code == 200, response.text
        return dict(response.json())


def ask_for_token(
    url: str, client_id: str, client_secret: str, scope: str = "catalog"
) -> requests.Response:
    form = {
        "grant_type": "client_credentials",
        "client_id": client_id,
        "client_secret": client_secret,
        "scope": scope,
    }
    return requests.post(f"{url}/v1/oauth/tokens", data=form, timeout=20)
