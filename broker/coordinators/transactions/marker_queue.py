"""Sends the markers of decided transactions to the leaders of their partitions, until each is written.

Markers for partitions that this broker leads are appended without a socket. The others go by WriteTxnMarkers,
with few requests in flight per broker; what waits meanwhile goes with the next request. A marker that was
refused or lost is sent again: at once if its partition has another leader by then, otherwise when that
changes or after a back-off. It is only given up when the shard that sends it is closed, because the next
coordinator sends all of them again. So a leader may get a marker late or twice, which does no harm.

A partition that the controller neither names nor lists as unreadable is deleted, and its marker counts as
written. But the former coordinator may have known newer topics: an update since the shard was opened decides.

Any thread; no lock is held while markers are appended or reported. Rules as in Kafka's
``TransactionMarkerRequestCompletionHandler``, except that no error makes a transaction hang.
"""

from __future__ import annotations

import logging
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from barnabas.broker.base.contained import contained
from barnabas.broker.base.purgatory import DelayedCall, Purgatory
from barnabas.broker.coordinators.broker_links import BrokerLinks, Window
from barnabas.broker.coordinators.topic_coordinator import Host
from barnabas.broker.replication.marker_writer import MarkerOutcome, TransactionMarker
from barnabas.common.backoff import doubled
from barnabas.common.texts import first_of
from barnabas.protocol.errors import ErrorCode, LocalError, known_code
from barnabas.protocol.ids import NO_BROKER, BrokerId, LeaderEpoch, TopicPartition
from barnabas.protocol.messages import transactions as wire
from barnabas.protocol.messages.partitions import TopicPartitionIndexes
from barnabas.protocol.partition_entries import entries, numbers_in_topics

logger = logging.getLogger(__name__)

MAX_IN_FLIGHT: Final = 4
"""Requests to one broker: with one, each transaction would wait for the replication of those before it."""
MAX_MARKERS: Final = 5_000
"""Partitions in one request, at most; the first transaction of a request may exceed it."""
APPEND_TIMEOUT_MS: Final = 5_000
"""The time for the in-sync replicas to get a marker that is appended here; then it is written again."""
FIRST_PAUSE_MS: Final = 20.0
LONGEST_PAUSE_MS: Final = 1_000.0
FENCED_PAUSE_MS: Final = 5_000.0
"""Another coordinator has taken over, and this broker will hear of it."""

Written = Callable[[Collection[TopicPartition]], None]

_WRITTEN: Final = frozenset({ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH})
"""A log with a later epoch of the producer has no transaction of the earlier one left to end."""


class _Leader(NamedTuple):
    broker_id: BrokerId
    leader_epoch: LeaderEpoch


_UNKNOWN: Final = _Leader(NO_BROKER, LeaderEpoch(-1))
_DELETED: Final = _Leader(BrokerId(-2), LeaderEpoch(-1))


class _Sending(NamedTuple):
    """The markers of one transaction; the partitions are divided among `_Part` objects."""

    marker: TransactionMarker
    opened_at: int
    is_wanted: Callable[[], bool]
    written: Written

    def __str__(self) -> str:
        end = "commit" if self.marker.committed else "abort"
        return f"{end} of producer {self.marker.producer_id}, epoch {self.marker.producer_epoch}"


class _Part(NamedTuple):
    """Partitions of one transaction with the same leader, and that leader's epoch in each."""

    sending: _Sending
    leaders: Mapping[TopicPartition, _Leader]
    failures: int = 0

    def marker(self) -> TransactionMarker:
        return self.sending.marker._replace(partitions=tuple(self.leaders))


