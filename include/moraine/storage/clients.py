"""Clients of object stores, opened with Iceberg's FileIO properties."""

from __future__ import annotations

import ipaddress
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias
from urllib.parse import quote, urlsplit, urlunsplit

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from moraine.errors import StorageUnavailable
from moraine.storage.files import UnsupportedStorage
from moraine.storage.locations import Location

Client: TypeAlias = S3Store | GCSStore | AzureStore

# Keys the client cannot name: it strips slashes at the ends, which would name another object, and
# refuses the rest.
_ODD_KEY = re.compile(r"^/|/$|//|(?:^|/)\.{1,2}(?:/|$)|[\x00-\x1f\x7f]|^$")
_DOTS = re.compile(r"(?:^|/)\.{1,2}(?:/|$)")
_AZURE_HOST = ".dfs.core.windows.net"
_WITHOUT_TOKEN = json.dumps(
    {"private_key": "", "private_key_id": "", "client_email": "", "disable_oauth": True}
)
_used_by: int | None = None


@dataclass(frozen=True, slots=True)
class StorageLimits:
    """How much a Storage asks of a store at once, and how long it waits for it."""

    batch_size: int = 1000
    concurrency: int = 4
    head_concurrency: int = 32
    request_timeout: float = 60.0
    connect_timeout: float = 5.0
    retries: int = 5
    patience: float = 120.0
    """Seconds that throttling may last without any progress."""


@dataclass(frozen=True, slots=True)
class Target:
    """What one client is opened for: a bucket, or a folder that a key cannot name."""

    scheme: str
    bucket: str
    folder: str = ""

    @property
    def max_keys(self) -> int:
        """The maximum of keys for one call. Without bulk requests, calls are kept small."""
        if self.scheme == "s3" and not self.folder:
            return 1000
        return 256 if self.scheme == "azure" else 100


def is_plain(key: str) -> bool:
    """A fast check for keys that any client can name. It may reject a few that are fine."""
    return (
        "//" not in key
        and "/." not in key
        and key[:1] not in ("", "/", ".")
        and key[-1] != "/"
        and key.isprintable()
    )


def aim(location: Location) -> tuple[Target, str] | None:
    """The target and key for a request, or None if no client can name the object.

    A key with `//` needs a client for the folder that ends in it. Only S3 allows this: there, the
    URL of such a folder can take the place of the bucket's.
    """
    key = location.key
    if is_plain(key) or not _ODD_KEY.search(key):
        return Target(location.scheme, location.bucket), key
    cut = key.rfind("//") + 1 or (0 if key.startswith("/") else -1)
    folder, name = key[: cut + 1], key[cut + 1 :]
    if location.scheme != "s3" or cut < 0 or _DOTS.search(folder) or _ODD_KEY.search(name):
        return None
    return Target(location.scheme, location.bucket, folder), name


def refuse_after_fork() -> None:
    """A client's threads do not survive a fork: the child would wait for them forever."""
    global _used_by
    _used_by = _used_by or os.getpid()
    if _used_by != os.getpid():
        raise StorageUnavailable(
            "This process was forked from one that had already used an object store; use the store "
            "only in the child, or start the child as a new process."
        )


def open_client(target: Target, config: Mapping[str, str], limits: StorageLimits) -> Client:
    """A client without retries of its own: the sender decides about them."""
    options: dict[str, Any] = {
        "client_options": {
            "timeout": timedelta(seconds=limits.request_timeout),
            "connect_timeout": timedelta(seconds=limits.connect_timeout),
        },
        "retry_config": {"max_retries": 0},
    }
    try:
        return _OPENERS[target.scheme](target, config, options)
    except (BaseError, ValueError, TypeError) as error:
        # The error's text may quote what could not be read: a key, a token.
        raise UnsupportedStorage(
            f"The properties given for {target.scheme} {target.bucket} do not open it "
            f"({type(error).__name__}): {', '.join(sorted(config)) or 'none'}."
        ) from None


def _open_s3(target: Target, config: Mapping[str, str], options: dict[str, Any]) -> S3Store:
    endpoint = config.get("s3.endpoint", "").rstrip("/")
    region = config.get("s3.region") or config.get("client.region")
    virtual = _is_virtual_hosted(endpoint, config)
    if virtual:
        endpoint = _with_bucket_in_host(endpoint, target.bucket)
    if target.folder:
        endpoint = _folder_url(target, endpoint or _default_s3_endpoint(region), virtual)
        virtual = True
        options["disable_bulk_delete"] = True
    if endpoint:
        options["endpoint"] = endpoint
        options["virtual_hosted_style_request"] = virtual
        _allow_http(options, endpoint)
    if region:
        options["region"] = region
    key_id, secret, token = (
        config.get(f"s3.{name}") or config.get(f"client.{name}")
        for name in ("access-key-id", "secret-access-key", "session-token")
    )
    if key_id and secret:
        # A provider, because the client would mix given keys with a token from the environment.
        options["credential_provider"] = lambda: {
            "access_key_id": key_id,
            "secret_access_key": secret,
            "token": token,
            "expires_at": None,
        }
    elif _is_true(config, "s3.anonymous"):
        options["skip_signature"] = True
    return S3Store(target.bucket, **options)


