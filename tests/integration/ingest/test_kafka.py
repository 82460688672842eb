"""The Kafka door: every message once in the table or among the dead letters, whatever happens."""

from __future__ import annotations

import itertools
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import NewPartitions

from moraine.ingest.kafka import service
from moraine.ingest.kafka.model import MessagesMissing, OffsetsUnknown
from support.ingest import CATALOG, DATABASE, Door, IngestSite, new_table
from support.kafka_reading import MakeTopic, Topic, messages
from support.waiting import wait_for


class Stopped(Exception):
    """Like a kill: nothing after it is done."""


def stop_at(patch: pytest.MonkeyPatch, name: str) -> None:
    def stop(reached: str) -> None:
        if reached == name:
            raise Stopped

    patch.setattr(service, "failpoint", stop)


# --- The normal way -------------------------------------------------------------------------


def test_messages_become_rows_and_are_read_once(make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=2)
    assert topic.read() == 0  # there is nothing yet
    for partition in (0, 1):
        topic.send(*messages([f"{partition}-{n}" for n in range(50)]), partition=partition)
    large = json.dumps({"message": "x" * 900_000, "unknown": {"field": [1]}}).encode()
    topic.send(large, partition=0)

    assert topic.read() == 101
    assert topic.read() == 0

    texts = [f"{partition}-{n}" for partition in (0, 1) for n in range(50)]
    assert sorted(topic.rows()) == sorted([*texts, "x" * 900_000])
    assert topic.letters() == []
    assert topic.lags() == {0: 0, 1: 0}
    snapshots = topic.site.select(f"SELECT * FROM {{db}}.{topic.table}.snapshots")
    assert len(snapshots) == 2  # where the topic began, and all of it

    admin = topic.broker.admin()  # kept: its requests end with it
    admin.create_partitions([NewPartitions(topic.name, 3)])[topic.name].result(10)
    topic.send(*messages(["new partition"]), partition=2)
    assert topic.read() == 1
    assert topic.rows().count("new partition") == 1
    assert topic.lags() == {0: 0, 1: 0, 2: 0}
    assert not topic.lost_files()
    assert not topic.open_batches()


def test_a_topic_is_read_in_steps_or_from_its_end(make_topic: MakeTopic) -> None:
    topic = make_topic()
    topic.send(*messages([f"m{n}" for n in range(25)]))
    with topic.reader(kafka__max_messages="10") as reader:
        assert reader.read_next() == 10
        assert topic.lags() == {0: 15}
        assert [reader.read_next() for _ in range(3)] == [10, 5, 0]
    assert sorted(topic.rows()) == sorted(f"m{n}" for n in range(25))

    later = Topic(topic.site, topic.broker, topic.name, new_table())
    topics = {topic.name: {"table": f"{DATABASE}.{later.table}", "start": "latest"}}
    assert later.read(kafka__topics=json.dumps(topics)) == 0
    topic.send(*messages(["after"]))
    assert later.read(kafka__topics=json.dumps(topics)) == 1
    assert later.rows() == ["after"]


