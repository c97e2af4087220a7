"""Faults in front of the dispatcher: each action before and after the handler, on both wires, and its end."""

import gc
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from barnabas import broker
from barnabas.broker.base.limits import MAX_ON_NETWORK_THREAD
from barnabas.broker.base.purgatory import DelayedCall
from barnabas.broker.handlers.dispatcher import Dispatcher
from barnabas.broker.handlers.fault_injection import OF_BROKERS, FaultInjection
from barnabas.broker.handlers.registry import HANDLERS
from barnabas.broker.network.request import Lane, Request
from barnabas.broker.security.session import Session
from barnabas.common.fault_rules import FAULTS_CLIENT_ID, MAX_RULES, FaultRule, to_wire
from barnabas.common.security.principal import Principal
from barnabas.protocol import codec_kafka, codec_msgpack
from barnabas.protocol.answer_codes import codes_of
from barnabas.protocol.errors import ErrorCode, Unencodable, UnsupportedVersionError
from barnabas.protocol.frames import LENGTH_BYTES
from barnabas.protocol.messages import fault_rules as wire
from barnabas.protocol.messages.api_versions import ApiVersionsRequest
from barnabas.protocol.messages.authentication import SaslAuthenticateRequest, SaslHandshakeRequest
from barnabas.protocol.messages.fetch import FetchRequest
from barnabas.protocol.messages.groups import HeartbeatRequest
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.protocol.messages.topics import DeleteTopicsRequest
from barnabas.protocol.schema import APIS, ApiKey
from tests.support.api_cases import CASES, Case
from tests.support.authorizing import ALICE, HOST, TOPIC, TOPIC_ID, SecuredServing
from tests.support.building import LIVE, ME, TP, led_by, metadata, state
from tests.support.building import TOPIC_ID as LED_TOPIC_ID
from tests.support.record_requests import (
    fetch,
    fetch_request,
    fetched,
    follow,
    produce,
    produce_request,
    produced,
)
from tests.support.serving import (
    CORRELATION_ID,
    EXTERNAL,
    INTERNAL,
    Connection,
    Serving,
    batch,
    run_rest,
    unknown_session,
)

REASON = "fault rule rule: "
WIRES = pytest.mark.parametrize("version", [None, 9])


def inject(serving: Serving) -> FaultInjection:
    """Put the injection in front of the handlers, as a broker does."""
    assert isinstance(serving.dispatch, Dispatcher)

    def install(process: Callable[[Request], None]) -> None:
        serving.dispatch = process

    return FaultInjection(serving.services, serving.dispatch, serving.managed.reaper, install)


@pytest.fixture
def faulty(tmp_path: Path) -> Serving:
    """Broker 1 leads "topic" alone."""
    serving = Serving(tmp_path / "data", fault_injection_enable=True)
    assert serving.managed.tell(state(replicas=[ME], isr=[ME])) == []
    serving.managed.metadata.update(metadata(LIVE, led_by(ME)))
    inject(serving)
    return serving


def add(serving: Serving, **values: Any) -> None:
    """Add a rule, by default on every API."""
    rule = FaultRule(**{"name": "rule", **values})
    answer = serving.call(wire.AlterFaultRulesRequest(added=[to_wire(rule)]))
    assert answer.error_code == ErrorCode.NONE, answer.error_message


def remove(serving: Serving) -> list[str]:
    removed: list[str] = serving.call(wire.AlterFaultRulesRequest(removed=None)).removed
    return removed


def log_end(serving: Serving) -> int:
    return serving.managed.manager.partition(TP).log_end_offset


def send(serving: Serving, version: int | None = None) -> Connection:
    return produce(serving, batch(b"a"), version=version)


# ---- the actions


@WIRES
def test_an_error_is_answered_for_each_partition_instead_of_the_handler(
    faulty: Serving, version: int | None
) -> None:
    add(faulty, api="produce", error="NOT_LEADER_OR_FOLLOWER", times=1)
    refused = send(faulty, version)
    assert produced(refused).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert refused.request.kind == (ApiKey.PRODUCE, version, False), "it counts as a request of its API"
    assert log_end(faulty) == 0
    assert produced(send(faulty, version)).base_offset == 0, "the next one is handled"


