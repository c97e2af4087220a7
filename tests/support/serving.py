"""A broker's handlers and their dispatcher: real logs, the real codecs, but no socket and no thread.

::

    def test_acks_all_waits_for_the_followers(leading: Serving) -> None:
        waiting = leading.send(produce_request(batch(b"a"), acks=-1))
        assert not waiting.is_answered
        catch_up(leading)
        assert produced(waiting).error_code == ErrorCode.NONE

`send` returns the connection; its `response` is the decoded answer, now or later. `call` returns an
immediate answer. With ``version=9`` both use that version of Kafka's protocol. `serving` (no partition) and
`leading` (broker 1 leads "topic") are fixtures; tests/support/record_requests.py builds requests about
records. The fakes around the handlers (`topics`, `configs`, `blocks`, `controller`, `slow`) answer what a
test puts into them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from barnabas.broker.base.clocks import monotonic_ms
from barnabas.broker.base.purgatory import Purgatory
from barnabas.broker.cluster.features import SUPPORTED
from barnabas.broker.cluster.producer_ids import ProducerIds
from barnabas.broker.config.listener_config import ListenerConfig
from barnabas.broker.config.settings import BrokerConfig
from barnabas.broker.coordinators.groups.coordinator import GroupCoordinator
from barnabas.broker.coordinators.state_machine import Moment
from barnabas.broker.coordinators.topic_coordinator import Host
from barnabas.broker.coordinators.transactions.coordinator import TransactionCoordinator
from barnabas.broker.coordinators.transactions.verification import TransactionVerification
from barnabas.broker.handlers.auto_topics import AutoTopicCreation, Create
from barnabas.broker.handlers.dispatcher import Dispatcher, lane_of
from barnabas.broker.handlers.services import OutcomesAnswer, ReassignmentsAnswer, Services
from barnabas.broker.handlers.waiting import wake_requests
from barnabas.broker.log.log_manager import LogManager
from barnabas.broker.network.request import Buffers, Peer, Request
from barnabas.broker.replication.log_dir_moves import LogDirMoves
from barnabas.broker.security.authentication import Authenticator, Mechanism
from barnabas.broker.security.authentication_outcomes import AuthenticationOutcomes
from barnabas.broker.security.authorizer import Authorizer
from barnabas.broker.security.client_quotas import ClientQuotas
from barnabas.broker.security.password_servers import PlainPasswords, PlainServer
from barnabas.broker.security.session import Session
from barnabas.common.workers import WorkRefused
from barnabas.protocol import codec_kafka, codec_msgpack
from barnabas.protocol.batch_builder import RecordBatchBuilder
from barnabas.protocol.errors import ApiError, ErrorCode, InvalidConfiguration
from barnabas.protocol.frames import LENGTH_BYTES, Frame
from barnabas.protocol.ids import BrokerEpoch, BrokerId, TopicId, TopicPartition
from barnabas.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    DeletableTopicResult,
    DeleteTopicState,
)
from barnabas.zookeeper.configs import Entity, EntityKind
from barnabas.zookeeper.features import FeatureChanges
from barnabas.zookeeper.znodes import ReplicaAssignment
from tests.support.building import ME, Managed, fatal
from tests.support.controller_fakes import Znodes
from tests.support.defaults import log_config, make_config
from tests.support.verification import Coordinators

INTERNAL, EXTERNAL = "INTERNAL", "EXTERNAL"
CORRELATION_ID = 77
_PASSWORDS = PlainPasswords({"alice": "secret"})


def unknown_session(max_reauth_ms: int = 0) -> Session:
    """Of a peer that has to authenticate by PLAIN."""
    session = Session("192.0.2.1")
    mechanism = Mechanism(lambda: PlainServer(_PASSWORDS), max_reauth_ms)
    session.must_authenticate(Authenticator(session, {"PLAIN": mechanism}))
    return session


def run_rest(request: Request) -> None:
    """Go on with a request in the lanes that it chooses, until it has run or pauses."""
    while request.rest is not None and not request.is_paused:
        rest, request.rest = request.rest, None
        rest()


def payload_of(body: Any, version: int | None = None) -> bytes:
    """A request in the native protocol, or in a version of Kafka's."""
    if version is None:
        buffers = codec_msgpack.encode_request(CORRELATION_ID, "test", body)
    else:
        buffers = codec_kafka.encode_request(version, CORRELATION_ID, "test", body)
    return b"".join(bytes(buffer) for buffer in buffers)[LENGTH_BYTES:]


