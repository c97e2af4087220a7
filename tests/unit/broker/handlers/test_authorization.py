"""Every API in both protocols: without rights, with each right but one, with exactly the rights.

The cases come from the registry and the table of operations. A new API has a case of its own, or makes a test
fail that names the missing one.
"""

import logging
from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.handlers import metadata as metadata_handler
from barnabas.broker.handlers.dispatcher import Dispatcher, in_turn, lane_of
from barnabas.broker.handlers.registry import HANDLERS
from barnabas.broker.network.request import Lane
from barnabas.broker.security.api_operations import API_OPERATIONS, DENIED
from barnabas.broker.security.authentication import Authenticator, Mechanism
from barnabas.broker.security.broker_principals import BrokerPrincipals
from barnabas.broker.security.password_servers import PlainPasswords, PlainServer
from barnabas.broker.security.session import Session
from barnabas.common.security.acl import Operation
from barnabas.common.security.principal import Principal
from barnabas.protocol.answer_codes import error_counts
from barnabas.protocol.errors import Unencodable, UnsupportedVersionError
from barnabas.protocol.messages import (
    describe_transactions,
    metadata,
)
from barnabas.protocol.messages import groups as group_messages
from barnabas.protocol.messages import topics as topic_messages
from barnabas.protocol.messages.authentication import (
    AlterUserScramCredentialsRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from barnabas.protocol.schema import APIS, ApiKey
from tests.support.api_cases import (
    CASES,
    CLUSTER_ACTION,
    DESCRIBE_G,
    DESCRIBE_T,
    OPERATIONS_ALONE,
    READ_T,
    TESTED_ALONE,
    WITHOUT_QUESTIONS,
    WRITE_T,
    WRITE_X,
    C,
    Case,
    G,
    T,
    example,
    fetch_offsets,
    init,
    named,
    needs,
    transactional_produce,
    versions,
)
from tests.support.authorizing import (
    ADMIN,
    ALICE,
    GROUP,
    HOST,
    TOPIC,
    TOPIC_ID,
    Right,
    SecuredServing,
)
from tests.support.building import LIVE, led_by
from tests.support.building import metadata as metadata_update
from tests.support.group_requests import commit
from tests.support.record_requests import fetch_request, produce_request
from tests.support.serving import INTERNAL, Connection, batch, payload_of
from tests.support.socket_server import Client, servers


def is_allowed(case: Case, connection: Connection) -> bool:
    """Whether the answer is no refusal; a request that waits was let through."""
    if not connection.is_answered:
        return True
    assert connection.closed is None
    if case.shown:
        return case.shown.encode() in b"".join(connection.answers)
    return not set(error_counts(connection.response)) & {*DENIED.values()}


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[SecuredServing]:
    serving = SecuredServing(tmp_path / "data")
    yield serving
    serving.close()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_request_is_served_exactly_with_the_rights_that_the_table_asks_for(
    case: Case, secured: SecuredServing
) -> None:
    for version in versions(case):
        for enough in case.enough:
            for missing in enough:
                denied = secured.ask(case.body, enough - {missing}, listener=case.listener, version=version)
                assert not is_allowed(case, denied), (version, missing)
    for version in versions(case):
        for enough in case.enough:
            allowed = secured.ask(case.body, enough, listener=case.listener, version=version)
            assert is_allowed(case, allowed), (version, enough)
    table = {(each.operation, each.resource) for each in API_OPERATIONS[case.key]}
    table |= {(each.or_on_cluster, C) for each in API_OPERATIONS[case.key] if each.or_on_cluster}
    assert secured.acls.asked <= {(case.key, right) for right in table}


def test_every_right_of_the_table_has_a_case() -> None:
    tested: dict[ApiKey, set[Right]] = {key: set(rights) for key, rights in TESTED_ALONE.items()}
    for case in CASES:
        tested.setdefault(case.key, set()).update(*case.enough)
    for key in API_OPERATIONS.keys() - WITHOUT_QUESTIONS - OPERATIONS_ALONE:
        table = {(each.operation, each.resource) for each in API_OPERATIONS[key]}
        table |= {(each.or_on_cluster, C) for each in API_OPERATIONS[key] if each.or_on_cluster}
        assert tested[key] == table, key


# ---- peers that are not known


BEFORE_AUTHENTICATION = {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
NO_HANDLER = [
    Case(key, example(APIS[key].request), (frozenset(),), is_kafka=not APIS[key].is_native_only)
    for key in (WITHOUT_QUESTIONS | OPERATIONS_ALONE) - BEFORE_AUTHENTICATION
]


def must_log_in(session: Session, listener: str) -> None:
    mechanism = Mechanism(lambda: PlainServer(PlainPasswords({"admin": "right"})), 0)
    session.must_authenticate(Authenticator(session, {"PLAIN": mechanism}))


@pytest.fixture
def port(secured: SecuredServing) -> Iterator[int]:
    """Of a real listener, which the brokers use too."""
    with servers(
        lane_of=lane_of,
        in_turn=in_turn,
        listener=INTERNAL,
        protocol="SASL_PLAINTEXT",
        protect=must_log_in,
        sasl_enabled_mechanisms="PLAIN",
        sasl_mechanism_inter_broker_protocol="PLAIN",
    ) as serve:
        yield serve(secured.process).server.ports[INTERNAL]


def log_in(password: str) -> tuple[bytes, bytes]:
    token = SaslAuthenticateRequest(auth_bytes=f"\0admin\0{password}".encode())
    return payload_of(SaslHandshakeRequest(mechanism="PLAIN"), 1), payload_of(token, 2)


@pytest.mark.parametrize(
    "exchange",
    [(), log_in("wrong")[:1], log_in("wrong")],
    ids=["no credentials", "half of a login", "wrong credentials"],
)
def test_no_api_is_served_to_a_peer_that_has_not_authenticated(
    exchange: tuple[bytes, ...], secured: SecuredServing, port: int
) -> None:
    cases = CASES + NO_HANDLER
    assert {case.key for case in cases} == HANDLERS.keys() - BEFORE_AUTHENTICATION
    for case in cases:
        for version in versions(case):
            with Client(port) as client:
                # In one go: the request is there before the login is refused.
                client.send(*exchange, payload_of(case.body, version))
                for _ in exchange:
                    client.receive()
                assert client.is_closed_by_server(), (case, version)
    assert secured.acls.asked == set()
    with Client(port) as client:
        client.send(*log_in("right"), payload_of(named(), 9))
        assert TOPIC.encode() in [client.receive() for _ in range(3)][-1]


# ---- names that answers hide


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SecuredServing, SecuredServing]]:
    """A broker with the topic, the group and the transactional id, and one without."""
    folder = tmp_path_factory.mktemp("both")
    full, empty = SecuredServing(folder / "full"), SecuredServing(folder / "empty", is_empty=True)
    yield full, empty
    full.close()
    empty.close()


