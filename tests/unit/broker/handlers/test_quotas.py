"""The charges of requests, and the throttle times in their answers."""

from dataclasses import replace
from typing import Any

import pytest

from barnabas.broker.base.clocks import monotonic_ms
from barnabas.broker.handlers import api_request
from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.dispatcher import Dispatcher
from barnabas.broker.security.broker_principals import BrokerPrincipals
from barnabas.broker.security.session import Session
from barnabas.common.security.principal import Principal
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.ids import NO_TOPIC_ID
from barnabas.protocol.messages.api_versions import ApiVersionsRequest
from barnabas.protocol.messages.authentication import SaslAuthenticateRequest, SaslHandshakeRequest
from barnabas.protocol.messages.groups import HeartbeatRequest
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from barnabas.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from barnabas.protocol.schema import ApiKey
from barnabas.zookeeper.configs import Entity
from barnabas.zookeeper.znodes import StoredConfig
from tests.support.building import TOPIC_ID, led_by, metadata
from tests.support.record_requests import (
    LAST_FETCH,
    catch_up,
    fetch,
    fetch_request,
    fetched,
    follow,
    produce,
    produced,
)
from tests.support.serving import EXTERNAL, Connection, Serving, Topics, batch, unknown_session


@pytest.fixture
def leading(leading: Serving) -> Serving:
    """Its metadata has the topic's id."""
    leading.managed.metadata.update(metadata({1: 0, 2: 5, 3: 5}, led_by(1), topic_id=TOPIC_ID))
    return leading


def limit(serving: Serving, **quotas: str) -> None:
    """For the user of all requests, whose client id is "test"."""
    serving.quotas.take({Entity.user("ANONYMOUS"): StoredConfig(quotas, 1, 1)})


def test_a_producer_above_its_rate_is_muted_after_its_answer(leading: Serving) -> None:
    first = produce(leading, batch(b"a" * 1_000), acks=1, version=9)
    assert (first.response.throttle_time_ms, first.request.throttle_ms) == (0, 0)
    limit(leading, producer_byte_rate="1")
    second = produce(leading, batch(b"a" * 1_000), acks=1, version=9)
    assert produced(second).error_code == ErrorCode.NONE
    throttle_ms = (second.request.size_bytes - 10) * 1_000
    assert second.response.throttle_time_ms == second.request.throttle_ms == throttle_ms
    without_answer = produce(leading, batch(b"a"), acks=0)
    assert without_answer.request.throttle_ms > throttle_ms


@pytest.mark.parametrize("version", [None, 4, 12, LAST_FETCH])
def test_a_consumer_above_its_rate_gets_no_records_and_asks_again(
    leading: Serving, version: int | None
) -> None:
    produce(leading, batch(b"a" * 600))
    catch_up(leading)
    limit(leading, consumer_byte_rate="10")
    throttled = fetch(leading, 0, version=version, listener=EXTERNAL)
    assert throttled.response.responses == []
    assert throttled.response.throttle_time_ms == throttled.request.throttle_ms > 10_000
    # Bytes that were not sent are not charged.
    limit(leading, consumer_byte_rate="200")
    again = fetch(leading, 0, version=version, listener=EXTERNAL)
    assert len(fetched(again).records) > 600
    assert again.response.throttle_time_ms == 0
    assert len(fetched(follow(leading, 0)).records) > 600


def test_a_throttled_session_goes_on_with_the_partitions_that_it_had(leading: Serving) -> None:
    produce(leading, batch(b"a" * 600))
    catch_up(leading)
    session: dict[str, Any] = {"version": LAST_FETCH, "listener": EXTERNAL}
    opened = fetch(leading, 1, session_epoch=0, **session)
    session_id = opened.response.session_id
    assert session_id != 0

    def again(epoch: int, offset: int | None) -> Connection:
        return fetch(leading, offset, session_id=session_id, session_epoch=epoch, **session)

    limit(leading, consumer_byte_rate="1")
    throttled = again(1, 0)
    assert (throttled.response.session_id, throttled.response.responses) == (session_id, [])
    assert throttled.response.throttle_time_ms > 0
    # A full fetch opens no session while it is throttled, as in Kafka.
    full = fetch(leading, 0, session_epoch=0, **session)
    assert (full.response.session_id, full.response.responses) == (0, [])
    limit(leading, consumer_byte_rate="1000000")
    assert len(fetched(again(2, None)).records) > 600


