"""What Airflow's connections say about a catalog, in the words of its settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from pydantic import SecretStr

from moraine.errors import CatalogNotConfigured
from moraine.settings import CatalogAuthSettings, CatalogSettings


class Connection(Protocol):
    """The part of an Airflow connection that counts here."""

    conn_id: str
    conn_type: str | None
    host: str | None
    login: str | None
    password: str | None

    @property
    def extra_dejson(self) -> dict[str, Any]: ...


def with_connections(
    settings: CatalogSettings, principal: Connection | None, storage: Connection | None
) -> CatalogSettings:
    """The settings with `moraine_catalog_NAME` and `moraine_storage_NAME` laid over them."""
    changes: dict[str, Any] = {}
    if principal:
        changes["auth"] = auth_of(principal, settings.auth)
    if storage:
        given = {name: SecretStr(value) for name, value in storage_properties_of(storage).items()}
        changes["storage"] = {**settings.storage, **given}
    return settings.model_copy(update=changes)


def auth_of(connection: Connection, settings: CatalogAuthSettings) -> CatalogAuthSettings:
    """A login and a password are a client's; a password alone is a bearer token.

    Unless the settings name the client: then a password alone is that client's secret.
    """
    extra = connection.extra_dejson
    changes: dict[str, Any] = {
        name: str(extra[name]) for name in ("token_uri", "scope", "client_auth") if extra.get(name)
    }
    password = SecretStr(connection.password or "")
    if password and (connection.login or settings.client_id):
        changes |= {
            "kind": "oauth2",
            "client_id": connection.login or settings.client_id,
            "client_secret": password,
        }
    elif password:
        changes |= {"kind": "bearer", "token": password}
    return CatalogAuthSettings.model_validate({**dict(settings), **changes})


def storage_properties_of(connection: Connection) -> dict[str, str]:
    """Iceberg's FileIO properties. They hold secrets: do not log them."""
    kinds = {
        "aws": _s3_properties,
        "google_cloud_platform": _gcs_properties,
        "wasb": _adls_properties,
        "adls": _adls_properties,
    }
    kind = kinds.get(connection.conn_type or "")
    if kind is None:
        raise CatalogNotConfigured(
            f"The Airflow connection {connection.conn_id} has the type {connection.conn_type!r}; "
            f"for a catalog's storage it must be one of {', '.join(kinds)}."
        )
    return {name: str(value) for name, value in kind(connection).items() if value}


def _s3_properties(connection: Connection) -> dict[str, Any]:
    extra = connection.extra_dejson
    service = _section(extra, "service_config", "s3")
    addressing = _section(extra, "config_kwargs", "s3").get("addressing_style")
    path_style = extra.get("path_style", True if addressing == "path" else None)
    return {
        "s3.access-key-id": connection.login,
        "s3.secret-access-key": connection.password,
        "s3.session-token": extra.get("aws_session_token"),
        "client.region": extra.get("region_name"),
        "s3.endpoint": extra.get("endpoint_url") or service.get("endpoint_url"),
        "s3.path-style-access": None if path_style is None else str(path_style).lower(),
    }


def _gcs_properties(connection: Connection) -> dict[str, Any]:
    """A key file is read here: where the files are deleted, there may be none."""
    extra = connection.extra_dejson
    key = extra.get("keyfile_dict")
    if path := extra.get("key_path"):
        try:
            key = Path(path).read_text()
        except (OSError, UnicodeError) as error:
            raise CatalogNotConfigured(
                f"The key file {path} of the Airflow connection {connection.conn_id} cannot be "
                f"read ({type(error).__name__})."
            ) from error
    return {
        "gcs.oauth2.token": extra.get("token"),
        "gcs.project-id": extra.get("project"),
        "gcs.service-account.key": json.dumps(key) if isinstance(key, Mapping) else key,
    }


def _adls_properties(connection: Connection) -> dict[str, Any]:
    """A login names the account, or else the host does: ACCOUNT.blob.core.windows.net."""
    account = connection.login or (connection.host or "").split("//")[-1].split(".")[0]
    sas_token = connection.extra_dejson.get("sas_token")
    if sas_token:
        # Iceberg looks for it by the host of abfs locations.
        return {f"adls.sas-token.{account}.dfs.core.windows.net": str(sas_token).lstrip("?")}
    return {
        "adls.auth.shared-key.account.name": account,
        "adls.auth.shared-key.account.key": connection.password,
    }


def _section(extra: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    found: Any = extra
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}
