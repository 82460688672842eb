"""The catalog client against a real HTTP server that answers as told."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from moraine.catalog.client import RestCatalog
from moraine.errors import CatalogRefused, CatalogUnavailable, TableNotFound
from moraine.settings import CatalogSettings

Answers = dict[str, tuple[int, Any]]


@pytest.fixture
def answers() -> Answers:
    return {"/v1/config": (200, {"defaults": {}, "overrides": {}})}


@pytest.fixture
def catalog(answers: Answers) -> Iterator[RestCatalog]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answers.get(self.path.split("?")[0], (404, {}))
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield RestCatalog(CatalogSettings(uri=f"http://127.0.0.1:{server.server_port}/"))
    server.shutdown()
    server.server_close()


TABLE = {"metadata-location": "m.json", "metadata": {"table-uuid": "u", "location": "file:/t"}}


def test_a_table_is_loaded_with_the_advertised_prefix_and_separator(
    catalog: RestCatalog, answers: Answers
) -> None:
    answers["/v1/config"] = (
        200,
        {
            "defaults": {"prefix": "no"},
            "overrides": {"prefix": "a%7Cb", "namespace-separator": "%2E"},
        },
    )
    answers["/v1/a%7Cb/namespaces/n%201.m/tables/t%2Fx"] = (200, TABLE)

    table = catalog.load_table(["n 1", "m"], "t/x")

    assert (table.uuid, table.location, table.metadata_location) == ("u", "file:/t", "m.json")


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (404, TableNotFound),
        (401, CatalogRefused),
        (403, CatalogRefused),
        (429, CatalogUnavailable),
        (500, CatalogUnavailable),
        (503, CatalogUnavailable),
    ],
)
def test_refusals_and_outages_are_told_apart(
    catalog: RestCatalog, answers: Answers, status: int, error: type[Exception]
) -> None:
    answers["/v1/namespaces/n/tables/t"] = (status, {"error": {"message": "no such luck"}})
    with pytest.raises(error, match="no such luck"):
        catalog.load_table(["n"], "t")


def test_an_answer_that_is_not_json_is_an_outage(catalog: RestCatalog, answers: Answers) -> None:
    answers["/v1/namespaces/n/tables/t"] = (200, b"<html>")
    with pytest.raises(CatalogUnavailable):
        catalog.load_table(["n"], "t")


def test_a_catalog_that_is_not_there_is_an_outage() -> None:
    with pytest.raises(CatalogUnavailable, match=r"127\.0\.0\.1:1"):
        RestCatalog(CatalogSettings(uri="http://127.0.0.1:1")).load_table(["n"], "t")