def test_an_answer_has_no_more_records_than_a_consumers_quota_can_ever_send(leading: Serving) -> None:
    for _ in range(8):
        produce(leading, batch(b"a" * 100))
    catch_up(leading)
    unlimited = len(fetched(fetch(leading, 0, listener=EXTERNAL)).records)
    limit(leading, consumer_byte_rate="50")
    answer = fetch(leading, 0, listener=EXTERNAL, min_bytes=100_000, max_wait_ms=60_000)
    assert 0 < len(fetched(answer).records) < 500 < unlimited


def test_a_followers_fetch_is_exempt(leading: Serving) -> None:
    limit(leading, consumer_byte_rate="0", request_percentage="0")
    produce(leading, batch(b"a"))
    follower = follow(leading, 0)
    assert len(fetched(follower).records) > 0
    assert follower.request.throttle_ms == 0


def test_the_default_of_users_does_not_hold_for_brokers(leading: Serving) -> None:
    """They ask in the native protocol. A super user is a user as any other."""
    broker, admin = (Session("127.0.0.1", Principal.user(name)) for name in ("broker", "admin"))
    brokers = BrokerPrincipals([broker.principal], [admin.principal])
    leading.dispatch = Dispatcher(replace(leading.dispatch._services, brokers=brokers))
    leading.quotas.take({Entity.user(None): StoredConfig({"request_percentage": "0"}, 1, 1)})
    throttled = {}
    for session in (broker, admin):
        for version in (None, 9):
            connection = Connection.of(MetadataRequest(topics=[]), version=version, session=session)
            connection.request.ran_ns = 10**9
            connection.run(leading.dispatch)
            throttled[session.principal.name, version] = connection.response.throttle_time_ms
    assert throttled == {
        ("broker", None): 0,
        ("broker", 9): 1_000,
        ("admin", None): 1_000,
        ("admin", 9): 1_000,
    }


@pytest.mark.parametrize("version", [None, 2, 9])
def test_any_request_pays_for_the_time_of_threads(leading: Serving, version: int | None) -> None:
    limit(leading, request_percentage="50")

    def ask(body: Any) -> Connection:
        connection = Connection.of(body, version=version and min(version, 4 if body is beat else version))
        connection.request.ran_ns = 5_010_000_000
        connection.run(leading.dispatch)
        return connection

    beat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    first = ask(MetadataRequest(topics=None))
    assert 20 <= first.request.throttle_ms <= 1_000
    assert len(first.response.topics) == 1
    if version != 2:
        assert first.response.throttle_time_ms == first.request.throttle_ms
    second = ask(beat)
    assert second.request.throttle_ms == 1_000
    if version != 2:
        assert second.response.throttle_time_ms == 1_000
    # The metadata that is kept for others has no throttle time.
    limit(leading)
    assert ask(MetadataRequest(topics=None)).response.throttle_time_ms == 0


def test_a_fetch_that_pays_for_time_alone_gets_no_records_either(leading: Serving) -> None:
    produce(leading, batch(b"a"))
    catch_up(leading)
    limit(leading, request_percentage="1", consumer_byte_rate="1000000")
    connection = Connection.of(fetch_request(0))
    connection.request.ran_ns = 10**9
    connection.run(leading.dispatch)
    assert connection.response.responses == []
    assert connection.response.throttle_time_ms == 1_000
    assert leading.quotas.fetched.clients()["ANONYMOUS", ""].measure.measure(0) == 0


class Charged(Topics):
    """Creates, grows or deletes 10 partitions for each topic."""

    def _results(self, made: list[Any], charge: Any) -> list[Any]:
        for result in made:
            try:
                charge(10)
            except ApiError as error:
                result.error_code = error.code
        return made

    def create_topics(self, topics: Any, *, validate_only: bool = False, charge: Any = None) -> list[Any]:
        return self._results(
            [CreatableTopicResult(name=topic.name, error_code=0) for topic in topics], charge
        )

    def create_partitions(self, topics: Any, *, validate_only: bool = False, charge: Any = None) -> list[Any]:
        made = [CreatePartitionsTopicResult(name=topic.name, error_code=0) for topic in topics]
        return [(result, NO_TOPIC_ID, 1) for result in self._results(made, charge)]

    def delete_topics(self, topics: Any, *, charge: Any = None) -> list[Any]:
        return self._results(
            [DeletableTopicResult(name=topic.name, error_code=0) for topic in topics], charge
        )


