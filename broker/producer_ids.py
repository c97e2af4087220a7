"""Producer ids, each given once in the whole cluster: out of blocks that this broker claims in ZooKeeper.

A block is claimed when most of the one before is given, on the slow-work thread, so that requests do not
wait; those that find nothing left (the first ones after a start) wait for the claim that is under way,
bounded in number. While ZooKeeper is unreachable they get a retriable error. Ids that were claimed and not
given when a broker stops are lost, which does no harm: there are 2^63.

Any thread may ask; answers come on the asker's thread or on the slow-work thread, without locks.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Final, Protocol

from barnabas.broker.slow_work import SlowWorkRefused
from barnabas.protocol.errors import ErrorCode, LocalError
from barnabas.protocol.ids import NO_PRODUCER_ID, ProducerId

logger = logging.getLogger(__name__)

CLAIM_AT: Final = 0.9
"""The part of a block that is given before the next one is claimed, as in Kafka."""
MAX_WAITING: Final = 1_000
"""As many as one block serves."""
COME_AGAIN: Final = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
"""What clients of all ages try again after, as Kafka has found."""

Answer = Callable[[ProducerId, ErrorCode], None]


class ProducerIdsUnavailable(LocalError):
    """No block could be claimed now; later one may."""

    retriable = True


class BlockSource(Protocol):
    """Where blocks are claimed; the call blocks, and raises ProducerIdsUnavailable."""

    def claim_block(self) -> range: ...


class BackgroundWork(Protocol):
    """`barnabas.broker.slow_work.SlowWork`."""

    def submit(self, failed: Callable[[Exception], None], work: Callable[..., None], *args: Any) -> None: ...


class ProducerIds:
    """See the module."""

    def __init__(self, source: BlockSource, background: BackgroundWork) -> None:
        self._source = source
        self._background = background
        self._lock = threading.Lock()
        self._block = range(0)
        self._given = 0
        """How many of the block."""
        self._next_block = range(0)
        self._is_claiming = False
        # Invariant: nobody waits while there is an id to give, or while no claim is under way.
        self._waiting: list[Answer] = []

    def give(self, answer: Answer) -> None:
        """Answer once with a fresh id, or with -1 and an error: now, or when a block has been claimed."""
        with self._lock:
            found = self._take()
            is_refused = found is None and len(self._waiting) >= MAX_WAITING
            if found is None and not is_refused:
                self._waiting.append(answer)
            must_claim = not self._is_claiming and self._is_low
            self._is_claiming = self._is_claiming or must_claim
        if found is not None:
            answer(found, ErrorCode.NONE)
        elif is_refused:
            answer(NO_PRODUCER_ID, COME_AGAIN)
        if must_claim:
            try:
                self._background.submit(self._failed, self._claim)
            except SlowWorkRefused as error:
                logger.warning("no producer ids are claimed: %s", error)
                self._refuse(COME_AGAIN)

    @property
    def _is_low(self) -> bool:
        return not len(self._next_block) and self._given >= CLAIM_AT * len(self._block)

    def _take(self) -> ProducerId | None:
        if self._given == len(self._block):
            self._block, self._next_block, self._given = self._next_block, range(0), 0
        if not len(self._block):
            return None
        self._given += 1
        return ProducerId(self._block[self._given - 1])

    def _claim(self) -> None:
        is_done = False
        while not is_done:
            try:
                block = self._source.claim_block()
            except ProducerIdsUnavailable as error:
                logger.warning("no producer ids are claimed: %s", error)
                self._refuse(COME_AGAIN)
                return
            served = []
            with self._lock:
                self._next_block = block
                while self._waiting and (found := self._take()) is not None:
                    served.append((self._waiting.pop(0), found))
                is_done = not self._waiting
                self._is_claiming = not is_done
            for answer, producer_id in served:
                answer(producer_id, ErrorCode.NONE)

    def _failed(self, error: Exception) -> None:
        """The claim ended in a way that trying again does not cure; the slow work has told it."""
        self._refuse(ErrorCode.UNKNOWN_SERVER_ERROR)

    def _refuse(self, code: ErrorCode) -> None:
        with self._lock:
            self._is_claiming = False
            waiting, self._waiting = self._waiting, []
        for answer in waiting:
            answer(NO_PRODUCER_ID, code)
