"""Which names belong to secrets, by the three rules."""

from __future__ import annotations

import pytest

from moraine.secret_names import is_secret_property, is_store_secret


@pytest.mark.parametrize(
    "name",
    [
        "s3.secret-access-key",
        "client.session-token",
        "gcs.oauth2.token",
        "adls.sas-token",
        "adls.sas-token.account.dfs.core.windows.net",
        "adls.connection-string.account",
    ],
)
def test_secret_names_include_every_secret_that_opens_a_store(name: str) -> None:
    assert is_store_secret(name)
    assert is_secret_property(name)


@pytest.mark.parametrize(
    "name", ["token", "s3.access-key-id", "s3.session-token-expires-at-ms", "s3.endpoint", "uri"]
)
def test_secret_names_leave_out_properties_that_open_no_store(name: str) -> None:
    """The first is the token for the catalog itself."""
    assert not is_store_secret(name)
