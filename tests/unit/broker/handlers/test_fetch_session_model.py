"""A client with a fetch session knows as much as a client that fetches everything each time.

The client is a simple model of its own view; the broker is the real one, over real logs. An incremental
answer must contain every partition that has changed since the last answer.
"""

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from barnabas.protocol import schema
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.fetch import ForgottenTopic
from barnabas.protocol.record_batch import iter_batches
from tests.support.building import TP, state
from tests.support.record_requests import fetch_of, follow, produce_at
from tests.support.serving import Serving

PARTITIONS = range(3)
REPLICATED = 0
"""The partition whose high watermark waits for a follower."""
indexes = st.sampled_from(PARTITIONS)


@dataclass
class View:
    """The client's view of a partition in its session."""

    fetch_offset: int = 0
    high_watermark: int = -1
    log_start_offset: int = -1
    error: int = 0


class SessionMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.serving = Serving(Path(self.folder.name) / "data")
        self.serving.managed.know({1: 0, 2: 5, 3: 5})
        self.epoch = 0
        self.leads = dict.fromkeys(PARTITIONS, True)
        for index in PARTITIONS:
            self._give_role(index)
        self.session_id = 0
        self.session_epoch = 0
        self.views: dict[int, View] = {}
        self.positions: dict[int, View] = {}

    def teardown(self) -> None:
        self.serving.close()
        self.folder.cleanup()

    def _give_role(self, index: int) -> None:
        replicas = (1, 2) if index == REPLICATED else (1, 3)
        role = state(
            leader=1 if self.leads[index] else replicas[1],
            epoch=self.epoch,
            isr=replicas if index == REPLICATED else (1,),
            replicas=replicas,
        )
        assert self.serving.managed.tell(schema.replace(role, partition_index=index)) == []

    # Changes of the partitions

    @rule(index=indexes, count=st.integers(1, 3))
    def produce(self, index: int, count: int) -> None:
        produce_at(self.serving, index, *[b"x" * 100] * count)

    @rule()
    def the_follower_has_everything(self) -> None:
        name = TopicPartition(TP.topic, REPLICATED)
        follow(
            self.serving, self.serving.managed.manager.partition(name).log_end_offset, partition=REPLICATED
        )

    @rule(index=indexes)
    def the_role_changes(self, index: int) -> None:
        self.epoch += 1
        self.leads[index] = not self.leads[index]
        self._give_role(index)

    # What the client does

    @rule(index=indexes, offset=st.none() | st.integers(0, 5))
    def subscribe(self, index: int, offset: int | None) -> None:
        """Or seek."""
        before = self.positions.get(index, View())
        self.positions[index] = View(before.fetch_offset if offset is None else offset)

    @rule(index=indexes)
    def unsubscribe(self, index: int) -> None:
        self.positions.pop(index, None)

    @rule()
    def forget_the_session(self) -> None:
        self.session_epoch = 0

    @rule(max_bytes=st.sampled_from([1, 300, 1 << 20]))
    def fetch_with_a_limit(self, max_bytes: int) -> None:
        self.fetch(max_bytes)

    @rule(is_lost=st.booleans())
    def fetch_and_wait(self, is_lost: bool) -> None:
        self.fetch(1 << 20, is_lost=is_lost, waits=True)

    def fetch(self, max_bytes: int, *, is_lost: bool = False, waits: bool = False) -> None:
        if not self.positions:
            return
        is_full = self.session_epoch == 0
        # A client names a partition that is new or has another offset than in its last request.
        named = {
            index: position.fetch_offset
            for index, position in self.positions.items()
            if is_full or index not in self.views or self.views[index].fetch_offset != position.fetch_offset
        }
        forgotten = [] if is_full else [index for index in self.views if index not in self.positions]
        connection = self.serving.send(
            fetch_of(
                named,
                max_wait_ms=100 if waits else 0,
                max_bytes=max_bytes,
                session_id=self.session_id,
                session_epoch=self.session_epoch,
                forgotten_topics_data=[ForgottenTopic(topic=TP.topic, partitions=forgotten)],
            )
        )
        if not connection.is_answered:
            assert waits
            self.serving.managed.pass_time(100)
        answer = connection.response
        if is_lost:
            # The client cannot know whether the broker handled it, so it gives the session up.
            self.session_epoch = 0
            return
        assert answer.error_code == ErrorCode.NONE
        assert is_full or answer.session_id == self.session_id
        self.session_id = answer.session_id
        self.session_epoch += 1
        kept = {} if is_full else self.views
        self.views = {
            index: replace(kept.get(index, View()), fetch_offset=position.fetch_offset)
            for index, position in self.positions.items()
        }
        given = {data.partition_index: data for topic in answer.responses for data in topic.partitions}
        if is_full:
            assert set(given) == set(self.positions)
        for index, data in given.items():
            view = self.views[index]
            view.error = data.error_code
            view.high_watermark, view.log_start_offset = data.high_watermark, data.log_start_offset
            for _, header in iter_batches(data.records):
                self.positions[index].fetch_offset = header.next_offset
        self._check_view(given, max_bytes)

    def _check_view(self, given: dict[int, Any], max_bytes: int) -> None:
        """After an answer the client knows the state of the broker."""
        has_more = False
        # The broker's own limit is 2,048 bytes, and no batch here has 500.
        is_all = max_bytes > 2_048 and sum(len(data.records) for data in given.values()) < 1_500
        for index, view in self.views.items():
            partition = self.serving.managed.manager.partition(TopicPartition(TP.topic, index))
            fits = partition.log.log_start_offset <= view.fetch_offset <= partition.log_end_offset
            assert (view.error == 0) == (self.leads[index] and fits)
            if view.error:
                assert index in given
                continue
            assert view.high_watermark == partition.high_watermark
            assert view.log_start_offset == partition.log.log_start_offset
            has_more = has_more or partition.high_watermark > view.fetch_offset
            if is_all:
                assert self.positions[index].fetch_offset >= partition.high_watermark
        got = any(
            self.positions[index].fetch_offset != view.fetch_offset for index, view in self.views.items()
        )
        assert got == has_more

    @invariant()
    def a_closed_session_has_no_listeners(self) -> None:
        sessions = self.serving.managed.manager.consumer_sessions
        if not len(sessions):
            assert not len(sessions.listeners)


SessionMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
TestSessions = SessionMachine.TestCase