class Connection:
    """A connection with one request, and its answer: the bytes, or why the connection was closed."""

    opened_ns = 0
    received_ns = 0

    def __init__(
        self,
        payload: bytes,
        listener: str = EXTERNAL,
        request_type: Any = None,
        version: int | None = None,
        session: Session | None = None,
    ) -> None:
        self.closed: str | None = None
        self.answers: list[bytes] = []
        self._request_type = request_type
        self._version = version
        peer = Peer("client-1", "127.0.0.1", listener, self.opened_ns, session or Session("127.0.0.1"))
        frame = Frame(memoryview(bytearray(payload)))
        self._is_running = False
        self.request = Request(frame, peer, lane_of(frame.view), self.received_ns, self._answer, self._resume)

    @classmethod
    def of(
        cls,
        body: Any,
        listener: str = EXTERNAL,
        *,
        version: int | None = None,
        session: Session | None = None,
    ) -> Connection:
        return cls(payload_of(body, version), listener, type(body), version, session)

    def _answer(self, request: Request, buffers: Buffers, close_reason: str) -> None:
        if self.is_answered:
            assert request.failed
        else:
            if buffers or not close_reason:
                self.answers.append(b"".join(bytes(buffer) for buffer in buffers))
            self.closed = close_reason or None

    def run(self, process: Callable[[Request], None]) -> None:
        """Run the request in the lanes that it chooses, until it has run or pauses."""
        self._is_running = True
        process(self.request)
        self._run_rest()

    def _run_rest(self) -> None:
        self._is_running = True
        run_rest(self.request)
        self._is_running = False

    def _resume(self, request: Request) -> None:
        request.is_paused = False
        if not self._is_running:
            self._run_rest()

    @property
    def is_answered(self) -> bool:
        return bool(self.answers) or self.closed is not None

    @property
    def response(self) -> Any:
        """The one answer, decoded."""
        (whole,) = self.answers
        payload = memoryview(whole)[LENGTH_BYTES:]
        if self._version is not None:
            correlation_id, body = codec_kafka.decode_response(self._request_type, self._version, payload)
        else:
            opened = codec_msgpack.open_response(payload)
            correlation_id, body = opened.correlation_id, opened.body(self._request_type.response_type)
        assert correlation_id == CORRELATION_ID
        return body


class Inline:
    """Slow work that runs at once, or is refused as by a full queue."""

    def __init__(self) -> None:
        self.is_full = False

    def submit(self, failed: Callable[[Exception], None], work: Callable[..., Any], *args: Any) -> None:
        if self.is_full:
            raise WorkRefused("500 requests wait for ZooKeeper already")
        try:
            work(*args)
        except OSError as error:
            failed(error)


