"""Rows of the table in docs/compatibility.md about transactions; see `features`.

A transactional producer is in a process of its own (`drivers/transactions.py`). Clients differ in their
default isolation level, so every read here names one.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Self

from tests.support.waiting import wait_for

from .clients import NEWEST_JAVA, ClientError, Driver, Unsupported
from .features import Bench, Record, feature, record, refused, text, values
from .group_features import Member, all_of, committed, wait_shared

COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
ILLEGAL_GENERATION, FENCED_BY_LIBRDKAFKA = 22, -144
FENCED = ("fenced", "Fenced", "FENCED", "InvalidProducerEpoch", "INVALID_PRODUCER_EPOCH")
"""The words of the clients for a producer that another one, or the time-out, has fenced."""
COMMITTED_TOO_LATE = "InvalidTxnState"
"""The error of Java 4.4 for that: in the newer protocol, here as in Kafka, its producer may still abort."""
NOT_THERE_S = 0.5
"""For how long a read looks for records that it must not see."""


class Producer:
    """A transactional producer of the client under test; a context manager that gives it up."""

    def __init__(
        self, bench: Bench, transactional_id: str, *, timeout_ms: int = 60_000, member: Member | None = None
    ) -> None:
        """In the process of ``member``, or in a new one."""
        self._bench = bench
        self._own: Driver | None = None
        self._ask: Callable[..., Any]
        if member is None:
            self._own = bench.lend(bench.driver.name)
            self._ask = self._own.ask
        else:
            self._ask = member.ask
        self._ask(
            "txn_start", bootstrap=bench.bootstrap, transactional_id=transactional_id, timeout_ms=timeout_ms
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._ask("txn_close")
        finally:
            if self._own is not None:
                self._bench.give_back(self._own)

    def begin(self) -> None:
        self._ask("txn_begin")

    def send(self, records: Sequence[Record]) -> None:
        """Write records; all must be acknowledged before the transaction ends."""
        if not self._write(records):
            raise Unsupported(f"{self._bench.driver.name} has no transaction that stays open")

    def send_offsets(
        self, group: str, topic: str, offsets: dict[int, int], *, as_member: bool = False
    ) -> None:
        self._ask("txn_offsets", group=group, topic=topic, offsets=offsets, as_member=as_member)

    def commit(self) -> Counter[int]:
        """How many records went to each partition, of a client that reports it now."""
        return Counter(place["partition"] for place in self._ask("txn_commit"))

    def abort(self) -> None:
        self._ask("txn_abort")

    def write(self, records: Sequence[Record]) -> Counter[int]:
        """A whole transaction; how many records went to each partition."""
        self.begin()
        return self._write(records) + self.commit()

    def _write(self, records: Sequence[Record]) -> Counter[int]:
        """Write records; how many were acknowledged in each partition, of a client that reports it now."""
        places = self._ask("txn_send", records=list(records))
        for place in places:
            if "error" in place:
                raise ClientError(**place["error"])
        # kafkajs reports no place, but writes to the partition that it was given.
        pairs = zip(places, records, strict=bool(places))
        return Counter(place.get("partition", sent["partition"]) for place, sent in pairs)


def keyed(topic: str, value: str, partition: int = 0) -> Record:
    return record(topic, value, partition, key=f"key of {value}")


def seen(bench: Bench, topic: str, count: int, partition: int = 0) -> list[str | None]:
    """The first ``count`` committed records, on which the client and the reference must agree."""
    by_reference = values(
        bench.ask_reference(
            "fetch", topic=topic, partition=partition, offset=0, count=count, isolation=COMMITTED
        )
    )
    assert values(bench.read(topic, count, partition, isolation=COMMITTED)) == by_reference
    return by_reference


def sees_no_more(bench: Bench, topic: str, count: int) -> None:
    """Check that the client sees these committed records of partition 0, and none after them."""
    asked = {"topic": topic, "partition": 0, "offset": 0, "count": count + 1, "timeout_s": NOT_THERE_S}
    counts: list[int] = []

    def has_seen_all() -> bool:
        """A slow client finds fewer in a short time."""
        counts.append(len(bench.ask("fetch", isolation=COMMITTED, **asked)))
        return counts[-1] >= count

    wait_for(has_seen_all, lambda: counts)
    assert counts[-1] == count


def end(bench: Bench, topic: str, isolation: str) -> int:
    """The end of partition 0 under an isolation level, as the client sees it."""
    found = bench.ask("offsets", topic=topic, partitions=[0], at="latest", isolation=isolation)
    return int(found["0"])


@feature("transactions: commit over six partitions", is_core=True)
def commit(bench: Bench) -> None:
    topic = bench.topic(6)
    counts: Counter[int] = Counter()
    sent = []
    with Producer(bench, bench.name()) as producer:
        for round_ in range(3):
            records = [keyed(topic, f"{round_} {number}", number % 6) for number in range(30)]
            counts += producer.write(records)
            sent += values(records)
    found = [value for partition, count in counts.items() for value in seen(bench, topic, count, partition)]
    assert len(counts) == 6
    assert sorted(map(str, found)) == sorted(map(str, sent))


@feature("transactions: abort, seen under read_uncommitted alone")
def abort(bench: Bench) -> None:
    topic = bench.topic()
    before, aborted, after = ([keyed(topic, f"{name} {n}") for n in range(5)] for name in "abc")
    with Producer(bench, bench.name()) as producer:
        producer.write(before)
        producer.begin()
        producer.send(aborted)
        producer.abort()
        producer.write(after)
    assert seen(bench, topic, 10) == values([*before, *after])
    found = values(bench.read(topic, 15, isolation=UNCOMMITTED))
    assert found == values([*before, *aborted, *after])


@feature("transactions: a group's offsets move with the commit", is_core=True)
def offsets(bench: Bench) -> None:
    topic, group = bench.topic(2), bench.name()
    with Producer(bench, bench.name()) as producer:
        producer.begin()
        producer.send([keyed(topic, "copy")])
        producer.send_offsets(group, topic, {0: 5, 1: 7})
        assert committed(bench, group, topic) == {}
        producer.commit()
        wait_for(lambda: committed(bench, group, topic) == {"0": 5, "1": 7})
        producer.begin()
        producer.send([keyed(topic, "copy")])
        producer.send_offsets(group, topic, {0: 6})
        producer.abort()
        producer.begin()
        producer.send_offsets(group, topic, {1: 8})
        producer.commit()
        wait_for(lambda: committed(bench, group, topic) == {"0": 5, "1": 8})
    assert seen(bench, topic, 1) == [text("copy")]


@feature("transactions: offsets of an old generation are refused")
def old_generation(bench: Bench) -> None:
    topic, group = bench.topic(2), bench.name()
    with Member(bench, group, topics=[topic]) as member:
        wait_shared([member], all_of(topic, 2))
        member.ask("member_keep")
        with Producer(bench, bench.name(), member=member) as producer:
            producer.begin()
            producer.send_offsets(group, topic, {0: 3}, as_member=True)
            producer.commit()
            wait_for(lambda: committed(bench, group, topic) == {"0": 3})
            with Member(bench, group, bench.reference.name, topics=[topic]) as other:
                wait_shared([member, other], all_of(topic, 2))
                producer.begin()
                refused(
                    lambda: producer.send_offsets(group, topic, {0: 4}, as_member=True),
                    ILLEGAL_GENERATION,
                    "CommitFailed",
                )
                producer.abort()
                member.ask("member_keep")
                producer.begin()
                producer.send_offsets(group, topic, {0: 5}, as_member=True)
                producer.commit()
                wait_for(lambda: committed(bench, group, topic) == {"0": 5})


@feature("transactions: a second producer fences the first", is_core=True)
def fencing(bench: Bench) -> None:
    topic, name = bench.topic(), bench.name()
    with Producer(bench, name) as first, Producer(bench, name) as second:
        first.begin()
        first.send([keyed(topic, "of the first")])
        second.write([keyed(topic, "of the second")])
        refused(first.commit, FENCED_BY_LIBRDKAFKA, *FENCED)
        second.write([keyed(topic, "more of the second")])
    assert seen(bench, topic, 2) == [text("of the second"), text("more of the second")]


@feature("transactions: the time-out aborts one, and its producer gets an error")
def time_out(bench: Bench) -> None:
    topic, name = bench.topic(), bench.name()
    with Producer(bench, name, timeout_ms=1_000) as late:
        late.begin()
        late.send([keyed(topic, "late")])
        # The record and the marker.
        wait_for(lambda: bench.ends(topic) == [2], "the transaction is not aborted")
        is_java = bench.driver.name == NEWEST_JAVA
        refused(late.commit, FENCED_BY_LIBRDKAFKA, *FENCED, *((COMMITTED_TOO_LATE,) if is_java else ()))
    with Producer(bench, name) as successor:
        successor.write([keyed(topic, "in time")])
    assert seen(bench, topic, 1) == [text("in time")]


@feature("transactions: an open one holds readers of committed records back")
def held_back(bench: Bench) -> None:
    topic = bench.topic()
    with Producer(bench, bench.name()) as producer:
        bench.produce_by_reference([record(topic, f"before {n}") for n in range(3)])
        producer.begin()
        producer.send([keyed(topic, "in the transaction")])
        bench.produce_by_reference([record(topic, f"after {n}") for n in range(2)])
        sees_no_more(bench, topic, 3)
        assert end(bench, topic, COMMITTED) == 3
        assert end(bench, topic, UNCOMMITTED) == 6
        assert len(bench.read(topic, 6, isolation=UNCOMMITTED)) == 6
        producer.commit()
        wait_for(lambda: end(bench, topic, COMMITTED) == 7)
    wanted = [*(f"before {n}" for n in range(3)), "in the transaction", *(f"after {n}" for n in range(2))]
    assert seen(bench, topic, 6) == [*map(text, wanted)]