def test_an_answer_without_rights_is_the_same_whether_the_names_exist_or_not(
    both: tuple[SecuredServing, SecuredServing],
) -> None:
    for case in CASES:
        for version in versions(case):
            answers = [
                serving.ask(case.body, [], listener=case.listener, version=version).answers
                for serving in both
            ]
            if case.label == "id":
                # As in Kafka an id is no secret, but its name is.
                assert TOPIC.encode() not in b"".join(answers[0]), (case, version)
            else:
                assert answers[0] == answers[1], (case, version)


def test_metadata_waits_for_the_leader_of_no_topic_that_it_hides(secured: SecuredServing) -> None:
    gone = metadata_update({1: 0, 3: 5}, led_by(2), topic=TOPIC, topic_id=TOPIC_ID, is_full=True)
    secured.managed.metadata.update(gone)
    for body in (named(), metadata.MetadataRequest(topics=None)):
        assert secured.ask(body, version=9).is_answered
        assert not secured.ask(body, [DESCRIBE_T], version=9).is_answered


def test_a_refusal_can_be_sent_in_every_version(both: tuple[SecuredServing, SecuredServing]) -> None:
    sent: dict[ApiKey, set[int]] = {}
    for case in CASES:
        api = APIS[case.key]
        for version in range(api.versions[0], api.served_to + 1):
            try:
                connection = both[0].ask(case.body, listener=case.listener, version=version)
            except (Unencodable, UnsupportedVersionError):
                # The version cannot ask for it.
                continue
            assert connection.answers, (case, version, connection.closed)
            assert connection.response is not None
            sent.setdefault(case.key, set()).add(version)
    assert sum(map(len, sent.values())) > 200
    assert sent.keys() == {case.key for case in CASES if case.is_kafka}