@WIRES
def test_an_error_after_the_handler_hides_its_success(faulty: Serving, version: int | None) -> None:
    add(faulty, api="produce", error="REQUEST_TIMED_OUT", after=True)
    assert produced(send(faulty, version)).error_code == ErrorCode.REQUEST_TIMED_OUT
    assert log_end(faulty) == 1


@WIRES
@pytest.mark.parametrize("after", [False, True])
def test_a_disconnect_closes_without_an_answer(faulty: Serving, after: bool, version: int | None) -> None:
    add(faulty, api="produce", disconnect=True, after=after)
    connection = send(faulty, version)
    assert connection.closed == f"{REASON}disconnect{' after handling' if after else ''}"
    assert connection.answers == []
    assert log_end(faulty) == after


@WIRES
def test_a_truncated_answer_is_the_first_half_and_then_the_end(faulty: Serving, version: int | None) -> None:
    (whole,) = send(faulty, version).answers
    add(faulty, api="produce", truncate=True)
    connection = send(faulty, version)
    (half,) = connection.answers
    assert len(half) == len(whole) // 2
    assert half[:LENGTH_BYTES] == whole[:LENGTH_BYTES], "the length is of the whole answer"
    assert connection.closed == f"{REASON}truncate"
    assert log_end(faulty) == 2


def test_a_truncated_fetch_ends_within_its_records(faulty: Serving) -> None:
    send(faulty)
    (whole,) = fetch(faulty, 0).answers
    add(faulty, api="fetch", truncate=True)
    (half,) = fetch(faulty, 0).answers
    assert half == whole[: len(whole) // 2]


@WIRES
@pytest.mark.parametrize("after", [False, True])
def test_a_dropped_request_stays_unanswered_until_its_rule_is_removed(
    faulty: Serving, after: bool, version: int | None
) -> None:
    add(faulty, api="produce", drop=True, after=after)
    connection = send(faulty, version)
    assert not connection.is_answered
    assert log_end(faulty) == after
    assert after or len(connection.request.frame.view) == 0, "it holds no memory of the request"
    assert remove(faulty) == ["rule"]
    assert connection.closed == "its fault rule was removed"


@WIRES
def test_a_delayed_request_is_handled_after_the_delay(faulty: Serving, version: int | None) -> None:
    add(faulty, api="produce", delay_ms=200)
    connection = send(faulty, version)
    faulty.managed.pass_time(199)
    assert log_end(faulty) == 0
    assert not connection.is_answered
    faulty.managed.pass_time(1)
    assert produced(connection).base_offset == 0


def test_a_delayed_answer_is_sent_after_the_delay(faulty: Serving) -> None:
    add(faulty, api="produce", delay_ms=200, after=True)
    connection = send(faulty)
    assert log_end(faulty) == 1
    assert not connection.is_answered
    faulty.managed.pass_time(200)
    assert produced(connection).base_offset == 0


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    "action", [{"disconnect": True}, {"error": "NETWORK_EXCEPTION"}, {"drop": True}, {"truncate": True}]
)
def test_a_delay_comes_before_another_action(faulty: Serving, action: dict[str, Any], after: bool) -> None:
    add(faulty, api="produce", delay_ms=200, after=after, **action)
    connection = send(faulty)
    assert not connection.is_answered
    faulty.managed.pass_time(200)
    assert connection.is_answered is ("drop" not in action)
    assert log_end(faulty) == (after or "truncate" in action)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("action", [{}, {"error": "REQUEST_TIMED_OUT"}, {"disconnect": True}, {"drop": True}])
def test_a_delayed_request_goes_on_as_without_its_rule_when_that_is_removed(
    faulty: Serving, action: dict[str, Any], after: bool
) -> None:
    add(faulty, api="produce", delay_ms=60_000, after=after, **action)
    connections = [send(faulty), send(faulty)]
    remove(faulty)
    assert [produced(connection).base_offset for connection in connections] == [0, 1]
    faulty.managed.pass_time(60_000)
    assert log_end(faulty) == 2, "each of them once"


