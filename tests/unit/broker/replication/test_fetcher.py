"""The fetchers' thread against a real leader: its handlers, logs and sockets are real."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from barnabas.broker.base.clocks import monotonic_ms
from barnabas.broker.cluster.metadata_cache import MetadataCache
from barnabas.broker.config.topic_config import TopicConfig
from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.registry import HANDLERS, Handler
from barnabas.broker.handlers.services import Services
from barnabas.broker.log.appending import parse_produced
from barnabas.broker.log.file_system import FILE_SYSTEM, FileSystem
from barnabas.broker.log.log import Log
from barnabas.broker.log.recovery import LogLoader
from barnabas.broker.network.server import SocketServer
from barnabas.broker.replication import fetcher_state as following
from barnabas.broker.replication.fetcher_state import LeaderFetches
from barnabas.broker.replication.fetcher_thread import FetcherManager, FollowedLeader
from barnabas.broker.replication.partition import Partition
from barnabas.common.channel import Channel
from barnabas.protocol.errors import ErrorCode, LocalError
from barnabas.protocol.ids import BrokerEpoch, BrokerId, Endpoint, LeaderEpoch, TopicPartition
from barnabas.protocol.messages.fetch import FetchResponse
from barnabas.protocol.schema import ApiKey
from tests.support.building import ME, TP, TWO, fatal, partition_of, state
from tests.support.defaults import CONFIG, log_config
from tests.support.serving import INTERNAL, Serving, batch
from tests.support.slow_disk import SlowDisk
from tests.support.socket_server import start_server
from tests.support.waiting import DEADLINE_S, wait_for

LONG_POLL_MS = 120_000
SECOND = TopicPartition(TP.topic, 1)


class Leader(Serving):
    """Broker 1 leads both partitions; 1 and 2 are in sync. It may be stopped and started again."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, monotonic_ms)
        self._server: SocketServer | None = None
        self.port = 0
        self.managed.know({1: 0, 2: 5})
        for index in (TP.partition, SECOND.partition):
            self.tell(index)

    def tell(self, index: int, epoch: int = 0, leader: int = 1) -> None:
        role = state(leader=leader, epoch=epoch, isr=(1, 2), replicas=(1, 2), index=index)
        assert self.managed.tell(role) == []

    def start(self) -> None:
        server = start_server(
            self.process, on_fatal=fatal, listener=INTERNAL, port=self.port, num_io_threads=2
        )
        self._server, self.port = server, server.ports[INTERNAL]

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop(0)
            self._server = None

    def log(self, name: TopicPartition = TP) -> Log:
        return self.managed.manager.partition(name).log

    def append(self, *values: bytes, to: TopicPartition = TP) -> None:
        manager = self.managed.manager
        manager.append(1, 0, [(to, parse_produced(batch(*values)))], lambda outcomes: None)
        manager.wake_followers()


class LosingPort:
    """A port that closes its first connection after some bytes, and accepts a second without answering."""

    refuses = False

    def __init__(self, port: int) -> None:
        self._server = socket.create_server(("127.0.0.1", port))
        self._second: socket.socket | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> LosingPort:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(DEADLINE_S)
        self.refuses = True
        self._server.close()
        if self._second is not None:
            self._second.close()

    def _run(self) -> None:
        first, _ = self._server.accept()
        with first:
            first.recv(1)
        self._second, _ = self._server.accept()


class Follower:
    """Broker 2, with its fetchers' thread."""

    def __init__(
        self, folder: Path, config: TopicConfig | None = None, files: FileSystem = FILE_SYSTEM
    ) -> None:
        folder.mkdir()
        self.metadata = MetadataCache()
        self.partitions: dict[TopicPartition, Partition] = {}
        for name in (TP, SECOND):
            log = Log.open(name, LogLoader(folder / str(name), config or log_config(), now_ms=0, files=files))
            self.partitions[name] = partition_of(log, broker=TWO)
        broker_config = replace(
            CONFIG,
            broker_id=TWO,
            replica_fetch_wait_max_ms=LONG_POLL_MS,
            replica_fetch_response_max_bytes=1 << 20,
            replica_fetch_backoff_ms=20,
        )

        def make_fetches(leader: BrokerId) -> LeaderFetches:
            return LeaderFetches(
                broker_config,
                leader,
                self.metadata,
                broker_epoch=lambda: BrokerEpoch(5),
                note_error=lambda error: None,
                subscribes=True,
            )

        self.fetchers = FetcherManager(
            self.partitions.get, make_fetches, socket_timeout_ms=60_000, on_fatal=fatal
        )
        self.fetchers.start()

    def follow(self, leader: Leader, *names: TopicPartition, epoch: int = 0) -> None:
        for name in names:
            self.partitions[name].make_follower(
                state(leader=1, epoch=epoch, isr=(1, 2), replicas=(1, 2), index=name.partition)
            )
        endpoint = Endpoint("127.0.0.1", leader.port)
        self.fetchers.follow({name: FollowedLeader(ME, endpoint, LeaderEpoch(epoch)) for name in names})

    def has_all_of(self, leader: Leader, name: TopicPartition = TP) -> bool:
        return self.partitions[name].log_end_offset == leader.log(name).log_end_offset

    def close(self) -> None:
        self.fetchers.stop()
        for partition in self.partitions.values():
            partition.log.close(0)


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[Leader]:
    leader = Leader(tmp_path / "leader")
    leader.managed.reaper.start()
    leader.start()
    yield leader
    leader.stop()
    leader.managed.reaper.stop()
    leader.close()


