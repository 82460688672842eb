"""Which names belong to secrets.

There are three rules, because a wrong guess has a different cost in each. A log hides a field when
in doubt. A property that is taken for a secret is kept out of files and of what fills the gaps of
vended credentials, so an endpoint or a provider must not be. And only the names that open a store
say that a catalog has vended credentials: the token for the catalog itself does not.
"""

from __future__ import annotations

import re

_SECRET_PARTS = re.compile(
    r"(secret|password|passwd|credential|token|authorization|access[-_.]?key|sas|private)", re.I
)
_SECRET_WORDS = {
    "credential",
    "credentials",
    "jaas",
    "key",
    "password",
    "sas",
    "secret",
    "string",
    "token",
}
# A name that ends in one of these is about a secret and does not hold one.
_PLAIN_ENDINGS = {
    "algorithm",
    "enabled",
    "endpoint",
    "impl",
    "location",
    "mechanism",
    "mechanisms",
    "provider",
    "uri",
    "username",
}
_STORE_SECRETS = {
    "s3.secret-access-key",
    "s3.session-token",
    "client.secret-access-key",
    "client.session-token",
    "gcs.oauth2.token",
    "gcs.service-account.key",
    "adls.sas-token",
    "adls.connection-string",
    "adls.auth.shared-key.account.key",
    "adls.account-key",
    "adls.client-secret",
    "adls.token",
}
# Followed by an account.
_STORE_SECRET_PREFIXES = ("adls.sas-token.", "adls.connection-string.")


def is_secret_name(name: str) -> bool:
    """Whether a log field or an environment variable may hold a secret."""
    return bool(_SECRET_PARTS.search(name))


def is_secret_property(name: str) -> bool:
    """Whether a property, such as `s3.secret-access-key`, holds a secret."""
    words = re.split(r"[^a-z0-9]+", name.lower())
    if words[-1] in _PLAIN_ENDINGS:
        return False
    return bool(_SECRET_WORDS & set(words)) or is_secret_name(name)


def is_store_secret(name: str) -> bool:
    """Whether a FileIO property is a secret that opens a store."""
    return name in _STORE_SECRETS or name.startswith(_STORE_SECRET_PREFIXES)
