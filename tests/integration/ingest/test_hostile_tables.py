"""Tables and catalogs that try to choose what runs here, and where rows and keys are sent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import requests

from moraine.ingest.errors import UnsupportedTable
from moraine.ingest.tables.service import IngestTables
from moraine.ingest.writing.job import order_for
from moraine.settings import CatalogSettings
from support.ingest import CATALOG, DATABASE, ApiProcess, Door, IngestSite, new_key, new_table
from support.relay import Answer, Forward, Relay, Request

ELSEWHERE = {
    "s3.endpoint": "http://127.0.0.1:9",
    "s3.proxy-uri": "http://127.0.0.1:9",
    "s3.role-arn": "arn:aws:iam::1:role/other",
    "client.region": "elsewhere-1",
    "gcs.service.host": "http://127.0.0.1:9",
    "adls.account-host": "127.0.0.1:9",
    "hdfs.host": "127.0.0.1",
}


@pytest.fixture(scope="module")
def api(site: IngestSite) -> Iterator[Door]:
    """In a process of its own, which a table may try to end."""
    process = ApiProcess(site, rest__wait="60s")
    with process.running() as running, site.writer():
        yield process.door
        assert running.poll() is None, "the API has ended"


def commit(site: IngestSite, table: str, *updates: dict[str, Any]) -> None:
    url = f"{site.stack.catalog.url}/v1/namespaces/{DATABASE}/tables/{table}"
    answer = requests.post(url, json={"requirements": [], "updates": list(updates)}, timeout=30)
    assert answer.status_code == 200, answer.text


def set_properties(site: IngestSite, table: str, **properties: str) -> None:
    commit(site, table, {"action": "set-properties", "updates": properties})


@pytest.fixture
def table(site: IngestSite, api: Door) -> str:
    name = new_table()
    assert api.send(name, [{"message": "before"}]).status_code == 200
    return name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param("py-io-impl", "sys.exit", id="a FileIO that ends the process"),
        pytest.param("py-io-impl", "nothing.of.the.kind", id="a FileIO that is not there"),
        pytest.param(
            "write.py-location-provider.impl", "builtins.exec", id="a location provider that runs"
        ),
        pytest.param("write.py-location-provider.impl", "no.module", id="one that is not there"),
        pytest.param("s3.retry-strategy-impl", "sys.exit", id="a retry strategy"),
    ],
)
def test_no_property_of_a_table_chooses_a_class(
    api: Door, site: IngestSite, table: str, name: str, value: str
) -> None:
    set_properties(site, table, **{name: value})

    described = api.call("GET", f"/v1/tables/{DATABASE}/{table}")
    assert described.status_code == 200, described.text
    promoted = {"field": "took", "type": "real"}
    path = f"/v1/tables/{DATABASE}/{table}/promotions"
    assert api.call("POST", path, json=promoted).status_code == 201
    written = api.send(table, [{"message": "after", "took": 1.5, "colour": "red"}])
    assert written.status_code == 200, written.text
    assert api.send(new_table(), [{"message": "another table"}]).status_code == 200
    assert site.count_rows(table) == 2


def test_code_in_a_location_is_not_run(
    api: Door, site: IngestSite, table: str, tmp_path: Path
) -> None:
    """The location provider is called with the location: here both are the attacker's."""
    payload = tmp_path / "ran"
    valid = site.tables().load(DATABASE, table).location()
    commit(
        site,
        table,
        {
            "action": "set-properties",
            "updates": {
                "write.py-location-provider.impl": "builtins.exec",
                "write.metadata.path": f"{valid}/metadata",
            },
        },
        {"action": "set-location", "location": f"file:open({str(payload)!r},'w').write('ran')"},
    )

    refused = api.send(table, [{"message": "after"}])
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "table_unsupported")
    assert api.call("GET", f"/v1/tables/{DATABASE}/{table}").status_code == 200
    assert api.send(new_table(), [{"message": "another table"}]).status_code == 200
    assert not payload.exists()


OTHER_STORES = ["s3://elsewhere/a", "http://127.0.0.1:9/a", "relative", "file:"]


@pytest.mark.parametrize("path", OTHER_STORES)
def test_rows_stay_in_the_store_of_the_table(api: Door, site: IngestSite, path: str) -> None:
    table, key = new_table(), new_key()
    site.tables().create(DATABASE, table)
    set_properties(site, table, **{"write.data.path": path})
    refused = api.send(table, [{"message": "m"}], key)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "table_unsupported")
    # Nothing was written: when the table is repaired, the same key is written.
    commit(site, table, {"action": "remove-properties", "removals": ["write.data.path"]})
    assert api.send(table, [{"message": "m"}], key).json()["replayed"] is False


@pytest.mark.parametrize("path", OTHER_STORES)
def test_manifests_stay_in_the_store_of_the_table(site: IngestSite, table: str, path: str) -> None:
    """A catalog that writes its metadata there would take such a table, the fixture does not."""
    loaded = site.tables().load(DATABASE, table)
    hostile = {"write.metadata.path": path}
    loaded.metadata = loaded.metadata.model_copy(update={"properties": hostile})
    with pytest.raises(UnsupportedTable):
        site.tables().append(loaded, [], {}, lambda _: True, attempts=1)


def test_no_property_of_a_table_is_an_endpoint_or_a_credential(
    site: IngestSite, table: str
) -> None:
    set_properties(site, table, **ELSEWHERE)
    loaded = site.tables().load(DATABASE, table)
    assert loaded.io.properties.items().isdisjoint(ELSEWHERE.items())
    site.tables().widen(loaded, ["colour"])
    order = order_for(loaded.metadata.table_uuid, loaded)
    assert order.io.items().isdisjoint(ELSEWHERE.items())


class TreacherousCatalog(Relay):
    """Says in its own configuration, and with each table, which classes its clients should use."""

    treason: ClassVar[dict[str, Any]] = {
        "py-io-impl": "sys.exit",
        "s3.retry-strategy-impl": "sys.exit",
        "auth": {"type": "custom", "impl": "sys.exit", "custom": {}},
        "ssl": {"cabundle": "/nowhere"},
    }

    def answer(self, request: Request, forward: Forward) -> Answer:
        answer = forward(request.without("Accept-Encoding"))
        if answer.status != 200 or request.method != "GET":
            return answer
        said = json.loads(answer.body)
        if request.path == "/v1/config":
            said["defaults"] = {**said.get("defaults", {}), **self.treason}
            said["overrides"] = {**said.get("overrides", {}), **self.treason}
        elif "metadata" in said:
            said["config"] = {**said.get("config", {}), **self.treason, "s3.region": "of-catalog"}
        return replace(answer, body=json.dumps(said).encode())


def test_no_answer_of_a_catalog_chooses_a_class(site: IngestSite, table: str) -> None:
    with TreacherousCatalog(site.stack.catalog.url) as catalog:
        loaded = IngestTables(CATALOG, CatalogSettings(uri=catalog.url)).load(DATABASE, table)
        assert loaded.io.properties["s3.region"] == "of-catalog"
        assert not loaded.io.properties.keys() & TreacherousCatalog.treason.keys()
        assert loaded.scan().to_arrow().num_rows == 1