@pytest.fixture
def follower(tmp_path: Path) -> Iterator[Follower]:
    follower = Follower(tmp_path / "follower")
    yield follower
    follower.close()


def whole(log: Log) -> bytes:
    return log.read(log.log_start_offset, 1 << 20).records.tobytes()


def test_a_follower_copies_byte_for_byte_and_its_fetches_commit(leader: Leader, follower: Follower) -> None:
    leader.append(b"a", b"b")
    follower.follow(leader, TP)
    wait_for(lambda: follower.has_all_of(leader), "the first records")
    for number in range(20):
        leader.append(b"%d" % number)
    wait_for(lambda: follower.has_all_of(leader), "all records")
    assert whole(follower.partitions[TP].log) == whole(leader.log())
    wait_for(lambda: leader.managed.manager.partition(TP).high_watermark == 22, "the commit")
    leader.append(b"last")
    wait_for(lambda: follower.partitions[TP].high_watermark >= 22, "the high watermark to arrive")


def test_records_are_pushed_and_reported_without_further_fetches(
    leader: Leader, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetches: list[ApiRequest] = []
    fetch = HANDLERS[ApiKey.FETCH]

    def counted(services: Services, request: ApiRequest) -> None:
        fetches.append(request)
        fetch.handle(services, request)

    monkeypatch.setitem(HANDLERS, ApiKey.FETCH, fetch._replace(handle=counted))
    leader.append(b"a")
    follower.follow(leader, TP)
    wait_for(lambda: leader.managed.manager.partition(TP).high_watermark == 1, "the first report")
    before = len(fetches)
    for number in range(20):
        leader.append(b"%d" % number)
        wait_for(lambda: follower.has_all_of(leader), "the record")
    wait_for(lambda: leader.managed.manager.partition(TP).high_watermark == 21, "the last report")
    assert len(fetches) == before
    # A leader of another epoch pushes no more, and the fetch that follows shows why.
    leader.tell(TP.partition, epoch=1)
    leader.append(b"later")
    wait_for(lambda: len(fetches) > before, "the fetch")
    assert follower.partitions[TP].log_end_offset == 21
    follower.follow(leader, TP, epoch=1)
    wait_for(lambda: follower.has_all_of(leader), "the record of the new epoch")


def test_a_batch_larger_than_any_other_answer_is_replicated(
    leader: Leader, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `max.message.bytes` above 100 MB: a refused frame would block all partitions of that leader."""
    monkeypatch.setitem(Channel.__init__.__kwdefaults__, "max_frame_bytes", 100_000)
    leader.append(b"v" * 500_000)
    follower.follow(leader, TP)
    wait_for(lambda: follower.has_all_of(leader), "the large batch")
    assert whole(follower.partitions[TP].log) == whole(leader.log())


def test_a_partition_followed_later_need_not_wait_for_the_long_poll(
    leader: Leader, follower: Follower
) -> None:
    follower.follow(leader, TP)
    leader.append(b"a")
    wait_for(lambda: follower.has_all_of(leader), "the first partition")
    leader.append(b"x", to=SECOND)
    follower.follow(leader, SECOND)
    wait_for(lambda: follower.has_all_of(leader, SECOND), "the second partition")


def test_a_slow_disk_delays_only_the_fetches_to_that_leader(tmp_path: Path, leader: Leader) -> None:
    disk = SlowDisk()
    follower = Follower(tmp_path / "slow", log_config(flush_messages=1), disk)
    disk.is_slow = True
    try:
        leader.append(b"a")
        follower.follow(leader, TP)
        assert disk.began.wait(DEADLINE_S)
        assert follower.has_all_of(leader)
        # The fetchers' thread is free for other leaders.
        is_free = threading.Event()
        follower.fetchers.thread.call(is_free.set)
        assert is_free.wait(DEADLINE_S)
        assert leader.managed.manager.partition(TP).high_watermark == 0
        disk.released.set()
        wait_for(lambda: leader.managed.manager.partition(TP).high_watermark == 1, "the commit")
        assert follower.partitions[TP].log.recovery_point == 1
    finally:
        disk.released.set()
        follower.close()


def test_a_diverging_log_is_truncated_to_the_leaders_history(leader: Leader, follower: Follower) -> None:
    leader.append(b"a", b"b")
    follower.follow(leader, TP)
    wait_for(lambda: follower.has_all_of(leader), "the first records")
    follower.fetchers.unfollow([TP])
    alone = follower.partitions[TP]
    alone.make_leader(state(leader=2, epoch=1, isr=(2,), replicas=(1, 2)), 0.0)
    for _ in range(3):
        alone.append_as_leader(parse_produced(batch(b"mine")), require_all=False, now_ms=0.0, wall_clock_ms=0)
    leader.tell(TP.partition, epoch=1, leader=2)
    leader.tell(TP.partition, epoch=2)
    leader.append(b"theirs")
    follower.follow(leader, TP, epoch=2)
    wait_for(lambda: follower.has_all_of(leader), "the leader's history")
    assert whole(alone.log) == whole(leader.log())
    assert alone.log.epoch_cache.entries == leader.log().epoch_cache.entries


def test_a_leader_whose_connection_is_lost_is_suspected_at_once_and_for_a_while(
    leader: Leader, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_SUSPECTED_S", 0.1)
    seen: list[bool] = []
    suspect = follower.metadata.suspect
    monkeypatch.setattr(
        follower.metadata, "suspect", lambda broker: (suspect(broker), seen.append(port.refuses))
    )
    leader.stop()
    with LosingPort(leader.port) as port:
        follower.follow(leader, TP)
        wait_for(lambda: bool(seen), "the suspicion")
        assert seen == [False], "it must not wait until the port refuses"
        wait_for(lambda: not follower.metadata.suspects, "the end of the suspicion, without an answer")


def test_no_fetch_is_made_for_a_leader_whose_port_refuses(
    leader: Leader, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would name every partition, a hundred times a second."""
    failures: list[LocalError] = []
    made: list[float] = []
    failed, next_request = LeaderFetches.failed, LeaderFetches.next_request
    monkeypatch.setattr(
        LeaderFetches, "failed", lambda self, error: (failures.append(error), failed(self, error))[1]
    )
    monkeypatch.setattr(
        LeaderFetches, "next_request", lambda self, now: (made.append(now), next_request(self, now))[1]
    )
    leader.stop()
    follower.follow(leader, TP)
    wait_for(lambda: len(failures) > 3, "some attempts to connect")
    assert made == []
    leader.start()
    leader.append(b"a")
    wait_for(lambda: follower.has_all_of(leader), "the record")


def test_a_loss_from_before_a_poll_is_handled_when_the_fetchers_have_polled(
    leader: Leader, follower: Follower
) -> None:
    """Metadata waits for it: the answer must not name a leader that the client has lost, too."""
    follower.follow(leader, TP)
    leader.append(b"a")
    wait_for(lambda: follower.has_all_of(leader), "the first record")
    may_go_on, polled = threading.Event(), threading.Event()
    follower.fetchers.thread.call(may_go_on.wait, DEADLINE_S)
    leader.stop()
    seen: list[frozenset[BrokerId]] = []
    follower.fetchers.when_polled(lambda: (seen.append(follower.metadata.suspects), polled.set()))
    assert not polled.is_set()
    may_go_on.set()
    assert polled.wait(DEADLINE_S)
    assert seen == [{ME}]


def test_a_leader_that_does_not_know_the_epoch_yet_is_retried(leader: Leader, follower: Follower) -> None:
    leader.append(b"a")
    follower.follow(leader, TP, epoch=1)
    follower.follow(leader, SECOND)
    leader.append(b"x", to=SECOND)
    wait_for(lambda: follower.has_all_of(leader, SECOND), "the other partition")
    assert follower.partitions[TP].log_end_offset == 0
    leader.tell(TP.partition, epoch=1)
    wait_for(lambda: follower.has_all_of(leader), "the refused partition")


def test_a_partition_that_is_no_longer_followed_is_not_copied(leader: Leader, follower: Follower) -> None:
    follower.follow(leader, TP, SECOND)
    leader.append(b"a")
    wait_for(lambda: follower.has_all_of(leader), "the first record")
    follower.fetchers.unfollow([TP])
    follower.partitions[TP].make_follower(state(leader=3, epoch=1, isr=(1, 2), replicas=(1, 2)))
    leader.append(b"b")
    leader.append(b"x", to=SECOND)
    wait_for(lambda: follower.has_all_of(leader, SECOND), "the partition that is still followed")
    assert follower.partitions[TP].log_end_offset == 1


def test_a_leader_that_refuses_every_fetch_is_retried_after_the_back_off(
    leader: Leader, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    sleep = asyncio.sleep

    async def noting(delay: float) -> None:
        slept.append(delay)
        await sleep(delay)

    def refuse(services: Services, request: ApiRequest) -> None:
        request.respond(FetchResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, responses=[]))

    monkeypatch.setattr(asyncio, "sleep", noting)
    monkeypatch.setitem(HANDLERS, ApiKey.FETCH, Handler(refuse))
    follower.follow(leader, TP)
    wait_for(lambda: 0.02 in slept, "the back-off")
