"""A broker registers again in a new session in spite of errors, and gives its leaderships away at its end."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from barnabas.broker import membership
from barnabas.broker.membership import Membership, request_controlled_shutdown
from barnabas.broker.replication.fence import Fence
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import (
    NO_BROKER_EPOCH,
    NO_CONTROLLER_EPOCH,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    Endpoint,
)
from barnabas.protocol.messages.inter_broker import ControlledShutdownResponse, RemainingPartition
from barnabas.protocol.schema import ApiKey
from barnabas.zookeeper.errors import SessionLost, ZooKeeperUnavailable
from barnabas.zookeeper.json_nodes import MalformedZnode
from barnabas.zookeeper.session import SessionEvent, Threads
from barnabas.zookeeper.znodes import AdvertisedListener, BrokerRegistration
from tests.support.building import fatal
from tests.support.fake_broker import FakeCluster
from tests.support.waiting import wait_for


class Store:
    """Registers with a higher epoch each time, after raising the errors in `due`."""

    def __init__(self) -> None:
        self.session = SimpleNamespace(is_connected=True, threads=Threads(), call_soon=lambda work: work())
        self.election = SimpleNamespace(
            epoch=lambda: ControllerEpoch(1), has_reached=lambda epoch: self.looked() and epoch <= 1
        )
        self.epoch = 0
        self.updates = 0
        self.due: list[Exception] = []
        self.looks: list[Exception] = []
        self.watches: list[Callable[[Any], None]] = []
        self.is_deleted = False
        self.listeners: object = None
        self.newer_than: object = None

    def register_broker(self, registration: Any, *, newer_than: BrokerEpoch) -> BrokerEpoch:
        if self.due:
            raise self.due.pop(0)
        self.listeners = registration.listeners
        self.newer_than = newer_than
        self.epoch += 1
        self.is_deleted = False
        return BrokerEpoch(self.epoch)

    def update_registration(self, registration: Any, broker_epoch: BrokerEpoch) -> bool:
        if self.due:
            raise self.due.pop(0)
        self.updates += 1
        if broker_epoch == self.epoch and not self.is_deleted:
            self.listeners = registration.listeners
            return True
        return False

    def looked(self) -> bool:
        if self.looks:
            raise self.looks.pop(0)
        return True

    def is_registered(self, broker: object, broker_epoch: BrokerEpoch, watch: Callable[[Any], None]) -> bool:
        self.looked()
        self.watches.append(watch)
        return broker_epoch == self.epoch and not self.is_deleted


class Replicas:
    """Also its own roles."""

    def __init__(self) -> None:
        self.roles = self
        self.fence = Fence()
        self.broker_epoch = NO_BROKER_EPOCH
        self.controller_epoch: object = None
        self.is_elected: Callable[[int], bool] | None = None

    def registered(self, broker_epoch: BrokerEpoch, controller_epoch: ControllerEpoch) -> None:
        self.broker_epoch = broker_epoch
        self.controller_epoch = controller_epoch

    def registration_lost(self, reason: str) -> None:
        self.fence.registration_lost(reason, self.broker_epoch)


class Joined(NamedTuple):
    member: Membership
    store: Any
    replicas: Any


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> Iterator[Joined]:
    """A registered member with short pauses before retries."""
    monkeypatch.setattr(membership, "_RETRY_S", 0.001)
    store: Any = Store()
    replicas: Any = Replicas()
    registration = BrokerRegistration(broker_id=BrokerId(1), listeners=(), timestamp_ms=0)
    member = Membership(store, replicas, on_fatal=fatal)
    member.join(registration)
    member.start()
    yield Joined(member, store, replicas)
    member.stop()


@pytest.mark.parametrize(
    ("error", "is_believed"),
    [
        (None, False),
        (SessionLost("gone"), False),
        (ZooKeeperUnavailable("no answer"), False),
        # A controller continues from the highest epoch that it knows.
        (MalformedZnode("/controller_epoch holds b'x'"), True),
    ],
)
def test_a_controller_epoch_is_believed_after_a_look_at_zookeeper(
    joined: Joined, error: Exception | None, is_believed: bool
) -> None:
    _, store, replicas = joined
    wait_for(lambda: store.watches)
    assert replicas.is_elected(1)
    store.looks = [error] if error else []
    assert replicas.is_elected(2) is is_believed
    store.session.is_connected = False
    store.looks = [AssertionError("it must not wait")]
    assert not replicas.is_elected(2)
    store.looks = []


@pytest.mark.parametrize(
    ("error", "has_traceback"), [(ZooKeeperUnavailable("no answer"), False), (KeyError("a bug"), True)]
)
def test_a_check_of_the_registration_is_repeated_and_only_a_bug_has_a_traceback(
    joined: Joined, caplog: pytest.LogCaptureFixture, error: Exception, has_traceback: bool
) -> None:
    """Otherwise each broker would log one every second, as long as ZooKeeper is away."""
    _, store, _ = joined
    wait_for(lambda: store.watches)
    checks = len(store.watches)
    store.looks = [error]
    store.watches[-1](None)
    wait_for(lambda: not store.looks and len(store.watches) > checks)
    [warning] = caplog.records
    assert (warning.exc_info is not None) is has_traceback


def test_an_unforeseen_error_only_delays_a_registration(joined: Joined) -> None:
    member, store, replicas = joined
    member.session_changed(SessionEvent.EXPIRED)
    store.due = [MalformedZnode("/brokers/ids/1 holds b'{'"), KeyError("a bug")]
    member.session_changed(SessionEvent.RENEWED)
    assert (replicas.broker_epoch, replicas.controller_epoch, store.newer_than) == (2, 1, 1)


@pytest.mark.parametrize(
    ("error", "is_connected"), [(SessionLost("again"), True), (ZooKeeperUnavailable("no answer"), False)]
)
def test_a_registration_without_zookeeper_waits_for_the_next_event_of_the_session(
    joined: Joined, error: Exception, is_connected: bool
) -> None:
    member, store, replicas = joined
    member.session_changed(SessionEvent.EXPIRED)
    store.due, store.session.is_connected = [error], is_connected
    member.session_changed(SessionEvent.RENEWED)
    assert replicas.broker_epoch == 1
    member.session_changed(SessionEvent.RESUMED)
    assert replicas.broker_epoch == 2
    member.session_changed(SessionEvent.RESUMED)
    assert (replicas.broker_epoch, store.updates) == (2, 0), "there is nothing to repeat"


def test_with_an_unreadable_controller_epoch_the_first_controller_is_accepted(joined: Joined) -> None:
    def unreadable() -> ControllerEpoch:
        raise MalformedZnode("/controller_epoch holds b'x'")

    joined.store.election.epoch = unreadable
    joined.member.session_changed(SessionEvent.EXPIRED)
    joined.member.session_changed(SessionEvent.RENEWED)
    assert joined.replicas.controller_epoch == NO_CONTROLLER_EPOCH


def test_a_deleted_registration_is_replaced_by_a_new_one(joined: Joined) -> None:
    _, store, replicas = joined
    wait_for(lambda: len(store.watches) == 1, "a watch on the registration")
    store.looks = [KeyError("a bug")]
    store.is_deleted = True
    store.watches[0](None)
    wait_for(lambda: replicas.broker_epoch == 2 and len(store.watches) == 3, "another registration")
    assert replicas.fence.reason == "the registration was deleted"
    # An existing registration is not touched.
    store.watches[0](None)
    wait_for(lambda: len(store.watches) == 4, "another look")
    assert replicas.broker_epoch == 2
    store.looks = [SessionLost("over")]
    store.watches[0](None)
    wait_for(lambda: not store.looks, "a look in a session that has ended")
    store.watches[0](None)
    wait_for(lambda: len(store.watches) == 5, "a look in the next session")


OTHER = (AdvertisedListener("CLIENTS", "host", 9),)


def test_other_addresses_are_written_into_the_registration_or_the_next_one(joined: Joined) -> None:
    joined.member.update(listeners=OTHER)
    joined.member.update(listeners=OTHER)
    assert (joined.store.listeners, joined.store.epoch, joined.store.updates) == (OTHER, 1, 1)
    joined.member.session_changed(SessionEvent.EXPIRED)
    joined.member.update(listeners=())
    assert joined.store.listeners == OTHER
    joined.member.session_changed(SessionEvent.RENEWED)
    assert (joined.store.listeners, joined.store.epoch) == ((), 2)


def test_other_addresses_are_written_when_zookeeper_answers_again(joined: Joined) -> None:
    joined.store.due.append(ZooKeeperUnavailable("no answer"))
    joined.member.update(listeners=OTHER)
    assert joined.store.listeners == ()
    for _ in range(2):
        joined.member.session_changed(SessionEvent.RESUMED)
        assert (joined.store.listeners, joined.store.updates) == (OTHER, 1)


def test_a_broker_is_fenced_while_zookeeper_is_silent(joined: Joined) -> None:
    joined.member.session_changed(SessionEvent.SILENT)
    assert "has not answered" in joined.replicas.fence.reason
    joined.member.session_changed(SessionEvent.RESUMED)
    assert joined.replicas.fence.reason is None
    joined.member.stop()
    joined.member.session_changed(SessionEvent.SILENT)
    joined.member.session_changed(SessionEvent.EXPIRED)
    joined.member.session_changed(SessionEvent.RENEWED)
    assert (joined.replicas.fence.reason, joined.store.epoch) == (None, 1), "it has stopped"


def remaining(code: ErrorCode = ErrorCode.NONE, partitions: int = 0) -> ControlledShutdownResponse:
    left = [RemainingPartition(topic_name="topic", partition_index=index) for index in range(partitions)]
    return ControlledShutdownResponse(error_code=code, remaining_partitions=left)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([remaining()], True),
        ([remaining(partitions=2), remaining()], True),
        ([None, remaining(ErrorCode.NOT_CONTROLLER), remaining()], True),
        ([remaining(partitions=1)] * 3, False),
        ([remaining(ErrorCode.STALE_BROKER_EPOCH)] * 3, False),
        ([None] * 3, False),
    ],
)
async def test_a_controlled_shutdown_is_requested_until_no_leadership_remains(
    answers: list[ControlledShutdownResponse | None], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept_s: list[float] = []

    async def sleep(delay_s: float) -> None:
        slept_s.append(delay_s)

    monkeypatch.setattr(membership, "asyncio", SimpleNamespace(sleep=sleep))

    def answer(response: ControlledShutdownResponse | None) -> Callable[[object], object]:
        def give(_: object) -> object:
            if response is None:
                raise ConnectionResetError
            return response

        return give

    async with FakeCluster(1) as cluster:
        broker = cluster.brokers[1]
        broker.script(ApiKey.CONTROLLED_SHUTDOWN, *map(answer, answers))
        endpoints = iter([None, *[Endpoint("127.0.0.1", broker.port)] * len(answers)])
        is_done = await request_controlled_shutdown(
            BrokerId(7),
            BrokerEpoch(70),
            lambda: next(endpoints),
            max_retries=3,
            retry_backoff_ms=5_000,
            timeout_ms=20_000,
        )
        requests = cluster.requests(ApiKey.CONTROLLED_SHUTDOWN)
    assert is_done is expected
    assert slept_s == [5] * len(answers), "the first request comes at once"
    assert [(request.broker_id, request.broker_epoch) for request in requests] == [(7, 70)] * len(answers)
