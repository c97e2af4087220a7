"""Automatic creation of topics: one at a time per name, bounded, and errors are remembered."""

from collections.abc import Mapping, Sequence

import pytest

from barnabas.broker.handlers.auto_topics import MAX_IN_PROGRESS, AutoTopicCreation, make_creator
from barnabas.protocol.errors import ConnectionClosed, ErrorCode
from barnabas.protocol.messages.topics import CreatableTopic, CreatableTopicResult
from tests.support.defaults import make_config
from tests.support.serving import QueuedWork

AGAIN = ErrorCode.LEADER_NOT_AVAILABLE


class Rig:
    """The creation of topics; `outcome` is the result of each, or its error."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.work = QueuedWork()
        self.created: list[list[str]] = []
        self.outcome: Mapping[str, ErrorCode] | Exception = {}
        self.creation = AutoTopicCreation(
            self._create, self.work, now_ms=lambda: self.now_ms, is_enabled=True
        )

    def _create(self, names: Sequence[str]) -> Mapping[str, ErrorCode]:
        self.created.append(list(names))
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def ask(self, *names: str) -> list[ErrorCode]:
        return list(self.creation.ask(names).values())


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_many_requests_at_once_cause_one_creation(rig: Rig) -> None:
    for _ in range(5):
        assert rig.ask("a", "b") == [AGAIN, AGAIN]
    assert rig.ask("b", "c") == [AGAIN, AGAIN]
    rig.work.run()
    assert rig.created == [["a", "b"], ["c"]]


def test_a_topic_is_not_created_again_before_the_metadata_has_it(rig: Rig) -> None:
    rig.outcome = {"a": ErrorCode.NONE, "b": ErrorCode.TOPIC_ALREADY_EXISTS}
    rig.ask("a", "b")
    rig.work.run()
    assert rig.ask("a", "b") == [AGAIN, AGAIN]
    assert rig.work.waiting == []
    rig.now_ms = 1_000
    rig.ask("a")
    assert len(rig.work.waiting) == 1


def test_a_lasting_error_is_the_answer_for_a_second_before_the_next_try(rig: Rig) -> None:
    rig.outcome = {"a": ErrorCode.INVALID_REPLICATION_FACTOR}
    assert rig.ask("a") == [AGAIN]
    rig.work.run()
    assert rig.ask("a") == [ErrorCode.INVALID_REPLICATION_FACTOR]
    rig.now_ms = 1_000
    assert rig.ask("a") == [AGAIN]
    assert len(rig.work.waiting) == 1


def test_without_a_reachable_controller_the_next_request_tries_again(rig: Rig) -> None:
    for trouble in (ConnectionClosed("gone"), {}, {"a": ErrorCode.NOT_CONTROLLER}):
        rig.outcome = trouble
        assert rig.ask("a") == [AGAIN]
        rig.work.run()
    assert rig.created == [["a"]] * 3
    rig.work.is_full = True
    assert rig.ask("a") == [AGAIN]
    rig.work.is_full = False
    assert rig.ask("a") == [AGAIN]
    assert len(rig.work.waiting) == 1


def test_the_creations_in_progress_are_bounded(rig: Rig) -> None:
    rig.ask(*(f"t{number}" for number in range(MAX_IN_PROGRESS)))
    assert rig.ask("next") == [AGAIN]
    rig.work.run()
    assert [len(names) for names in rig.created] == [MAX_IN_PROGRESS]
    rig.ask("next")
    rig.work.run()
    assert rig.created[1] == ["next"]


def test_the_controllers_broker_creates_topics_itself_and_another_asks_it() -> None:
    asked: list[CreatableTopic] = []

    def create_here(topics: Sequence[CreatableTopic]) -> list[CreatableTopicResult]:
        asked.extend(topics)
        return [CreatableTopicResult(name=topic.name, error_code=ErrorCode.NONE) for topic in topics]

    config = make_config(offsets_topic_num_partitions=7)
    here = make_creator(config, create_here, lambda: True, lambda: None)
    assert here(["a", "__consumer_offsets"]) == {"a": ErrorCode.NONE, "__consumer_offsets": ErrorCode.NONE}
    assert [(topic.name, topic.num_partitions) for topic in asked] == [("a", -1), ("__consumer_offsets", 7)]
    elsewhere = make_creator(config, create_here, lambda: False, lambda: None)
    assert elsewhere(["b"]) == {}, "the controller is unknown"
    assert len(asked) == 2
