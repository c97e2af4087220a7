"""Consumers that wait at one offset share a read and an answer, and each gets the bytes of its own.

The model is the same broker in which nothing is shared.
"""

import random
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.base.purgatory import LoopDeadlines
from barnabas.broker.network.request import Lane
from barnabas.broker.replication.delayed_fetch import FetchReader
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages.fetch import FINAL_EPOCH, INITIAL_EPOCH
from tests.support.building import TP, state
from tests.support.compiled import PURE_PYTHON_ONLY
from tests.support.record_requests import (
    FETCH_VERSIONS,
    fetch_of,
    fetch_request,
    fetched,
    produce_at,
    produce_request,
)
from tests.support.serving import Connection, Serving, batch, payload_of
from tests.support.transactions import end, write

CONSUMERS = 120


def leading_two(folder: Path) -> Serving:
    serving = Serving(folder)
    serving.managed.know({1: 0})
    serving.managed.tell(*(state(isr=(1,), replicas=(1,), index=index) for index in range(2)))
    return serving


def send(serving: Serving, chosen: random.Random, log_end: int) -> Connection:
    """A fetch that waits, or not, of any shape."""
    version = chosen.choice([None, None, 4, 7, 12, *FETCH_VERSIONS])
    has_session = version is None or version >= 7
    fields: dict[str, Any] = {
        "max_wait_ms": chosen.choice([200, 500]),
        "min_bytes": chosen.choice([1, 1, 1, 200]),
        "max_bytes": chosen.choice([1, 1 << 20]),
        "isolation_level": chosen.choice([0, 0, 1]),
        "partition_max_bytes": chosen.choice([1, 1 << 20, 1 << 20]),
    }
    if has_session:
        fields["session_epoch"] = chosen.choice([INITIAL_EPOCH, FINAL_EPOCH, FINAL_EPOCH])
    if version is None or version >= 9:
        fields["current_leader_epoch"] = chosen.choice([-1, 0])
    offset = log_end + chosen.choice([0, 0, 0, -1, 1])
    request = fetch_request(offset, version=version, **fields)
    if chosen.random() < 0.1 and version is None:
        request = fetch_of({0: log_end, 1: chosen.randrange(2)}, max_wait_ms=500)
    return serving.run(Connection(payload_of(request, version), request_type=type(request), version=version))


def history(folder: Path, seed: int) -> list[tuple[list[bytes], str | None]]:
    """The answers to many consumers, appends, aborted transactions and deadlines among them."""
    chosen = random.Random(seed)
    random.seed(seed)
    connections: list[Connection] = []
    with closing(leading_two(folder)) as serving:
        partition = serving.managed.manager.partition(TP)
        for step in range(6):
            connections += [send(serving, chosen, partition.log_end_offset) for _ in range(CONSUMERS // 6)]
            event = chosen.choice(["append", "append", "abort", "both", "time"])
            if event == "abort":
                write(partition, producer_id=100 + step)
                end(partition, producer_id=100 + step, committed=False)
            if event == "time":
                serving.managed.pass_time(300)
            if event in ("append", "abort", "both"):
                produce_at(serving, 0, b"%d" % step)
            if event == "both":
                produce_at(serving, 1, b"other")
        serving.managed.tell(state(leader=2, epoch=1, isr=(2,), replicas=(1, 2)))
        serving.managed.pass_time(1_000)
    return [(connection.answers, connection.closed) for connection in connections]


@PURE_PYTHON_ONLY
@pytest.mark.parametrize("seed", range(6))
def test_a_shared_answer_is_that_of_its_consumer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    shared = history(tmp_path / "shared", seed)
    assert all(len(answers) == 1 for answers, _ in shared)
    monkeypatch.setattr(FetchReader, "read_shared", FetchReader.read_all)
    monkeypatch.setattr(FetchReader, "finds_nothing", lambda self, params, items: False)
    assert history(tmp_path / "alone", seed) == shared


def waiting(serving: Serving, offset: int, count: int = 10, **fields: Any) -> list[Connection]:
    request = fetch_request(offset, max_wait_ms=500, session_epoch=FINAL_EPOCH, **fields)
    return [serving.send(request) for _ in range(count)]


@PURE_PYTHON_ONLY
@pytest.mark.parametrize("min_bytes", [1, 100])
def test_one_read_answers_all_that_wait_at_an_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, min_bytes: int
) -> None:
    reads = []
    read_all = FetchReader.read_all

    def counted(*arguments: Any) -> Any:
        reads.append(arguments)
        return read_all(*arguments)

    with closing(leading_two(tmp_path)) as serving:
        monkeypatch.setattr(FetchReader, "read_all", counted)
        connections = waiting(serving, 0, min_bytes=min_bytes)
        assert not reads, "nothing can be there"
        produce_at(serving, 0, bytes(200))
        assert len(reads) == 1
        assert all(fetched(connection).error_code == ErrorCode.NONE for connection in connections)
        shared = serving.managed.manager._reader.shared
        assert not shared._results, "no segment is kept for them"
        connections = waiting(serving, 1)
        serving.managed.pass_time(500)
        assert len(reads) == 2
        assert all(len(connection.answers) == 1 for connection in connections)


def test_a_read_is_not_shared_once_more_is_there(tmp_path: Path) -> None:
    """Another thread may append during a slice."""
    with closing(leading_two(tmp_path)) as serving:
        connections = waiting(serving, 0, 3)
        request = connections[0].request
        answer = request._answer

        def append_first(*arguments: Any) -> None:
            produce_at(serving, 0, b"second")
            answer(*arguments)

        request._answer = append_first
        produce_at(serving, 0, b"first")
        lengths = [len(fetched(connection).records) for connection in connections]
        assert lengths[0] < lengths[1] == lengths[2]


@pytest.mark.parametrize("lane", [Lane.NETWORK, Lane.GENERAL])
@pytest.mark.parametrize("kind", ["fetch", "produce"])
def test_a_request_expires_on_the_loop_only_if_it_waits_on_its_thread(
    leading: Serving, lane: Lane, kind: str
) -> None:
    """The loop's timers are for its own thread; a worker has the reaper."""
    request = fetch_request(0, max_wait_ms=500) if kind == "fetch" else produce_request(batch(b"a"), acks=-1)
    connection = Connection.of(request)
    timers: list[float] = []
    clock = leading.managed.clock
    deadlines = LoopDeadlines(lambda delay_s, work: timers.append(delay_s), lambda work: None, clock)
    connection.request.lane, connection.request.deadlines = lane, deadlines
    leading.run(connection)
    assert len(timers) == (1 if lane is Lane.NETWORK else 0)
    leading.managed.pass_time(30_000)
    assert connection.is_answered == (lane is Lane.GENERAL)
