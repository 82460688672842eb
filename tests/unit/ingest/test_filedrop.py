"""Which files are taken, and from where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from moraine.ingest.errors import InvalidName
from moraine.ingest.filedrop.model import Drop, DroppedName, FileRow, FileState, drops_of
from moraine.ingest.model import check_names
from moraine.settings import Settings, get_settings
from moraine.settings.ingest import FileDropSettings, PrefixSettings


@pytest.mark.parametrize(
    ("path", "encoding"),
    [
        ("db/t/a.ndjson", ""),
        ("db/t/a.jsonl", ""),
        ("db/t/a.json", ""),
        ("db/t/A.JSON", ""),
        ("db/t/a b.x.ndjson", ""),
        ("db/t/a.ndjson.gz", "gzip"),
        ("db/t/a.json.gzip", "gzip"),
        ("db/t/a.jsonl.zst", "zstd"),
        ("db/t/a.Json.ZST", "zstd"),
        ("a.b/t/ü😀.json", ""),
    ],
)
def test_names_that_are_taken(path: str, encoding: str) -> None:
    database, table, name = path.split("/")
    found = DroppedName.parse(path)
    assert found == DroppedName(database, table, name, encoding)
    check_names(found.database, found.table)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "a.json",
        "db/a.json",
        "db/t/deep/a.json",
        "db//a.json",
        "db/t/",
        "db/t/a.csv",
        "db/t/a",
        "db/t/a.gz",
        "db/t/a.json.bz2",
        "db/t/a.json.gz.gz",
        "db/t/a.json.tmp",
        "db/t/a.json.part",
        "db/t/a.json.crdownload",
        "db/t/.a.json",
        "db/t/_a.json",
        "db/_t/a.json",
        "_done/t/a.json",
        ".db/t/a.json",
    ],
)
def test_names_that_are_not(path: str) -> None:
    assert DroppedName.parse(path) is None


@pytest.mark.parametrize(
    "path", ["db/a.b/x.json", "a..b/t/x.json", " db/t/x.json", "db/a\\b/x.json"]
)
def test_a_file_for_a_table_that_cannot_be_is_refused(path: str) -> None:
    name = DroppedName.parse(path)
    assert name is not None
    with pytest.raises(InvalidName):
        check_names(name.database, name.table)


@pytest.mark.parametrize(
    ("location", "base"),
    [
        ("/var/drop/", "/var/drop"),
        ("file:///var/drop", "/var/drop"),
        ("s3a://b/in//", "s3://b/in"),
        ("s3://b", "s3://b"),
        ("gcs://b/in", "gs://b/in"),
    ],
)
def test_a_prefix_has_one_name(location: str, base: str) -> None:
    drop = Drop.of("x", PrefixSettings(location=location))
    assert drop.base == base
    assert (drop.done, drop.failed) == (f"{base}/_done", f"{base}/_failed")


def prefixes(**given: dict[str, Any]) -> FileDropSettings:
    return FileDropSettings.model_validate({"prefixes": given})


def test_several_prefixes_may_lie_side_by_side() -> None:
    settings = prefixes(
        a={"location": "/in/a", "done": "/archive", "failed": "/in/a/_bad/x"},
        ab={"location": "/in/ab"},
        s={"location": "s3://b/in/a"},
    )
    assert [drop.name for drop in drops_of(settings)] == ["a", "ab", "s"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"a": {"location": "/in"}, "b": {"location": "file:/in/b/"}}, "b lies in .* a"),
        ({"a": {"location": "/in"}, "b": {"location": "/in"}}, "lies in"),
        ({"a": {"location": "/in", "done": "/in"}}, "watched itself"),
        ({"a": {"location": "/in", "done": "/in/done"}}, "watched itself"),
        ({"a": {"location": "/in", "done": "/b"}, "b": {"location": "/b"}}, "watched itself"),
        ({"a": {"location": "s3://b/in", "done": "s3://c/out"}}, "another store"),
        ({"a": {"location": "s3://b/in", "failed": "/out"}}, "another store"),
    ],
)
def test_prefixes_that_would_take_each_others_files(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        drops_of(prefixes(**given))


@pytest.mark.parametrize("location", ["", "/", "relative", "ftp://x/y"])
def test_locations_that_cannot_be_watched(location: str) -> None:
    with pytest.raises(Exception, match=r"location|reach"):
        Drop.of("x", PrefixSettings(location=location))


def test_a_file_keeps_its_name_where_that_is_free() -> None:
    drop = Drop.of("x", PrefixSettings(location="/in"))
    key = "filedrop:" + "ab" * 32
    row = FileRow("/in/db/t/a.json", "v", 1, FileState.DONE, key, None, None, None, 0.0)
    assert drop.target_of(row, tagged=False) == "/in/_done/db/t/a.json"
    assert drop.target_of(row, tagged=True) == "/in/_done/db/t/abababababab-a.json"


def test_secrets_of_a_prefix_come_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "moraine.toml"
    monkeypatch.setenv("MORAINE_CONFIG", str(file))
    section = '[ingest.filedrop.prefixes.My-Drop]\nlocation = "s3://b/in"\nauto-create = false\n'
    file.write_text(f'{section}storage = {{ "s3.secret-access-key" = "hunter2" }}\n')
    with pytest.raises(ValueError, match="is a secret"):
        Settings()

    file.write_text(f'{section}storage = {{ "s3.endpoint" = "https://s3.example" }}\n')
    secret = '{"s3.secret-access-key": "hunter2"}'
    monkeypatch.setenv("MORAINE_INGEST__FILEDROP__PREFIXES__MY_DROP__STORAGE", secret)
    get_settings.cache_clear()
    found = get_settings().ingest.filedrop.prefixes
    get_settings.cache_clear()

    assert list(found) == ["My-Drop"]
    assert not found["My-Drop"].auto_create
    assert found["My-Drop"].storage_properties == {
        "s3.endpoint": "https://s3.example",
        "s3.secret-access-key": "hunter2",
    }
    assert "hunter2" not in repr(found)