def test_the_settings_of_a_new_topic_need_a_right_of_their_own(secured: SecuredServing) -> None:
    body = topic_messages.CreateTopicsRequest(
        topics=[topic_messages.CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1)],
        timeout_ms=0,
        validate_only=True,
    )
    result = topic_messages.CreatableTopicResult(
        name=TOPIC, error_code=0, num_partitions=1, replication_factor=1
    )
    for rights, code, partitions in (
        ([(Operation.CREATE, T)], 29, -1),
        ([(Operation.CREATE, T), (Operation.DESCRIBE_CONFIGS, T)], 0, 1),
    ):
        secured.topics.created = [copy(result)]
        (answer,) = secured.ask(body, rights).response.topics
        assert (answer.error_code, answer.topic_config_error_code) == (0, code)
        assert answer.num_partitions == answer.replication_factor == partitions
        assert bool(answer.configs) == (code == 0)


def test_unknown_topics_are_created_only_with_the_right_to(secured: SecuredServing) -> None:
    body = metadata.MetadataRequest(
        topics=[metadata.MetadataRequestTopic(name=name) for name in ("hidden", "unknown")],
        allow_auto_topic_creation=True,
    )

    def codes(*rights: Any) -> list[int]:
        return [topic.error_code for topic in secured.ask(body, rights).response.topics]

    describe = (Operation.DESCRIBE, T, "unknown")
    assert codes() == codes((Operation.CREATE, C)) == codes(describe) == [29, 29]
    assert secured.auto_created == []
    for right in ((Operation.CREATE, C), (Operation.CREATE, T, "unknown")):
        assert codes(describe, right) == [29, 5]
        assert secured.auto_created.pop() == ["unknown"]


def test_metadata_that_is_kept_is_not_another_principals(secured: SecuredServing) -> None:
    many = [led_by(1, index=index) for index in range(60)]
    secured.managed.metadata.update(metadata_update(LIVE, *many, topic=TOPIC, topic_id=TOPIC_ID))

    def topics(*rights: Right, **flags: bool) -> dict[str, int]:
        answer = secured.ask(metadata.MetadataRequest(topics=None, **flags), rights).response
        return {topic.name: topic.topic_authorized_operations for topic in answer.topics}

    assert topics(DESCRIBE_T).keys() == {TOPIC}
    assert topics().keys() == set()
    wants = {"include_topic_authorized_operations": True}
    bit = 1 << Operation.DESCRIBE
    assert topics(DESCRIBE_T, **wants) == {TOPIC: bit}
    assert topics(READ_T, **wants) == {TOPIC: bit | 1 << Operation.READ}


def test_authorized_operations_are_the_principals(secured: SecuredServing) -> None:
    describe, alter = (Operation.DESCRIBE, C), (Operation.ALTER, C)
    bits = {right: 1 << right[0] for right in (describe, alter)}

    def of_cluster(body: Any, version: int | None, *rights: Right) -> int:
        answer = secured.ask(body, rights, version=version).response
        assert answer.cluster_id == "cluster"
        operations: int = answer.cluster_authorized_operations
        return operations

    body = metadata.DescribeClusterRequest(include_cluster_authorized_operations=True)
    of_metadata = metadata.MetadataRequest(topics=[], include_cluster_authorized_operations=True)
    for request, version in ((body, None), (body, 1), (of_metadata, None), (of_metadata, 10)):
        assert of_cluster(request, version) == 0
        assert of_cluster(request, version, describe) == bits[describe]
        assert of_cluster(request, version, alter) == sum(bits.values())
    assert of_cluster(metadata.DescribeClusterRequest(), None, describe) == -(2**31)
    groups = group_messages.DescribeGroupsRequest(groups=[GROUP], include_authorized_operations=True)
    (group,) = secured.ask(groups, [(Operation.DELETE, G)]).response.groups
    assert group.authorized_operations == 1 << Operation.DELETE | 1 << Operation.DESCRIBE