def test_messages_that_do_not_fit_are_dead_letters(make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=2)
    bad: list[bytes | None] = [
        None,
        b"",
        b"no JSON",
        b'{"message": 5}',
        b'{"message": "\xff"}',
        b'{"message": "a"}{"message": "b"}',
        b"\x00\x01\x02",
    ]
    for number, value in enumerate(bad):
        topic.send(*messages([f"good {number}"]), value, partition=number % 2)

    assert topic.read() == 14
    assert topic.read() == 0

    assert sorted(topic.rows()) == [f"good {number}" for number in range(7)]
    found = topic.letters()
    places = [(letter["partition"], letter["offset"]) for letter in found]
    assert places == [(n % 2, n // 2 * 2 + 1) for n in (0, 2, 4, 6, 1, 3, 5)]
    assert [letter["value"] for letter in found] == [bad[n] for n in (0, 2, 4, 6, 1, 3, 5)]
    assert {letter["topic"] for letter in found} == {topic.name}
    assert "has no value" in found[0]["error"]
    assert "column message" in found[5]["error"]
    assert topic.lags() == {0: 0, 1: 0}
    assert not topic.lost_files()


def test_only_committed_transactions_are_read_and_the_lag_ends(make_topic: MakeTopic) -> None:
    topic = make_topic()
    producer = Producer(
        {"bootstrap.servers": topic.broker.servers, "transactional.id": topic.table}
    )
    producer.init_transactions()
    for text, is_kept in (("kept", True), ("aborted", False)):
        producer.begin_transaction()
        for value in messages([f"{text} {n}" for n in range(3)]):
            producer.produce(topic.name, value)
        producer.flush()
        producer.commit_transaction() if is_kept else producer.abort_transaction()

    topic.read()
    assert sorted(topic.rows()) == ["kept 0", "kept 1", "kept 2"]
    assert topic.lags() == {0: 0}

    producer.begin_transaction()
    producer.produce(topic.name, messages(["open"])[0])
    producer.flush()
    assert topic.read() == 0
    producer.commit_transaction()
    topic.read()
    assert sorted(topic.rows()) == ["kept 0", "kept 1", "kept 2", "open"]
    assert topic.lags() == {0: 0}


def test_what_compaction_took_away_is_no_loss(make_topic: MakeTopic) -> None:
    topic = make_topic(
        **{
            "cleanup.policy": "compact",
            "segment.ms": "50",
            "min.cleanable.dirty.ratio": "0.01",
            "max.compaction.lag.ms": "100",
        }
    )
    producer = Producer({"bootstrap.servers": topic.broker.servers, "linger.ms": 0})
    for number in range(20):
        producer.produce(topic.name, messages([str(number)])[0], key=str(number % 3))
        assert producer.flush(10) == 0
        time.sleep(0.06)  # so that each is in a segment of its own

    def left() -> list[str] | None:
        texts = topic.consume()
        return texts if len(texts) < 20 else None

    wait_for(left, "nothing was compacted", 60)
    topic.read()
    # Some may have been taken away since they were read, but none that is there was left out.
    assert {*(left() or ())} <= {*topic.rows()} < {str(number) for number in range(20)}
    assert topic.lags() == {0: 0}
    assert topic.letters() == []
    producer.produce(topic.name, messages(["later"])[0], key="later")
    assert producer.flush(10) == 0
    assert topic.read() == 1
    assert topic.rows().count("later") == 1


# --- Killed ---------------------------------------------------------------------------------


def test_every_message_is_there_once_wherever_readers_are_killed(
    make_topic: MakeTopic, site: IngestSite
) -> None:
    topic = make_topic(partitions=2)
    good: list[bytes] = []
    bad: list[bytes] = []
    stop = threading.Event()

    def stream() -> None:
        for number in itertools.count():
            good.extend(messages([f"{number}-{n}" for n in range(9)]))
            bad.append(b"bad %d" % number)
            topic.send(*good[-9:], bad[-1])
            if stop.wait(0.2):
                return

    with ThreadPoolExecutor(1) as pool:
        streaming = pool.submit(stream)
        try:
            with topic.reader_process() as process:  # killed while Spark works
                wait_for(lambda: topic.open_batches() or None, "no reader reads")
                process.kill()
            for point in ("kafka.written", "kafka.letters_committed", "kafka.committed"):
                site.failpoints.kill_at(point)
                with topic.reader_process() as process:
                    assert process.wait(60) == -9, point
                site.failpoints.clear()
        finally:
            stop.set()
        streaming.result(30)

    with topic.running_reader():
        wait_for(lambda: not topic.open_batches() or None, "lost batches are left")
        wait_for(lambda: set(topic.lags().values()) == {0} or None, "there is a lag")

    assert sorted(letter["value"] for letter in topic.letters()) == sorted(bad)
    assert sorted(messages(topic.rows())) == sorted(good)
    assert not topic.lost_files()


def test_two_readers_at_once_read_each_message_once(make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=2)
    stop = threading.Event()

    def read(_: int) -> int:
        count = 0
        with topic.reader() as reader:
            while not stop.is_set():
                count += reader.read_next()
        return count

    with ThreadPoolExecutor(2) as pool:
        both = pool.map(read, range(2))
        try:
            for part in range(5):
                texts = [f"{part}-{n}" for n in range(20)]
                topic.send(*messages(texts), f"bad {part}".encode())
                time.sleep(0.3)
            wait_for(lambda: len(topic.letters()) >= 5 or None, "dead letters are missing")
            wait_for(lambda: set(topic.lags().values()) == {0} or None, "there is a lag")
        finally:
            stop.set()
        assert sum(both) == 105

    assert sorted(topic.rows()) == sorted(f"{part}-{n}" for part in range(5) for n in range(20))
    assert sorted(letter["value"] for letter in topic.letters()) == [
        b"bad %d" % part for part in range(5)
    ]
    assert not topic.lost_files()


def test_a_broker_that_is_killed_and_comes_back_loses_nothing(make_topic: MakeTopic) -> None:
    topic = make_topic()
    topic.send(*messages(["before"]))
    with topic.running_reader():
        wait_for(lambda: topic.lags() == {0: 0} or None, "nothing was read")
        topic.broker.kill()
        time.sleep(0.5)  # long enough for the reader to miss it
        topic.broker.start()
        topic.send(*messages(["after"]))
        wait_for(lambda: sorted(topic.rows()) == ["after", "before"] or None, "not read")
    assert topic.letters() == []


# --- Others work on the table ---------------------------------------------------------------


def test_others_may_append_and_compact_meanwhile(
    make_topic: MakeTopic, site: IngestSite, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic()
    topic.send(*messages(["first"]))
    topic.read()
    topic.send(*messages(["second"]), b"bad")
    monkeypatch.setenv("MORAINE_FAILPOINTS", str(site.failpoints.folder))
    site.failpoints.hold_at("kafka.written")

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(topic.read)
        site.failpoints.wait_until_hit("kafka.written")
        try:
            assert door.send(topic.table, [{"message": "by REST"}]).status_code == 200
            site.select(
                f"CALL {CATALOG}.system.rewrite_data_files(table => '{DATABASE}.{topic.table}', "
                "options => map('rewrite-all', 'true'))"
            )
            site.select(f"ALTER TABLE {{db}}.{topic.table} ADD COLUMN later string")
        finally:
            site.failpoints.clear()
        assert reading.result(60) == 2

    assert sorted(topic.rows()) == ["by REST", "first", "second"]
    assert topic.read() == 0
    assert [letter["value"] for letter in topic.letters()] == [b"bad"]


def test_a_dead_letter_stays_one_and_nothing_is_lost_when_the_schema_changes(
    make_topic: MakeTopic, site: IngestSite
) -> None:
    """A reader dies between the two commits; what fits the table is not the same afterwards."""
    topic = make_topic()
    site.select(f"CREATE TABLE {{db}}.{topic.table} (kind string, size int) PARTITIONED BY (kind)")
    topic.send(
        b'{"kind": "fits both"}',
        b'{"kind": "fits wider only", "size": 3000000000}',
        b'{"kind": "fits before only", "note": 1}',
    )
    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, "kafka.letters_committed")
        with pytest.raises(Stopped):
            topic.read()
    site.select(f"ALTER TABLE {{db}}.{topic.table} ALTER COLUMN size TYPE bigint")
    site.select(f"ALTER TABLE {{db}}.{topic.table} ADD COLUMN note string")

    topic.read()

    assert topic.rows("kind") == ["fits both"]
    assert [letter["offset"] for letter in topic.letters()] == [1, 2]
    assert topic.read() == 0
    assert not topic.lost_files()


def test_fields_that_were_promoted_are_read_into_their_columns(
    make_topic: MakeTopic, door: Door
) -> None:
    topic = make_topic()
    assert door.send(topic.table, [{"message": "a", "took": 1.5}]).status_code == 200
    path = f"/v1/tables/{DATABASE}/{topic.table}/promotions"
    made = door.call("POST", path, json={"field": "took", "type": "real"})
    assert made.status_code == 201, made.text
    topic.send(b'{"message": "b", "took": 2}', b'{"message": "c", "took": "long"}')

    topic.read()

    found = topic.site.select(
        f"SELECT message, {made.json()['read_as']} AS took FROM {{db}}.{topic.table} ORDER BY 1"
    )
    assert found == [{"message": "a", "took": 1.5}, {"message": "b", "took": 2.0}]
    assert [letter["offset"] for letter in topic.letters()] == [1]


# --- Rewinds --------------------------------------------------------------------------------


def test_a_rolled_back_table_reads_again_and_a_reset_group_changes_nothing(
    make_topic: MakeTopic, site: IngestSite
) -> None:
    topic = make_topic()
    topic.send(*messages(["first"]), b"bad 1")
    topic.read()
    snapshot = site.tables().load(DATABASE, topic.table).metadata.current_snapshot_id
    topic.send(*messages(["second"]), b"bad 2")
    topic.read()

    consumer = Consumer({"bootstrap.servers": topic.broker.servers, "group.id": "moraine-offsets"})
    consumer.commit(offsets=[TopicPartition(topic.name, 0, 0)], asynchronous=False)
    consumer.close()
    assert topic.read() == 0

    site.select(
        f"CALL {CATALOG}.system.rollback_to_snapshot('{DATABASE}.{topic.table}', {snapshot})"
    )
    assert topic.rows() == ["first"]
    assert topic.read() == 2
    assert sorted(topic.rows()) == ["first", "second"]
    assert [letter["value"] for letter in topic.letters()] == [b"bad 1", b"bad 2"]


def test_offsets_outlive_the_snapshots_that_had_them(
    make_topic: MakeTopic, site: IngestSite
) -> None:
    topic = make_topic()
    topic.send(*messages(["first"]))
    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, "kafka.committed")
        with pytest.raises(Stopped):
            topic.read()
    for text in ("a", "b"):
        site.select(f"INSERT INTO {{db}}.{topic.table} (message) VALUES ('{text}')")
    earlier = site.tables().load(DATABASE, topic.table).current_snapshot()
    assert earlier is not None
    site.select(
        f"CALL {CATALOG}.system.expire_snapshots(table => '{DATABASE}.{topic.table}', "
        "older_than => TIMESTAMP '2100-01-01', retain_last => 1)"
    )
    assert topic.open_batches()
    assert topic.read() == 0
    assert not topic.open_batches()
    assert sorted(topic.rows()) == ["a", "b", "first"]  # the first was not removed as a lost file
    topic.send(*messages(["second"]))
    assert topic.read() == 1
    assert sorted(topic.rows()) == ["a", "b", "first", "second"]

    site.select(
        f"CALL {CATALOG}.system.rollback_to_snapshot('{DATABASE}.{topic.table}', "
        f"{earlier.snapshot_id})"
    )
    with pytest.raises(OffsetsUnknown, match="Set the table's property"):
        topic.read()
    site.spark.sql(
        f"ALTER TABLE {CATALOG}.{DATABASE}.{topic.table} SET TBLPROPERTIES "
        f"""('moraine.kafka.{topic.name}' = '{{"next": {{"0": 1}}}}')"""
    )
    assert topic.read() == 1
    assert sorted(topic.rows()) == ["a", "b", "first", "second"]


def test_messages_that_the_broker_lost_stop_the_reader_unless_skipped(
    make_topic: MakeTopic,
) -> None:
    topic = make_topic()
    topic.send(*messages(["first"]))
    topic.read()
    topic.send(*messages(["lost", "kept"]))
    admin = topic.broker.admin()
    for deleted in admin.delete_records([TopicPartition(topic.name, 0, 2)]).values():
        deleted.result(10)

    with pytest.raises(MessagesMissing, match="from offset 1, but has 2 to 3"):
        topic.read()
    assert topic.lags() == {0: 2}
    assert topic.read(kafka__missing_messages="skip") == 1
    assert sorted(topic.rows()) == ["first", "kept"]

    admin.delete_topics([topic.name])[topic.name].result(10)
    wait_for(lambda: _is_made(topic) or None, "the topic cannot be made again")
    topic.send(*messages([f"new {n}" for n in range(4)]))
    with pytest.raises(MessagesMissing, match="created again"):
        topic.read()
    assert topic.read(kafka__missing_messages="skip") == 4
    assert sorted(topic.rows()) == ["first", "kept", *(f"new {n}" for n in range(4))]
    assert topic.read() == 0


def _is_made(topic: Topic) -> bool:
    try:
        topic.broker.create_topic(topic.name)
    except Exception:
        return False
    return True