NAMES = ("a", "b", "c")
# The handler waits for the metadata of changes that are made.
CREATION = CreateTopicsRequest(topics=[CreatableTopic(name=name) for name in NAMES], validate_only=True)
GROWTH = CreatePartitionsRequest(
    topics=[CreatePartitionsTopic(name=name, count=1) for name in NAMES], validate_only=True
)
DELETION = DeleteTopicsRequest(topics=[DeleteTopicState(name=name) for name in NAMES], timeout_ms=0)
OLD_DELETION = DeleteTopicsRequest(topic_names=list(NAMES), timeout_ms=0)


@pytest.mark.parametrize(
    ("body", "version", "is_strict"),
    [
        (CREATION, None, True),
        (CREATION, 6, True),
        (CREATION, 5, False),
        (GROWTH, None, True),
        (GROWTH, 3, True),
        (GROWTH, 2, False),
        (DELETION, None, True),
        (OLD_DELETION, 5, True),
        (OLD_DELETION, 4, False),
    ],
)
def test_too_many_changes_of_topics_are_refused_and_earlier_versions_wait(
    serving: Serving, body: Any, version: int | None, is_strict: bool
) -> None:
    charged = Charged()
    for name in ("create_topics", "create_partitions", "delete_topics"):
        setattr(serving.topics, name, getattr(charged, name))
    # Eleven tokens.
    limit(serving, controller_mutation_rate="1")
    connection = serving.send(body, version=version)
    answer = connection.response
    (results,) = (
        getattr(answer, name) for name in ("topics", "results", "responses") if hasattr(answer, name)
    )
    codes = [result.error_code for result in results]
    assert codes.count(ErrorCode.THROTTLING_QUOTA_EXCEEDED) == (1 if is_strict else 0)
    assert answer.throttle_time_ms == connection.request.throttle_ms
    assert answer.throttle_time_ms == pytest.approx(9_000 if is_strict else 19_000, abs=500)


def test_topics_that_are_created_by_metadata_are_charged_once(serving: Serving) -> None:
    """As in Kafka, with the partitions that they get; the client does not wait."""
    limit(serving, controller_mutation_rate="0.1")
    serving.managed.know({1: 0})
    partitions = serving.config.num_partitions
    unknown = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in ("x", "y")])
    serving.auto_topics._create = lambda names: dict.fromkeys(names, ErrorCode.NONE)
    for version in (None, 9):
        connection = serving.send(unknown, version=version)
        assert {topic.error_code for topic in connection.response.topics} == {ErrorCode.LEADER_NOT_AVAILABLE}
        assert connection.response.throttle_time_ms == connection.request.throttle_ms == 0
    (use,) = serving.quotas.uses(monotonic_ms())
    assert use.rate == pytest.approx(1.1 - 2 * partitions, abs=0.05)


def test_a_peer_that_authenticates_is_exempt(serving: Serving) -> None:
    """Before that all peers share one principal: one of them could mute the others."""
    serving.quotas.take({Entity.user(None): StoredConfig({"request_percentage": "0"}, 1, 1)})
    session = unknown_session()
    token = SaslAuthenticateRequest(auth_bytes=b"\0alice\0secret")
    for body in (ApiVersionsRequest(), SaslHandshakeRequest(mechanism="PLAIN"), token):
        connection = Connection.of(body, session=session)
        connection.request.ran_ns = 10**9
        connection.run(serving.dispatch)
        assert connection.request.throttle_ms == 0
        assert connection.response.error_code == 0
    after = Connection.of(ApiVersionsRequest(), session=session)
    after.request.ran_ns = 10**9
    after.run(serving.dispatch)
    assert after.response.throttle_time_ms == 1_000


def test_the_time_until_the_answer_counts_for_the_mute(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = [1_000_000.0]
    monkeypatch.setattr(api_request, "monotonic_ms", lambda: now_ms[0])
    limit(serving, controller_mutation_rate="1")
    raw = Connection.of(CREATION).request
    request = ApiRequest(raw, ApiKey.CREATE_TOPICS, 1, "test", CREATION, 5, serving.quotas)
    request.charge_mutation(6)(20)
    now_ms[0] += 4_000
    assert request.throttle_ms() == 5_000
