"""The torn transaction (KIP-890) over several brokers: version 1 of transactions has it, version 2 cures it.

A copy of the EndTxn of one transaction is late, and arrives amid the next one of the producer. For the rules
alone see `test_torn_transaction_of_version_1`.
"""

from collections.abc import Callable, Generator
from typing import Any

import pytest

from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.transactions import EndTxnRequest
from tests.simulation.exactly_once_clients import Add, End, Init, Kind, Producer, Put, Reader
from tests.simulation.exactly_once_judge import Judge
from tests.simulation.exactly_once_world import DATA, ExactlyOnceWorld
from tests.simulation.process import Sleep

_LATE_MS = 1_000


class Repeating(Producer):
    """Commits a record, then aborts two; every EndTxn arrives once more, amid the next transaction."""

    def life(self) -> Generator[Any, Any, None]:
        yield from self._init(Init())
        yield from self._write_and_end(DATA[:1], is_commit=True)
        yield from self._write_and_end(DATA[:2], is_commit=False)

    def _write_and_end(
        self, names: tuple[TopicPartition, ...], *, is_commit: bool
    ) -> Generator[Any, Any, None]:
        attempt = self.attempt = self.judge.begin(self, len(names), (self._producer_id, self._epoch))
        for name in names:
            if self.version == 1:
                yield Add((name,))
            value, sequence = self.world.next_value, self._sequences.get(name, 0)
            self.world.next_value += 1
            yield Put(name, value, sequence)
            self._sequences[name] = sequence + 1
            attempt.acknowledged[name].append(value)
            if name is not names[-1]:
                yield Sleep(2 * _LATE_MS)
        attempt.is_end_sent, attempt.is_commit_sent = True, is_commit
        ended = yield End(is_commit)
        attempt.told = is_commit
        if self.version == 2:
            self._be(ended.producer_id, ended.producer_epoch)

    def _send(self, target: Any, body: Any, answered: Callable[[Any], None], api_version: int | None) -> None:
        super()._send(target, body, answered, api_version)
        if isinstance(body, EndTxnRequest):
            about = self.judge.about(self.attempt, self)
            self.world.at(
                _LATE_MS,
                lambda: self.world.request(target, body, lambda response: None, api_version, about),
            )


@pytest.mark.parametrize(
    ("kind", "committed"),
    [(Kind.FIRST, [0, 1]), (Kind.SECOND, [0])],
    ids=lambda value: value.value if isinstance(value, Kind) else "",
)
def test_a_transaction_is_torn_in_version_1_and_not_in_version_2(kind: Kind, committed: list[int]) -> None:
    with ExactlyOnceWorld(0) as world:
        world.end_faults()
        judge = world.judge = Judge(world)
        producer = Repeating(world, "p0", "x", kind)
        for tp in DATA:
            Reader(world, tp)
        world.run_until(20_000)
        # The first record of the aborted transaction is 1, the second is 2.
        assert [attempt.told for attempt in judge.attempts] == [True, False]
        assert (judge.seen[DATA[0]], judge.seen[DATA[1]]) == (committed, [])
        assert [attempt.is_hit for attempt in judge.attempts] == [False, kind is Kind.FIRST]
        assert producer.is_gone
        judge.check_at_rest()
        judge.check_end()