class MarkerQueue:
    """Markers for this broker's partitions are appended on the caller's thread.

    Those to slow disks, and those that are sent again on the thread of all deadlines, go by ``run_aside``.
    """

    def __init__(self, host: Host, links: BrokerLinks) -> None:
        self._broker_id = host.config.broker_id
        self._replicas = host.replicas
        self._metadata = host.metadata
        self._reaper = host.reaper
        self._run_aside = host.run_aside
        # As many as there are decided transactions: to drop one would make it hang.
        self._delayed = Purgatory("transaction markers", host.reaper, max_operations=sys.maxsize)
        self._is_stopped = False
        self._window = Window(
            links,
            max_in_flight=MAX_IN_FLIGHT,
            take=_take_wanted,
            make_request=_make_request,
            answered=self._answered,
        )

    def listen(self) -> None:
        self._metadata.on_update(self._topics_changed)

    def stop(self) -> None:
        """Drop all markers. The shards have been closed before."""
        self._is_stopped = True
        self._delayed.shut_down()

    def send(
        self, marker: TransactionMarker, *, opened_at: int, is_wanted: Callable[[], bool], written: Written
    ) -> None:
        """Send the marker until ``written`` has had all its partitions; they come in several calls.

        Nothing is sent or reported once ``is_wanted`` is false. ``opened_at`` is `ClusterMetadata.updates`
        when the shard was opened.
        """
        self._send_all(_Sending(marker, opened_at, is_wanted, written), marker.partitions, 0)

    @property
    def queued(self) -> int:
        """The partitions whose markers wait for requests in flight."""
        return sum(len(part.leaders) for part in self._window.waiting())

    @property
    def delayed(self) -> int:
        """The groups of partitions whose markers wait for a leader, or for the end of a pause."""
        return self._delayed.waiting

    # ---- sending

    def _send_all(self, sending: _Sending, partitions: Iterable[TopicPartition], failures: int) -> None:
        if self._is_stopped or not sending.is_wanted():
            return
        by_broker: dict[BrokerId, dict[TopicPartition, _Leader]] = defaultdict(dict)
        for name in sorted(partitions):
            leader = self._leader_of(name, sending)
            by_broker[leader.broker_id][name] = leader
        for broker_id, leaders in by_broker.items():
            part = _Part(sending, leaders, failures)
            if broker_id == _DELETED.broker_id:
                logger.info("%s: the topics of %s are deleted", sending, _listed(leaders))
                sending.written(leaders.keys())
            elif broker_id == NO_BROKER:
                self._retry(part, leaders, _pause_ms(failures))
            elif broker_id == self._broker_id and self._replicas.waits_for_disk(leaders):
                self._run_aside(partial(self._write_here, part))
            elif broker_id == self._broker_id:
                self._write_here(part)
            else:
                self._window.put(broker_id, part)

    def _leader_of(self, name: TopicPartition, sending: _Sending) -> _Leader:
        current = self._metadata.current
        state = current.partitions_of(name.topic).get(name.partition)
        if state is not None:
            return _Leader(*self._metadata.leader_of(state))
        is_deleted = current.updates > sending.opened_at and not current.may_exist(name)
        return _DELETED if is_deleted else _UNKNOWN

    def _write_here(self, part: _Part) -> None:
        def answer(outcomes: Sequence[MarkerOutcome]) -> None:
            self._settle(part, outcomes[0])

        failure = f"{part.sending}: its markers failed by an unforeseen error"
        write = self._replicas.markers.write
        if not contained(failure, write, [part.marker()], APPEND_TIMEOUT_MS, answer):
            self._settle(part, {})

    # ---- outcomes

    def _answered(
        self, broker_id: BrokerId, parts: Sequence[_Part], answer: wire.WriteTxnMarkersResponse | LocalError
    ) -> None:
        outcomes: list[MarkerOutcome] = []
        missing = ErrorCode.UNKNOWN_SERVER_ERROR
        if isinstance(answer, LocalError):
            logger.debug("no answer to markers from broker %d: %s", broker_id, answer)
            missing = ErrorCode.NETWORK_EXCEPTION
        else:
            outcomes = [
                {tp: known_code(result.error_code) for tp, result in entries(marker.topics)}
                for marker in answer.markers
            ]
        for index, part in enumerate(parts):
            outcome = outcomes[index] if index < len(outcomes) else {}
            failure = f"{part.sending}: its markers failed by an unforeseen error"
            if not contained(failure, self._settle, part, outcome, missing):
                self._retry(part, part.leaders, LONGEST_PAUSE_MS)

    def _settle(
        self, part: _Part, outcome: MarkerOutcome, missing: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR
    ) -> None:
        """A partition that the outcome omits is sent again, as with the error ``missing``."""
        errors = {name: outcome.get(name, missing) for name in part.leaders}
        written = [name for name, error in errors.items() if error in _WRITTEN]
        failed = {name: leader for name, leader in part.leaders.items() if errors[name] not in _WRITTEN}
        if written and part.sending.is_wanted():
            part.sending.written(written)
        if not failed:
            return
        reasons = {errors[name] for name in failed}
        pause_ms = _pause_ms(part.failures)
        if ErrorCode.TRANSACTION_COORDINATOR_FENCED in reasons:
            pause_ms = FENCED_PAUSE_MS
        level = logging.WARNING if pause_ms >= LONGEST_PAUSE_MS else logging.DEBUG
        names = ", ".join(sorted(reason.name for reason in reasons))
        logger.log(level, "%s: %s refused with %s; sent again", part.sending, _listed(failed), names)
        self._retry(part, failed, pause_ms)

    def _retry(self, part: _Part, leaders: Mapping[TopicPartition, _Leader], pause_ms: float) -> None:
        """Send these again: at once if one has another leader by now, else when it has, or after a pause."""
        again = partial(self._send_all, part.sending, leaders, part.failures + 1)
        retry = DelayedCall(
            self._reaper.clock_ms() + pause_ms,
            lambda: self._has_moved(part.sending, leaders),
            lambda: self._run_aside(again),
        )
        self._delayed.try_complete_else_watch(retry, {name.topic for name in leaders})

    def _topics_changed(self, names: Iterable[str]) -> None:
        if self._delayed.waiting:
            for name in names:
                self._delayed.check_and_complete(name)
        # A broker that is slow to answer must not hold up the markers for partitions that it has lost.
        for part in self._window.withdraw(lambda part: self._has_moved(part.sending, part.leaders)):
            self._send_all(part.sending, part.leaders, part.failures)

    def _has_moved(self, sending: _Sending, leaders: Mapping[TopicPartition, _Leader]) -> bool:
        return any(self._leader_of(name, sending) != leader for name, leader in leaders.items())


def _pause_ms(failures: int) -> float:
    return doubled(FIRST_PAUSE_MS, failures, LONGEST_PAUSE_MS)


def _take_wanted(waiting: deque[_Part]) -> list[_Part]:
    parts: list[_Part] = []
    partitions = 0
    while waiting:
        partitions += len(waiting[0].leaders)
        if parts and partitions > MAX_MARKERS:
            break
        part = waiting.popleft()
        if part.sending.is_wanted():
            parts.append(part)
    return parts


def _make_request(parts: Sequence[_Part]) -> wire.WriteTxnMarkersRequest:
    return wire.WriteTxnMarkersRequest(
        markers=[
            wire.WritableTxnMarker(
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                transaction_result=marker.committed,
                topics=numbers_in_topics(TopicPartitionIndexes, marker.partitions),
                coordinator_epoch=marker.coordinator_epoch,
                transaction_version=marker.transaction_version,
            )
            for marker in (part.marker() for part in parts)
        ]
    )


def _listed(partitions: Collection[TopicPartition]) -> str:
    return first_of([str(name) for name in partitions], 5)