@pytest.mark.parametrize("after", [False, True])
def test_a_delay_ends_once_if_it_expires_while_its_rule_is_removed(
    faulty: Serving, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(faulty, api="produce", delay_ms=200, after=after)
    connection = send(faulty)
    resumed: list[Request] = []
    monkeypatch.setattr(connection.request, "_resume", resumed.append)
    force_complete = DelayedCall.force_complete

    def complete(timer: DelayedCall) -> bool:
        # The reaper sets this and then finds that the timer has ended.
        timer._is_late = True
        return force_complete(timer)

    monkeypatch.setattr(DelayedCall, "force_complete", complete)
    remove(faulty)
    assert resumed == [connection.request] * (not after)
    assert connection.is_answered is after


def test_an_answer_that_comes_after_the_removal_of_its_rule_is_sent_as_it_is(leading: Serving) -> None:
    injection = inject(leading)
    leading.services.faults.change((), [FaultRule(api="produce", disconnect=True, after=True)])
    waiting = produce(leading, batch(b"a"), acks=-1)
    leading.services.faults.change(None)
    assert not waiting.is_answered
    for replica in (2, 3):
        follow(leading, 1, replica)
    assert produced(waiting).error_code == ErrorCode.NONE
    assert leading.dispatch is not injection


@pytest.mark.parametrize(
    "action", [{"error": "REQUEST_TIMED_OUT"}, {"disconnect": True}, {"truncate": True}, {"drop": True}]
)
@pytest.mark.parametrize("after", [False, True])
def test_a_request_without_an_answer_gets_none(faulty: Serving, action: dict[str, Any], after: bool) -> None:
    add(faulty, api="produce", after=after, **action)
    connection = produce(faulty, batch(b"a"), acks=0)
    assert connection.answers == []
    assert (connection.closed is None) is ("drop" in action), "as Kafka, an error closes the connection"
    assert log_end(faulty) == (after or "truncate" in action)


def test_a_handler_that_closes_the_connection_or_fails_is_not_hit_once_more(
    faulty: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(faulty, after=True, error="UNKNOWN_SERVER_ERROR")
    closed = faulty.send(wire.DescribeFaultRulesRequest(), version=None)
    assert closed.closed is None

    def close(services: object, request: Any) -> None:
        request.raw.close_connection("by the handler")

    monkeypatch.setitem(HANDLERS, ApiKey.HEARTBEAT, HANDLERS[ApiKey.HEARTBEAT]._replace(handle=close))
    heartbeat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    assert faulty.send(heartbeat).closed == "by the handler"


# ---- the conditions


def test_topics_are_matched_by_name_and_by_id(faulty: Serving) -> None:
    add(faulty, topic=TP.topic, disconnect=True)
    by_id = MetadataRequest(topics=[MetadataRequestTopic(name=None, topic_id=LED_TOPIC_ID)])
    for connection in (
        send(faulty),
        fetch(faulty, 0, version=12),
        fetch(faulty, 0, version=13),
        faulty.send(by_id, version=12),
    ):
        assert connection.closed is not None
    for body in (MetadataRequest(topics=[]), MetadataRequest(topics=[MetadataRequestTopic(name="other")])):
        assert faulty.send(body).closed is None


@pytest.mark.parametrize(
    ("error", "of_topic", "of_partitions"),
    [
        ("LEADER_NOT_AVAILABLE", ErrorCode.NONE, [ErrorCode.LEADER_NOT_AVAILABLE]),
        ("UNKNOWN_TOPIC_OR_PARTITION", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []),
    ],
)
def test_metadata_has_an_error_where_kafka_has_it(
    faulty: Serving, error: str, of_topic: ErrorCode, of_partitions: list[ErrorCode]
) -> None:
    """The leader of a group assigns no partition of a topic whose answer lists none."""
    add(faulty, api="Metadata", error=error)
    for named in (None, [MetadataRequestTopic(name=TP.topic)]):
        answer = faulty.send(MetadataRequest(topics=named)).response
        assert answer.error_code == ErrorCode.NONE
        (topic,) = (each for each in answer.topics if each.name == TP.topic)
        assert topic.error_code == of_topic
        assert [(each.error_code, each.leader_id) for each in topic.partitions] == [
            (code, -1) for code in of_partitions
        ]


@pytest.mark.parametrize("version", [None, 12, 13])
def test_a_fetch_of_a_session_names_the_topics_of_the_session(faulty: Serving, version: int | None) -> None:
    opened = fetch(faulty, 0, version=version, session_epoch=0).response
    assert opened.session_id
    add(faulty, topic=TP.topic, api="fetch", error="NOT_LEADER_OR_FOLLOWER")
    in_session = {"session_id": opened.session_id, "session_epoch": 1}
    refused = fetch(faulty, None, version=version, **in_session).response
    (topic,) = refused.responses
    assert [each.error_code for each in topic.partitions] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert (refused.error_code, refused.session_id) == (ErrorCode.NONE, 0), (
        "the client begins another session"
    )
    remove(faulty)
    add(faulty, api="fetch", error="INVALID_FETCH_SESSION_EPOCH")
    refused = fetch(faulty, None, version=version, **in_session).response
    assert refused.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH


def from_broker(version: int | None = None, session: Session | None = None) -> Connection:
    """A request with the client id of a broker."""
    body, client_id = fetch_request(0), "broker-2-fetcher"
    if version is None:
        frame = codec_msgpack.encode_request(CORRELATION_ID, client_id, body)
    else:
        frame = codec_kafka.encode_request(version, CORRELATION_ID, client_id, body)
    payload = b"".join(map(bytes, frame))[LENGTH_BYTES:]
    return Connection(payload, INTERNAL, FetchRequest, version, session)


def test_the_requests_of_brokers_are_hit_only_if_the_rule_says_so(faulty: Serving) -> None:
    add(faulty, disconnect=True)
    assert faulty.run(from_broker()).closed is None
    assert faulty.run(from_broker(version=12)).closed is not None, "brokers speak the native protocol"
    remove(faulty)
    add(faulty, disconnect=True, requests="brokers")
    assert faulty.run(from_broker()).closed is not None
    assert fetch(faulty, 0).closed is None


def test_where_brokers_log_in_their_principal_tells_them_from_clients(faulty: Serving) -> None:
    faulty.services.brokers.accept([Principal.user("broker")])
    add(faulty, disconnect=True)
    for name, is_hit in (("broker", False), ("alice", True)):
        session = Session(HOST, Principal.user(name))
        assert (faulty.run(from_broker(session=session)).closed is not None) is is_hit


def test_a_delayed_request_of_the_controller_stays_in_its_lane(faulty: Serving) -> None:
    add(faulty, delay_ms=5, requests="all")
    connection = Connection.of(metadata(LIVE, led_by(ME)), INTERNAL)
    assert connection.request.lane is Lane.CONTROL
    faulty.dispatch(connection.request)
    assert connection.request.is_paused
    assert connection.request.lane is Lane.CONTROL


def test_the_client_ids_of_brokers_are_known() -> None:
    """The client ids in the sources, without those of clients."""
    root = Path(broker.__path__[0]).resolve().parent
    given = [
        re.sub(r"{[^}]*}", "7", client_id)
        for folder in ("broker", "controller", "zookeeper")
        for path in (root / folder).rglob("*.py")
        for client_id in re.findall(r'client_id\s*=\s*f?"([^"]+)"', path.read_text())
    ]
    assert len(given) >= 7
    assert [client_id for client_id in given if not OF_BROKERS.fullmatch(client_id)] == []
    assert not any(map(OF_BROKERS.fullmatch, ("broker-1-app", "controller-app", "registration-probe-2")))


def test_the_owner_of_the_rules_is_never_hit(faulty: Serving) -> None:
    add(faulty, disconnect=True, requests="all")
    assert faulty.send(MetadataRequest(topics=[])).closed is not None
    request = codec_msgpack.encode_request(CORRELATION_ID, FAULTS_CLIENT_ID, fetch_request(0))
    payload = b"".join(map(bytes, request))[LENGTH_BYTES:]
    assert fetched(faulty.run(Connection(payload, EXTERNAL, FetchRequest))).error_code == ErrorCode.NONE
    assert len(faulty.call(wire.DescribeFaultRulesRequest()).rules) == 1
    assert remove(faulty) == ["rule"]


def test_a_large_request_is_compared_on_a_worker(faulty: Serving) -> None:
    add(faulty, api="produce", topic=f"topic-{MAX_ON_NETWORK_THREAD}", disconnect=True)
    body, count = produce_request(), MAX_ON_NETWORK_THREAD + 1
    body.topic_data = [produce_request(None, topic=f"topic-{each}").topic_data[0] for each in range(count)]
    connection = Connection.of(body, version=9)
    faulty.dispatch(connection.request)
    assert connection.request.lane is Lane.GENERAL
    assert connection.request.rest is not None
    run_rest(connection.request)
    assert connection.closed is not None


@pytest.mark.parametrize(
    "payload", [b"", b"\x00", b"\x00\x00\x00\x63", bytes(8), b"junk" * 3, b"\x00\x03\x00\x63" + bytes(9)]
)
def test_what_cannot_be_decoded_goes_to_the_dispatcher(faulty: Serving, payload: bytes) -> None:
    add(faulty, delay_ms=1_000)
    assert "request" in str(faulty.run(Connection(payload)).closed)


# ---- the table and the broker


def test_without_rules_the_dispatcher_itself_processes_requests(faulty: Serving) -> None:
    plain = faulty.dispatch
    assert isinstance(plain, Dispatcher)
    add(faulty, api="fetch", drop=True)
    assert isinstance(faulty.dispatch, FaultInjection)
    remove(faulty)
    assert faulty.dispatch is plain


def test_counts_are_shown(faulty: Serving) -> None:
    add(faulty, api="produce", error="REQUEST_TIMED_OUT", nth=2)
    for _ in range(3):
        send(faulty)
    shown = faulty.call(wire.DescribeFaultRulesRequest())
    assert shown.is_enabled
    ((rule, matches, hits),) = [(each.rule, each.matches, each.hits) for each in shown.rules]
    assert (rule.name, rule.api, rule.error, matches, hits) == (
        "rule",
        ["Produce"],
        "REQUEST_TIMED_OUT",
        3,
        1,
    )


def test_a_broker_that_does_not_inject_faults_names_its_setting(serving: Serving) -> None:
    answer = serving.call(wire.AlterFaultRulesRequest(added=[to_wire(FaultRule(drop=True))]))
    assert answer.error_code == ErrorCode.POLICY_VIOLATION
    assert "broker 1: fault.injection.enable is false" in answer.error_message
    assert not serving.call(wire.DescribeFaultRulesRequest()).is_enabled


def test_an_invalid_rule_from_the_wire_is_refused_and_changes_nothing(faulty: Serving) -> None:
    entry = wire.FaultRuleEntry(name="x", api=["Produse"], drop=True)
    answer = faulty.call(wire.AlterFaultRulesRequest(added=[to_wire(FaultRule(drop=True)), entry]))
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert "did you mean Produce?" in answer.error_message
    many = [to_wire(FaultRule(drop=True, name=str(number))) for number in range(MAX_RULES + 1)]
    answer = faulty.call(wire.AlterFaultRulesRequest(added=many))
    assert f"expected {MAX_RULES} at most" in answer.error_message
    assert faulty.call(wire.DescribeFaultRulesRequest()).rules == []


def test_a_lost_connection_leaves_no_stalled_request_behind(faulty: Serving) -> None:
    add(faulty, api="produce", drop=True)
    for _ in range(3):
        send(faulty)
    gc.collect()
    assert not any(
        isinstance(each, Request) and each.kind == (ApiKey.PRODUCE, None, False) for each in gc.get_objects()
    )


# ---- peers that are not known


def test_a_login_can_be_hit(faulty: Serving) -> None:
    session = unknown_session()
    handshake = SaslHandshakeRequest(mechanism="PLAIN")
    add(faulty, api="sasl-handshake", error="UNSUPPORTED_SASL_MECHANISM", times=1)
    assert faulty.send(handshake, version=1, session=session).response.error_code == 33
    remove(faulty)
    add(faulty, delay_ms=100)
    delayed = faulty.send(handshake, version=1, session=session)
    assert delayed.request.rest is None, "the network thread alone runs its requests"
    faulty.managed.pass_time(100)
    assert delayed.response.error_code == ErrorCode.NONE
    token = SaslAuthenticateRequest(auth_bytes=b"\x00alice\x00secret")
    faulty.send(token, version=1, session=session)
    assert session.principal.name == "alice"


def test_raw_tokens_and_other_requests_of_unknown_peers_are_left_to_the_dispatcher(faulty: Serving) -> None:
    add(faulty, disconnect=True, times=1, api=["Metadata"])
    session = unknown_session()
    assert "fault rule" not in str(faulty.send(MetadataRequest(topics=[]), session=session).closed)
    remove(faulty)
    session = unknown_session()
    faulty.send(SaslHandshakeRequest(mechanism="PLAIN"), version=0, session=session)
    add(faulty, disconnect=True)
    # As a request these bytes would be of ApiVersions.
    token = b"\x00\x12\x00\x00\x00secret"
    assert "authentication" in str(faulty.run(Connection(token, session=session)).closed)


# ---- every API


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredServing]:
    serving = SecuredServing(tmp_path_factory.mktemp("data"))
    inject(serving)
    yield serving
    serving.close()


OWN = {ApiKey.ALTER_FAULT_RULES, ApiKey.DESCRIBE_FAULT_RULES}
EVERY = [
    *(case for case in CASES if case.key not in OWN),
    Case(ApiKey.API_VERSIONS, ApiVersionsRequest(), (frozenset(),)),
    Case(
        ApiKey.DELETE_TOPICS,
        DeleteTopicsRequest(topic_names=[TOPIC], timeout_ms=0),
        (frozenset(),),
        "names",
        version=5,
        is_native=False,
    ),
]


def connections_of(case: Case) -> Iterator[Connection]:
    """The request in every version that can carry it."""
    first, last = APIS[case.key].versions
    if case.key is ApiKey.FETCH and case.label == "id":
        first = 13
    versions = range(first, (last if case.version is None else case.version) + 1)
    for version in [None] * case.is_native + [*versions] * case.is_kafka:
        try:
            yield Connection.of(case.body, case.listener, version=version, session=Session(HOST, ALICE))
        except (Unencodable, UnsupportedVersionError):
            continue


@pytest.mark.parametrize("case", EVERY, ids=str)
def test_every_api_answers_with_an_error_in_every_version(case: Case, secured: SecuredServing) -> None:
    secured.acls.grant_only(case.enough[0])
    for code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REBOOTSTRAP_REQUIRED):
        secured.services.faults.change(None, [FaultRule(error=code.name, requests="all")])
        for connection in connections_of(case):
            codes = set(codes_of(secured.run(connection).response)) - {ErrorCode.NONE}
            # Version 0 to 2 has codes for the log dirs alone, which are not asked.
            has_none = case.key is ApiKey.DESCRIBE_LOG_DIRS and connection.request.kind[1] in (0, 1, 2)
            assert codes == (set() if has_none else {code}), connection.request.kind
    secured.services.faults.change(None)


@pytest.mark.parametrize(
    "action",
    [{"drop": True}, {"disconnect": True}, {"truncate": True}, {"delay_ms": 5}, {"error": "CORRUPT_MESSAGE"}],
)
@pytest.mark.parametrize("after", [False, True])
def test_every_api_survives_every_action(
    action: dict[str, Any], after: bool, secured: SecuredServing, caplog: pytest.LogCaptureFixture
) -> None:
    for case in EVERY:
        secured.services.faults.change(None, [FaultRule(requests="all", after=after, **action)])
        for connection in connections_of(case):
            secured.run(connection)
            secured.managed.pass_time(5)
    secured.services.faults.change(None)
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("case", EVERY, ids=str)
def test_the_topics_that_a_request_names_are_found(case: Case, secured: SecuredServing) -> None:
    is_named = TOPIC in repr(case.body) or str(TOPIC_ID) in repr(case.body)
    secured.services.faults.change(None, [FaultRule(topic=TOPIC, disconnect=True, requests="all")])
    for connection in connections_of(case):
        closed = secured.run(connection).closed
        assert (closed is not None and "fault rule" in closed) is is_named
    secured.services.faults.change(None)
