"""Airflow's connections as overrides of the settings."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from pydantic import SecretStr

from moraine.errors import CatalogNotConfigured
from moraine.settings import AirflowSettings, CatalogAuthSettings, CatalogSettings, get_settings

LEDGER = "moraine_ledger"
LEDGER_EXECUTOR = "moraine_ledger_executor"
SPARK = "moraine_spark"
AIRFLOW = "moraine_airflow"
CATALOG = "moraine_catalog_"
STORAGE = "moraine_storage_"
FILEDROP = "moraine_filedrop_"

# What the extra of `moraine_catalog_NAME` may name.
_AUTH_EXTRAS = (
    "token_uri",
    "scope",
    "client_auth",
    "private_key",
    "key_id",
    "assertion_audience",
)
# Airflow allows no other characters in a connection's id.
_CONNECTION_NAME = re.compile(r"[A-Za-z0-9_.-]+")


class Connection(Protocol):
    """The attributes of an Airflow connection that are read here."""

    conn_id: str
    conn_type: str | None
    host: str | None
    login: str | None
    password: str | None

    port: int | None
    schema: str | None

    @property
    def extra_dejson(self) -> dict[str, Any]: ...

    def get_uri(self) -> str: ...


@functools.cache
def find_connection(name: str) -> Connection | None:
    """The connection, or None if Airflow has none of that name."""
    from airflow.sdk import Connection as AirflowConnection
    from airflow.sdk.exceptions import AirflowNotFoundException

    try:
        found: Connection = AirflowConnection.get(name)
        return found
    except AirflowNotFoundException:
        return None


def ledger_url() -> str:
    return _database_url(LEDGER, get_settings().ledger.url)


def executor_ledger_url() -> str:
    """The ledger for executors. Empty: they use the one of the worker."""
    return _database_url(LEDGER_EXECUTOR, get_settings().ledger.executor_url)


def _database_url(connection_name: str, otherwise: SecretStr) -> str:
    connection = find_connection(connection_name)
    url = otherwise.get_secret_value() if connection is None else connection.get_uri()
    return get_settings().ledger.secured(url.replace("postgres://", "postgresql://", 1))


def airflow_settings() -> AirflowSettings:
    """Airflow's REST API: the connection `moraine_airflow`, or else the settings."""
    settings = get_settings().airflow
    connection = find_connection(AIRFLOW)
    if connection is None:
        return settings
    return AirflowSettings(
        url=f"{connection.schema or 'http'}://{connection.host}:{connection.port}",
        username=connection.login or "",
        password=SecretStr(connection.password or ""),
        tls=settings.tls,
        timeout=settings.timeout,
    )


def catalog_settings(name: str) -> CatalogSettings:
    """A catalog's settings, overridden by its Airflow connections.

    `moraine_catalog_NAME` has the principal, `moraine_storage_NAME` the storage credentials for a
    catalog that vends none.
    """
    settings = get_settings().catalog(name)
    if not _CONNECTION_NAME.fullmatch(name):
        return settings
    return with_connections(
        settings, find_connection(f"{CATALOG}{name}"), find_connection(f"{STORAGE}{name}")
    )


def filedrop_storage(name: str) -> dict[str, str]:
    """The storage properties of a watched prefix, overridden by its Airflow connection."""
    properties = get_settings().ingest.filedrop.prefixes[name].storage_properties
    found = find_connection(f"{FILEDROP}{name}") if _CONNECTION_NAME.fullmatch(name) else None
    return {**properties, **(storage_properties_of(found) if found else {})}


def with_connections(
    settings: CatalogSettings, principal: Connection | None, storage: Connection | None
) -> CatalogSettings:
    """The settings, overridden by `moraine_catalog_NAME` and `moraine_storage_NAME`."""
    changes: dict[str, Any] = {}
    if principal:
        changes["auth"] = auth_of(principal, settings.auth)
    if storage:
        given = {name: SecretStr(value) for name, value in storage_properties_of(storage).items()}
        changes["storage"] = {**settings.storage, **given}
    return settings.model_copy(update=changes)


def auth_of(connection: Connection, settings: CatalogAuthSettings) -> CatalogAuthSettings:
    """A login and a password are a client's; a password alone is a bearer token.

    Unless the settings name the client: then a password alone is that client's secret. A client
    that authenticates with a key or a certificate has no password.
    """
    extra = connection.extra_dejson
    changes: dict[str, Any] = {name: str(extra[name]) for name in _AUTH_EXTRAS if extra.get(name)}
    password = SecretStr(connection.password or "")
    client_auth = changes.get("client_auth", settings.client_auth)
    if connection.login and client_auth in ("private_key_jwt", "tls_client_auth"):
        changes |= {"kind": "oauth2", "client_id": connection.login}
    elif password and (connection.login or settings.client_id):
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
    """The key file is read here, because executors may not have it."""
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
        # Iceberg looks it up by the host of abfs locations.
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