def test_denials_are_logged_for_what_a_request_names_alone(
    secured: SecuredServing, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kafka.authorizer.logger")

    def denials(body: Any, *rights: Right) -> list[str]:
        caplog.clear()
        assert secured.ask(body, rights).is_answered
        return [record.getMessage() for record in caplog.records]

    assert denials(group_messages.ListGroupsRequest()) == []
    assert denials(metadata.MetadataRequest(topics=None)) == []
    assert denials(fetch_offsets(is_all=True), DESCRIBE_G) == []
    assert denials(describe_transactions.ListTransactionsRequest()) == []
    # Neither is a right on the cluster that would spare the question.
    epochs = example(APIS[ApiKey.OFFSET_FOR_LEADER_EPOCH].request)
    assert denials(epochs, DESCRIBE_T) == []
    assert denials(init(None, "", WRITE_T).body, WRITE_T) == []
    (line,) = denials(epochs)
    assert line == (
        "Principal = User:alice is Denied Operation = Describe from host = 127.0.0.1 on resource = "
        "Topic:LITERAL:secret-topic for request = OffsetForLeaderEpoch with resourceRefCount = 1"
    )
    body = produce_request(batch(b"a"), batch(b"b"), topic=TOPIC)
    body.topic_data += body.topic_data
    (line,) = denials(body)
    assert line.endswith("for request = Produce with resourceRefCount = 2")


# ---- parts of requests


@pytest.mark.parametrize("version", [None, 8])
def test_a_commit_stores_what_is_allowed_and_names_what_is_not(
    version: int | None, secured: SecuredServing
) -> None:
    body = commit(group=GROUP, topic=TOPIC)
    body.topics += commit(group=GROUP, topic="other").topics
    answer = secured.ask(body, [(Operation.READ, G), READ_T], version=version).response
    codes = {topic.name: [each.error_code for each in topic.partitions] for topic in answer.topics}
    assert codes == {TOPIC: [0], "other": [29]}


def test_refused_names_of_a_list_are_answered_once(secured: SecuredServing) -> None:
    body = group_messages.DescribeGroupsRequest(groups=[GROUP, "other", "other", GROUP])
    answer = secured.ask(body, [DESCRIBE_G]).response
    assert [(each.group_id, each.error_code) for each in answer.groups] == [(GROUP, 0), ("other", 30)]


def test_a_produce_request_appends_what_is_allowed(secured: SecuredServing) -> None:
    body = produce_request(batch(b"a"), topic=TOPIC)
    body.topic_data += produce_request(batch(b"a"), topic="other").topic_data
    answer = secured.ask(body, [WRITE_T], version=9).response
    codes = {topic.name: topic.partition_responses[0].error_code for topic in answer.responses}
    assert codes == {TOPIC: 0, "other": 29}
    body.acks = 0
    assert "TOPIC_AUTHORIZATION_FAILED" in (secured.ask(body, [WRITE_T]).closed or "")


@pytest.mark.parametrize("version", [None, 9])
def test_transactional_records_need_the_id_before_the_topics(
    secured: SecuredServing, version: int | None
) -> None:
    body = transactional_produce()
    body.topic_data += produce_request(batch(b"a"), topic="other").topic_data

    def codes(*rights: Right) -> set[int]:
        answer = secured.ask(body, rights, version=version).response
        return {partition.error_code for topic in answer.responses for partition in topic.partition_responses}

    # As in Kafka: the id's error ends a producer, those of topics only a transaction.
    assert codes() == codes(WRITE_T) == {53}
    assert codes(WRITE_X) == {29}
    body.transactional_id = None
    assert codes() == {53}


def test_every_user_of_a_refused_change_of_credentials_is_answered(secured: SecuredServing) -> None:
    body = AlterUserScramCredentialsRequest(
        deletions=[example(ScramCredentialDeletion, name="a")],
        upsertions=[example(ScramCredentialUpsertion, name="b")],
    )
    results = secured.ask(body).response.results
    assert [(each.user, each.error_code) for each in results] == [("a", 31), ("b", 31)]


def test_members_of_old_versions_get_no_null_protocol(secured: SecuredServing) -> None:
    body = example(group_messages.JoinGroupRequest)
    assert secured.ask(body, version=6).response.protocol_name == ""
    assert secured.ask(body, version=7).response.protocol_name is None


@pytest.mark.parametrize("version", [None, 0, 9])
def test_decisions_about_very_many_topics_are_no_work_of_network_threads(
    secured: SecuredServing, monkeypatch: pytest.MonkeyPatch, version: int | None
) -> None:
    everything = metadata.MetadataRequest(topics=[] if version == 0 else None)
    few = metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name=TOPIC)])
    topics = len(secured.managed.metadata.current.topics)
    for most, lane in ((topics, Lane.NETWORK), (topics - 1, Lane.GENERAL)):
        monkeypatch.setattr(metadata_handler, "MAX_ON_NETWORK_THREAD", most)
        listing = secured.ask(copy(everything), [DESCRIBE_T], version=version)
        assert [topic.name for topic in listing.response.topics] == [TOPIC]
        assert listing.request.lane is lane
        assert secured.ask(copy(few), [DESCRIBE_T], version=version).request.lane is Lane.NETWORK


# ---- fetches


def test_a_session_is_read_with_the_rights_of_who_asks(secured: SecuredServing) -> None:
    first = secured.ask(fetch_request(0, topic=TOPIC, session_epoch=0), [READ_T]).response
    assert first.session_id > 0
    more = fetch_request(None, session_id=first.session_id, session_epoch=1)
    (topic,) = secured.ask(more).response.responses
    assert (topic.topic, topic.partitions[0].error_code) == (TOPIC, 29)
    more.session_epoch = 2
    (topic,) = secured.ask(more, [READ_T]).response.responses
    assert topic.partitions[0].error_code == 0


