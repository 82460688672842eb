"""To Iceberg's own client, a catalog behind the gateway is the catalog. `make rck` runs the same
kit with keys off as well."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.compatibility_kit import Outcome, Way, differences, run_kit, running_site


@pytest.mark.timeout(600)
def test_every_test_of_the_kit_ends_as_it_does_without_the_gateway(tmp_path: Path) -> None:
    with running_site(tmp_path / "direct", Way.DIRECT) as site:
        directly = run_kit(site.url, tmp_path / "direct" / "kit")
    with running_site(tmp_path / "keyed", Way.KEYED) as site:
        keyed = run_kit(site.url, tmp_path / "keyed" / "kit")
        records = site.records()

    assert differences(directly, keyed) == {}
    assert Outcome.FAILED not in keyed.values()
    # It was not past the layer that they came out the same: the client sent its keys.
    operations = {record["operation"] for record in records}
    assert {"createTable", "updateTable", "dropTable", "createView"} <= operations
    assert sum(int(str(record["keys"])) for record in records) > 500
    assert [record for record in records if record["open"]] == []