class QueuedWork:
    """Slow work that waits until the test runs it, or is refused as by a full queue."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []
        self.is_full = False

    def submit(self, failed: Callable[[Exception], None], work: Callable[..., Any], *args: Any) -> None:
        if self.is_full:
            raise WorkRefused("full")

        def run() -> None:
            try:
                work(*args)
            except OSError as error:
                failed(error)

        self.waiting.append(run)

    def run(self) -> None:
        """Run also the work that is queued meanwhile."""
        while self.waiting:
            self.waiting.pop(0)()


class Topics:
    """The results of creating, growing and deleting topics in ZooKeeper."""

    def __init__(self) -> None:
        self.created: list[CreatableTopicResult] = []
        self.grown: list[tuple[CreatePartitionsTopicResult, TopicId, int]] = []
        self.deleted: list[DeletableTopicResult] = []
        self.failure: OSError | None = None
        self.calls: list[Any] = []

    def create_topics(
        self, topics: Sequence[CreatableTopic], *, validate_only: bool = False, charge: Any = None
    ) -> list[CreatableTopicResult]:
        self.calls.append(([topic.name for topic in topics], validate_only))
        if self.failure is not None:
            raise self.failure
        return self.created

    def create_partitions(
        self, topics: Sequence[CreatePartitionsTopic], *, validate_only: bool = False, charge: Any = None
    ) -> Sequence[tuple[CreatePartitionsTopicResult, TopicId, int]]:
        self.calls.append(([(topic.name, topic.count) for topic in topics], validate_only))
        return self.grown

    def delete_topics(
        self, topics: Sequence[DeleteTopicState], *, charge: Any = None
    ) -> list[DeletableTopicResult]:
        self.calls.append([topic.name for topic in topics])
        return self.deleted


class Configs:
    """The settings in ZooKeeper; an exception in `trouble` is raised instead."""

    def __init__(self) -> None:
        self.stored: dict[Entity, Mapping[str, str]] = {}
        self.trouble: ApiError | None = None

    def values(self, entities: Iterable[Entity]) -> dict[Entity, Mapping[str, str]]:
        if self.trouble is not None:
            raise self.trouble
        return {entity: self.stored.get(entity, {}) for entity in entities}

    def values_of_kind(self, kind: EntityKind) -> dict[Entity, Mapping[str, str]]:
        return self.values(entity for entity in self.stored if entity.kind is kind)

    def change(self, entity: Entity, edit: Callable[[Mapping[str, str]], Mapping[str, str]]) -> None:
        self.stored[entity] = dict(edit(self.values([entity])[entity]))


class Blocks:
    """Blocks of producer ids; an exception in `trouble` is raised instead."""

    def __init__(self) -> None:
        self.claimed = 0
        self.trouble: Exception | None = None

    def claim(self) -> range:
        if self.trouble is not None:
            raise self.trouble
        self.claimed += 1
        return range(1_000 * self.claimed, 1_000 * self.claimed + 1_000)


class FakeController:
    """The controller of this process."""

    def __init__(self) -> None:
        self.is_active = True
        self.remaining: list[TopicPartition] = []
        self.code = ErrorCode.NONE
        self.calls: list[tuple[BrokerId, BrokerEpoch]] = []
        self.elections: list[tuple[Collection[TopicPartition] | None, bool]] = []
        self.targets: list[Mapping[TopicPartition, Sequence[int] | None]] = []
        self.may_change_factor: bool | None = None
        self.outcomes: dict[TopicPartition, ApiError | None] = {}
        """The answer to the next elections or reassignments."""
        self.under_way: dict[TopicPartition, ReplicaAssignment] = {}

    def controlled_shutdown(self, broker_id: BrokerId, broker_epoch: BrokerEpoch, answer: Any) -> None:
        self.calls.append((broker_id, broker_epoch))
        answer(self.code, self.remaining)

    def elect_leaders(
        self, partitions: Collection[TopicPartition] | None, *, is_unclean: bool, done: OutcomesAnswer
    ) -> None:
        self.elections.append((partitions, is_unclean))
        done(self.code, self.outcomes)

    def alter_reassignments(
        self,
        targets: Mapping[TopicPartition, Sequence[int] | None],
        done: OutcomesAnswer,
        *,
        may_change_factor: bool = True,
    ) -> None:
        self.targets.append(targets)
        self.may_change_factor = may_change_factor
        done(self.code, self.outcomes)

    def list_reassignments(self, done: ReassignmentsAnswer) -> None:
        done(self.code, self.under_way)


class SentRequest(NamedTuple):
    broker_id: BrokerId
    request: Any
    answer: Callable[[Any], None]


class RecordedLinks:
    """Links to other brokers; the test answers the requests."""

    def __init__(self) -> None:
        self.requests: list[SentRequest] = []

    def send(self, broker_id: BrokerId, request: Any, answer: Any, *, timeout_ms: int | None = None) -> None:
        self.requests.append(SentRequest(broker_id, request, answer))


def config_of(folder: Path, broker_id: BrokerId, settings: Mapping[str, object]) -> BrokerConfig:
    """A listener for brokers and one for clients, and answers of at most 2 KB."""
    return make_config(
        log_dirs=folder,
        listeners=f"{INTERNAL}://127.0.0.1:0,{EXTERNAL}://127.0.0.1:0",
        listener_security_protocol_map=f"{INTERNAL}:PLAINTEXT,{EXTERNAL}:PLAINTEXT",
        inter_broker_listener_name=INTERNAL,
        broker_id=broker_id,
        **{"fetch_max_bytes": 2048, **settings},
    )


def open_logs(folder: Path) -> LogManager:
    return LogManager.open(
        [folder],
        broker_id=ME,
        cluster_id="cluster",
        config_of=lambda topic: log_config(),
        now_ms=0,
    )


USABLE_CERTIFICATE: Final = "/usable.pem"
"""The one key store that a broker's listeners can use."""