def _is_virtual_hosted(endpoint: str, config: Mapping[str, str]) -> bool:
    """Whether the bucket is part of the host name: if requested, and the host is not an IP."""
    asked = config.get("s3.path-style-access", "").lower() == "false" or _is_true(
        config, "s3.force-virtual-addressing"
    )
    host = urlsplit(endpoint).hostname or ""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return asked and bool(host)
    return False


def _with_bucket_in_host(endpoint: str, bucket: str) -> str:
    parts = urlsplit(endpoint)
    if parts.netloc.startswith(f"{bucket}."):
        return endpoint
    return urlunsplit(parts._replace(netloc=f"{bucket}.{parts.netloc}"))


def _folder_url(target: Target, endpoint: str, virtual: bool) -> str:
    bucket = endpoint if virtual else f"{endpoint}/{target.bucket}"
    # The folder ends in a slash, which the client adds again before the key.
    return f"{bucket}/{quote(target.folder[:-1])}"


def _default_s3_endpoint(region: str | None) -> str:
    environment = os.environ
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    region = region or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    return (endpoint or f"https://s3.{region or 'us-east-1'}.amazonaws.com").rstrip("/")


def _open_gcs(target: Target, config: Mapping[str, str], options: dict[str, Any]) -> GCSStore:
    host = config.get("gcs.service.host", "").rstrip("/")
    token = config.get("gcs.oauth2.token")
    if host:
        options["base_url"] = host
        _allow_http(options, host)
    if project := config.get("gcs.user-project"):
        options["client_options"]["default_headers"] = {"x-goog-user-project": project}
    if token:
        options["credential_provider"] = lambda: {"token": token, "expires_at": None}
    elif _is_true(config, "gcs.no-auth"):
        options["skip_signature"] = True
        # skip_signature covers reads only; for other requests, a key that fetches no token.
        options["service_account_key"] = _WITHOUT_TOKEN
    elif key := config.get("gcs.service-account.key"):
        options["service_account_key"] = key
    return GCSStore(target.bucket, **options)


def _open_azure(target: Target, config: Mapping[str, str], options: dict[str, Any]) -> AzureStore:
    container, _, host = target.bucket.partition("@")
    named = config.get("adls.account-name") or config.get("adls.auth.shared-key.account.name")
    account = host.partition(".")[0] or named or ""
    connection = _read_connection_string(
        _of_account(config, "adls.connection-string", account, host) or ""
    )
    account = account or connection.get("AccountName", "")
    if account:
        options["account_name"] = account
    endpoint = connection.get("BlobEndpoint") or config.get("adls.account-host", "")
    if not endpoint and host and not host.endswith(_AZURE_HOST):
        endpoint = host.replace(".dfs.", ".blob.", 1)
    if endpoint:
        url = endpoint if "://" in endpoint else f"https://{endpoint}"
        options["endpoint"] = url.rstrip("/")
        _allow_http(options, url)
    sas = connection.get("SharedAccessSignature") or _of_account(
        config, "adls.sas-token", account, host
    )
    key = (
        connection.get("AccountKey")
        or config.get("adls.auth.shared-key.account.key")
        or config.get("adls.account-key")
    )
    secrets = {"sas_token": sas, "access_key": key, "token": config.get("adls.token")}
    given = [(name, value.removeprefix("?")) for name, value in secrets.items() if value]
    if given:
        name, value = given[0]
        options["credential_provider"] = lambda: {name: value, "expires_at": None}
    elif all(config.get(f"adls.{name}") for name in ("tenant-id", "client-id", "client-secret")):
        for name in ("tenant_id", "client_id", "client_secret"):
            options[name] = config[f"adls.{name.replace('_', '-')}"]
    elif _is_true(config, "adls.anon"):
        options["skip_signature"] = True
    return AzureStore(container, **options)


_OPENERS: dict[str, Callable[[Target, Mapping[str, str], dict[str, Any]], Client]] = {
    "s3": _open_s3,
    "gs": _open_gcs,
    "azure": _open_azure,
}


def _of_account(config: Mapping[str, str], name: str, account: str, host: str) -> str | None:
    """Catalogs append either host of an account, the account's name, or nothing."""
    hosts = [host, host.replace(".dfs.", ".blob.", 1), account, f"{account}{_AZURE_HOST}"]
    names = [f"{name}.{suffix}" for suffix in hosts if suffix] + [name]
    return next((config[known] for known in names if config.get(known)), None)


def _read_connection_string(text: str) -> dict[str, str]:
    """`Key=value;…`, or, as Iceberg also accepts, the account's endpoint with a token."""
    if text.startswith(("http://", "https://")):
        endpoint, _, token = text.partition("?")
        return {"BlobEndpoint": endpoint.replace(".dfs.", ".blob.", 1)} | (
            {"SharedAccessSignature": token} if token else {}
        )
    pairs = (part.partition("=") for part in text.split(";") if part)
    return {name: value for name, _, value in pairs}


def _allow_http(options: dict[str, Any], url: str) -> None:
    if url.startswith("http://"):
        options["client_options"]["allow_http"] = True


def _is_true(config: Mapping[str, str], name: str) -> bool:
    return config.get(name, "").lower() == "true"
