"""Automatic creation of topics: one at a time per name, bounded, and errors are remembered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from barnabas.broker import auto_topics
from barnabas.broker.auto_topics import MAX_IN_PROGRESS, AutoTopicCreation
from barnabas.broker.slow_work import SlowWorkRefused
from barnabas.protocol.errors import ConnectionClosed, ErrorCode

AGAIN = ErrorCode.LEADER_NOT_AVAILABLE


class Later:
    """Slow work that is done when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []
        self.is_full = False

    def submit(self, failed: Callable[[Exception], None], work: Callable[..., Any], *args: Any) -> None:
        if self.is_full:
            raise SlowWorkRefused("full")
        self.waiting.append(lambda: work(*args))

    def finish(self) -> None:
        waiting, self.waiting = self.waiting, []
        for work in waiting:
            work()


class Desk:
    def __init__(self) -> None:
        self.now_ms = 0.0
        self.later = Later()
        self.asked: list[list[str]] = []
        self.outcome: Mapping[str, ErrorCode] | Exception = {}
        self.creation = AutoTopicCreation(
            self._create,
            self.later,
            now_ms=lambda: self.now_ms,
            is_enabled=True,
        )

    def _create(self, names: Sequence[str]) -> Mapping[str, ErrorCode]:
        self.asked.append(list(names))
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def ask(self, *names: str) -> list[ErrorCode]:
        return list(self.creation.ask(names).values())


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_many_requests_at_once_cause_one_creation(desk: Desk) -> None:
    for _ in range(5):
        assert desk.ask("a", "b") == [AGAIN, AGAIN]
    assert desk.ask("b", "c") == [AGAIN, AGAIN]
    desk.later.finish()
    assert desk.asked == [["a", "b"], ["c"]]


def test_a_topic_is_not_created_again_before_the_metadata_has_it(desk: Desk) -> None:
    desk.outcome = {"a": ErrorCode.NONE, "b": ErrorCode.TOPIC_ALREADY_EXISTS}
    desk.ask("a", "b")
    desk.later.finish()
    assert desk.ask("a", "b") == [AGAIN, AGAIN]
    assert desk.later.waiting == []
    desk.now_ms = 1_000
    desk.ask("a")
    assert len(desk.later.waiting) == 1


def test_a_lasting_error_is_the_answer_for_a_second_before_the_next_try(desk: Desk) -> None:
    desk.outcome = {"a": ErrorCode.INVALID_REPLICATION_FACTOR}
    assert desk.ask("a") == [AGAIN]
    desk.later.finish()
    assert desk.ask("a") == [ErrorCode.INVALID_REPLICATION_FACTOR]
    desk.now_ms = 1_000
    assert desk.ask("a") == [AGAIN]
    assert len(desk.later.waiting) == 1


def test_without_a_reachable_controller_the_next_request_tries_again(desk: Desk) -> None:
    for trouble in (ConnectionClosed("gone"), {}, {"a": ErrorCode.NOT_CONTROLLER}):
        desk.outcome = trouble
        assert desk.ask("a") == [AGAIN]
        desk.later.finish()
    assert desk.asked == [["a"]] * 3
    desk.later.is_full = True
    assert desk.ask("a") == [AGAIN]
    desk.later.is_full = False
    assert desk.ask("a") == [AGAIN]
    assert len(desk.later.waiting) == 1


def test_invalid_names_and_the_brokers_own_topics_are_not_created(desk: Desk) -> None:
    assert desk.ask("a b", "", "__consumer_offsets") == [
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert desk.later.waiting == []


def test_the_creations_in_progress_are_bounded(desk: Desk) -> None:
    desk.ask(*(f"t{number}" for number in range(MAX_IN_PROGRESS)))
    assert desk.ask("one-more") == [AGAIN]
    desk.later.finish()
    assert "one-more" not in desk.asked[0]
    assert len(desk.asked[0]) == auto_topics.MAX_IN_PROGRESS
    desk.ask("one-more")
    desk.later.finish()
    assert desk.asked[1] == ["one-more"]


def test_only_a_broker_can_have_the_brokers_own_topics_created(desk: Desk) -> None:
    assert desk.ask("__consumer_offsets", "a") == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, AGAIN]
    desk.later.finish()
    assert desk.asked == [["a"]]
    assert desk.creation.ask_internal("__consumer_offsets") == AGAIN
    assert desk.creation.ask_internal("__consumer_offsets") == AGAIN
    desk.later.finish()
    assert desk.asked == [["a"], ["__consumer_offsets"]]