class Serving:
    """One broker: its handlers, and everything that they need.

    A test of clients gives several brokers the same ``logs``, and ``topics`` that create topics.
    """

    def __init__(
        self,
        folder: Path,
        real_clock: Callable[[], float] | None = None,
        *,
        broker_id: BrokerId = ME,
        logs: LogManager | None = None,
        topics: Any = None,
        auto_create: Create | None = None,
        links: Any = None,
        authorizer: Authorizer | None = None,
        **settings: object,
    ) -> None:
        self.logs = open_logs(folder) if logs is None else logs
        self.managed = Managed(self.logs, real_clock=real_clock, broker_id=broker_id)
        self.topics = Topics() if topics is None else topics
        self.controller = FakeController()
        self.authorizer = authorizer
        self.session: Session | None = None
        """Of the connections of later requests; None for another anonymous one each."""
        self.slow = Inline()
        self.blocks = Blocks()
        self.configs = Configs()
        self.znodes = Znodes()
        self.quotas = ClientQuotas()
        self.features = FeatureChanges(self.znodes.open_store().features, supported=SUPPORTED, on_fatal=fatal)
        self.auto_created: list[list[str]] = []
        self.auto_topics = AutoTopicCreation(
            self._auto_create if auto_create is None else auto_create,
            cast(Any, self.slow),
            now_ms=lambda: 0,
            is_enabled=True,
        )
        self.config = config_of(folder, broker_id, settings)
        manager = self.managed.manager
        self.wall_ms = 1_700_000_000_000
        self.partitions_in_zookeeper: int | None = None
        self.transaction_version = 0
        self.sent = RecordedLinks()
        self.producer_ids = ProducerIds(self.blocks.claim, cast(Any, self.slow))
        host = Host(
            self.config,
            manager,
            self.managed.metadata,
            self.managed.reaper,
            now=lambda: Moment(self.managed.now_ms(), self.wall_ms),
            create_topic=lambda name: self.auto_topics.ask([name]),
            count_partitions=lambda topic: self.partitions_in_zookeeper,
            run_aside=lambda work: work(),
            on_fatal=fatal,
        )
        self.groups = GroupCoordinator(host)
        self.groups.listen()
        self.transactions = TransactionCoordinator(
            host,
            producer_ids=self.producer_ids,
            links=links or cast(Any, self.sent),
            transaction_version=lambda: self.transaction_version,
        )
        self.transactions.listen()
        self.log_dir_moves = self._make_log_dir_moves()
        self.coordinators = Coordinators({})
        self.verification = TransactionVerification(
            broker_id,
            manager,
            coordinator_of=self.coordinators.coordinator_of,
            ask_own=self.coordinators.apply,
            links=cast(Any, self.coordinators),
            is_enabled=True,
        )
        self.topic_purgatory = Purgatory("topics", self.managed.reaper)
        self.authentication_outcomes = AuthenticationOutcomes(
            0, Purgatory("authentication", self.managed.reaper)
        )
        for coordinator in (self.groups, self.transactions):
            coordinator.state_listeners.append(lambda tp: self.topic_purgatory.check_and_complete(tp.topic))
        self.managed.metadata.on_update(functools.partial(wake_requests, self.topic_purgatory))
        self.services = self._services()
        self.dispatch: Callable[[Request], None] = Dispatcher(self.services)

    def _make_log_dir_moves(self) -> LogDirMoves:
        return LogDirMoves(
            self.logs,
            threads=1,
            bytes_per_second=math.inf,
            checkpoint_high_watermarks=self.managed.manager.checkpoint_high_watermarks,
            note_error=self.managed.manager.disk_failures.note,
            on_fatal=fatal,
        )

    def _services(self) -> Services:
        return Services(
            config=self.config,
            cluster_id="cluster",
            replicas=self.managed.manager,
            metadata=self.managed.metadata,
            topic_purgatory=self.topic_purgatory,
            topics=self.topics,
            auto_topics=self.auto_topics,
            configs=cast(Any, self.configs),
            features=self.features,
            quotas=self.quotas,
            controller=self.controller,
            slow_work=cast(Any, self.slow),
            producer_ids=self.producer_ids,
            groups=self.groups,
            transactions=self.transactions,
            verification=self.verification,
            log_dir_moves=self.log_dir_moves,
            authorizer=self.authorizer,
            authentication_outcomes=self.authentication_outcomes,
            check_certificate=self._check_certificate,
        )

    def _check_certificate(self, name: str, config: ListenerConfig) -> None:
        if config.ssl_keystore_location != USABLE_CERTIFICATE:
            raise InvalidConfiguration(f"listener {name}: {config.ssl_keystore_location} cannot be used")

    def _auto_create(self, names: Sequence[str]) -> Mapping[str, ErrorCode]:
        self.auto_created.append(list(names))
        return {}

    def close(self) -> None:
        self.logs.close(0)

    def expire(self, *, after_ms: int) -> None:
        """Run the reaper for a later time, for answers that wait by the real clock."""
        self.managed.reaper.expire_due(monotonic_ms() + after_ms)

    def process(self, request: Request) -> None:
        """Called by a socket server."""
        self.dispatch(request)
        self.managed.manager.wake_followers()

    def send(
        self,
        body: Any,
        listener: str = EXTERNAL,
        *,
        version: int | None = None,
        session: Session | None = None,
    ) -> Connection:
        """Receive a request by a listener and run it in the lanes that it chooses."""
        return self.run(Connection.of(body, listener, version=version, session=session or self.session))

    def run(self, connection: Connection) -> Connection:
        connection.run(self.dispatch)
        return connection

    def call(self, body: Any, listener: str = EXTERNAL, *, version: int | None = None) -> Any:
        """A request and its immediate answer."""
        return self.send(body, listener, version=version).response


def batch(*values: bytes, timestamp_ms: int = 0) -> bytes:
    """As a producer sends it; each record is one millisecond younger than the one before."""
    builder = RecordBatchBuilder()
    for index, value in enumerate(values):
        builder.append(None, value, None, timestamp_ms + index)
    return bytes(builder.build())
