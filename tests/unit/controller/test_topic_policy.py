from collections.abc import Mapping

import pytest

from barnabas.controller.topic_policy import TopicRequest, check_policy, load_topic_policy
from barnabas.protocol.errors import ErrorCode, InvalidConfiguration, api_error
from tests.support.controller_fakes import assigned
from tests.support.errors import refused


class SmallTopics:
    """At most as many partitions as the setting says."""

    def configure(self, settings: Mapping[str, str]) -> None:
        self._most = int(settings["num.partitions"])

    def validate(self, request: TopicRequest) -> None:
        if request.num_partitions > self._most:
            raise ValueError(f"{request.num_partitions} partitions; at most {self._most} are allowed")


class Anything:
    def validate(self, request: TopicRequest) -> None:
        return


class NotAPolicy:
    pass


def request_of(topic: str, num_partitions: int) -> TopicRequest:
    return TopicRequest(topic, num_partitions, 1, {0: assigned(1)}, {}, True)


def test_a_policy_refuses_with_its_reason() -> None:
    policy = load_topic_policy(f"{__name__}:SmallTopics", {"num.partitions": "3"})
    check_policy(policy, request_of("t", 3))
    with refused(ErrorCode.POLICY_VIOLATION, "4 partitions; at most 3 are allowed"):
        check_policy(policy, request_of("t", 4))
    # Internal topics are not checked.
    check_policy(policy, request_of("__consumer_offsets", 50))


def test_a_policy_need_not_be_configured() -> None:
    check_policy(load_topic_policy(f"{__name__}:Anything", {}), request_of("t", 1_000))
    check_policy(None, request_of("t", 1_000))


def test_a_policy_that_fails_refuses_too() -> None:
    def failing(request: TopicRequest) -> None:
        raise KeyError(request.topic)

    with refused(ErrorCode.UNKNOWN_SERVER_ERROR, "the policy for topics failed"):
        check_policy(failing, request_of("t", 1))


def test_a_policy_may_choose_the_error() -> None:
    def choosing(request: TopicRequest) -> None:
        raise api_error(ErrorCode.INVALID_CONFIG, "no")

    with refused(ErrorCode.INVALID_CONFIG):
        check_policy(choosing, request_of("t", 1))


@pytest.mark.parametrize(
    "name", ["no_such_module:Class", f"{__name__}:NoSuchClass", f"{__name__}:NotAPolicy"]
)
def test_a_class_that_is_no_policy_stops_the_broker(name: str) -> None:
    with pytest.raises(InvalidConfiguration, match=r"create\.topic\.policy\.class\.name='.*cannot be used"):
        load_topic_policy(name, {})