@pytest.mark.parametrize("version", [None, 11])
def test_a_connection_that_has_read_and_written_does_neither_after_a_revoke(
    secured: SecuredServing, version: int | None
) -> None:
    alice, kafka_version = Session(HOST, ALICE), None if version is None else 9

    def write() -> int:
        body = produce_request(batch(b"a"), topic=TOPIC)
        answer = secured.send(body, session=alice, version=kafka_version).response
        return answer.responses[0].partition_responses[0].error_code

    def read(epoch: int, session_id: int) -> tuple[int, int]:
        body = fetch_request(0 if epoch == 0 else None, topic=TOPIC)
        body.session_id, body.session_epoch = session_id, epoch
        answer = secured.send(body, session=alice, version=version).response
        (partition,) = answer.responses[0].partitions
        assert (partition.error_code == 0) is (len(partition.records or b"") > 0)
        return answer.session_id, partition.error_code

    secured.acls.grant_only([READ_T, WRITE_T])
    assert [write(), write()] == [0, 0]
    session_id, code = read(0, 0)
    assert (session_id > 0, code) == (True, 0)
    codes = []
    for epoch, rights in enumerate(([READ_T, WRITE_T], [WRITE_T], [READ_T], []), start=1):
        secured.acls.grant_only(rights)
        codes.append((write(), read(epoch, session_id)[1]))
    assert codes == [(0, 0), (0, 29), (29, 0), (29, 29)]


def test_a_fetch_that_waits_keeps_the_decision_of_its_beginning(secured: SecuredServing) -> None:
    waiting = secured.ask(fetch_request(0, topic=TOPIC, max_wait_ms=60_000), [READ_T])
    assert not waiting.is_answered
    secured.acls.grant_only([])
    secured.session = Session(HOST, ADMIN)
    secured.call(produce_request(batch(b"a"), topic=TOPIC))
    (topic,) = waiting.response.responses
    assert topic.partitions[0].error_code == 0
    assert len(topic.partitions[0].records) > 0


# ---- between brokers


FROM_BROKERS = [case for case in CASES if case.enough == needs(CLUSTER_ACTION)]


def test_what_brokers_send_is_refused_to_clients_in_both_protocols(secured: SecuredServing) -> None:
    keys = {case.key for case in FROM_BROKERS}
    assert keys >= {key for key, handler in HANDLERS.items() if handler.inter_broker_only}
    assert keys >= {ApiKey.FETCH, ApiKey.ADD_PARTITIONS_TO_TXN}
    every = [(operation, C) for operation in Operation if operation > Operation.ALL]
    for case in FROM_BROKERS:
        others = [right for right in every if right != CLUSTER_ACTION]
        for version in versions(case):
            refused = secured.ask(case.body, others, listener=INTERNAL, version=version)
            assert set(error_counts(refused.response)) == {31}, (case, version)
        if APIS[case.key].is_native_only:
            # Not even with the right, on a listener for clients; and Kafka's protocol does not have it.
            assert secured.ask(case.body, [CLUSTER_ACTION]).closed
            body = case.key.to_bytes(2) + bytes(2) + bytes(4) + b"\xff\xff" + bytes(100)
            connection = Connection(body, INTERNAL, session=Session(HOST, ADMIN))
            assert secured.run(connection).closed
    # In Kafka's protocol nobody is a follower.
    follower = fetch_request(0, topic=TOPIC, replica_id=2)
    refused = secured.ask(follower, [CLUSTER_ACTION, READ_T], listener=INTERNAL, version=12)
    assert refused.response.error_code == 31


def test_without_an_authorizer_only_brokers_send_what_brokers_send(secured: SecuredServing) -> None:
    broker = Principal.user("broker")
    services = replace(secured.dispatch._services, authorizer=None, brokers=BrokerPrincipals([broker]))
    secured.dispatch = Dispatcher(services)
    for case in FROM_BROKERS:
        for version in versions(case):
            client = secured.ask(case.body, listener=case.listener, version=version)
            assert client.closed or set(error_counts(client.response)) == {31}, (case, version)
            session = Session(HOST, broker)
            peer = secured.send(case.body, case.listener, version=version, session=session)
            assert not peer.closed, (case, version)
            assert not peer.is_answered or 31 not in error_counts(peer.response), (case, version)
