"""Producer ids, unique in the cluster, from blocks that this broker claims in ZooKeeper.

The next block is claimed on the slow-work thread when most of the present one is used, so requests do not
wait. Requests that find no id left (the first ones after a start) wait for the claim, bounded in number;
while ZooKeeper is unreachable they get a retriable error. The unused ids of a broker that stops are lost.

Any thread may call; answers come on the caller's thread or on the slow-work thread, without locks.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from barnabas.broker.base.slow_work import SlowWork
from barnabas.common.workers import WorkRefused
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import NO_PRODUCER_ID, ProducerId
from barnabas.zookeeper.errors import SessionLost, ZooKeeperUnavailable
from barnabas.zookeeper.json_nodes import MalformedZnode

logger = logging.getLogger(__name__)

CLAIM_AT: Final = 0.9
"""The used part of a block at which the next one is claimed, as in Kafka."""
MAX_WAITING: Final = 1_000
"""The size of a block."""
RETRY: Final = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
"""Kafka answers with this error because clients of all versions retry after it."""

Answer = Callable[[ProducerId, ErrorCode], None]


class ProducerIds:
    """``claim`` claims a block, as `ClusterStore.claim_producer_ids` does; it blocks."""

    def __init__(self, claim: Callable[[], range], slow_work: SlowWork) -> None:
        self._claim_block = claim
        self._slow_work = slow_work
        self._lock = threading.Lock()
        self._block = range(0)
        self._used = 0
        """The number of used ids of the block."""
        self._next_block = range(0)
        self._is_claiming = False
        # Invariant: a request waits only while no id is left and a claim is in flight.
        self._waiting: list[Answer] = []

    def give(self, answer: Answer) -> None:
        """Answer once with a new id, or with -1 and an error: now, or when a block has been claimed."""
        with self._lock:
            producer_id = self._take()
            is_refused = producer_id is None and len(self._waiting) >= MAX_WAITING
            if producer_id is None and not is_refused:
                self._waiting.append(answer)
            must_claim = not self._is_claiming and self._is_low
            self._is_claiming = self._is_claiming or must_claim
        if producer_id is not None:
            answer(producer_id, ErrorCode.NONE)
        elif is_refused:
            answer(NO_PRODUCER_ID, RETRY)
        if must_claim:
            try:
                self._slow_work.submit(self._failed, self._claim)
            except WorkRefused as error:
                logger.warning("no producer ids are claimed: %s", error)
                self._refuse(RETRY)

    @property
    def _is_low(self) -> bool:
        return not len(self._next_block) and self._used >= CLAIM_AT * len(self._block)

    def _take(self) -> ProducerId | None:
        if self._used == len(self._block):
            self._block, self._next_block, self._used = self._next_block, range(0), 0
        if not len(self._block):
            return None
        self._used += 1
        return ProducerId(self._block[self._used - 1])

    def _claim(self) -> None:
        is_done = False
        while not is_done:
            try:
                block = self._claim_block()
            except (ZooKeeperUnavailable, SessionLost, MalformedZnode) as error:
                logger.warning("no producer ids are claimed: %s", error)
                self._refuse(RETRY)
                return
            served = []
            with self._lock:
                self._next_block = block
                while self._waiting and (producer_id := self._take()) is not None:
                    served.append((self._waiting.pop(0), producer_id))
                is_done = not self._waiting
                self._is_claiming = not is_done
            for answer, producer_id in served:
                answer(producer_id, ErrorCode.NONE)

    def _failed(self, error: Exception) -> None:
        """A claim failed with an unforeseen error, which the slow-work thread has logged."""
        self._refuse(ErrorCode.UNKNOWN_SERVER_ERROR)

    def _refuse(self, code: ErrorCode) -> None:
        with self._lock:
            self._is_claiming = False
            waiting, self._waiting = self._waiting, []
        for answer in waiting:
            answer(NO_PRODUCER_ID, code)
