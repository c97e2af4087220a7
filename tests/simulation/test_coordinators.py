"""Groups and transactions over several brokers in random histories, with all parts that take a share in them.

For the seeds that run see `kinds`; ``make soak SOAK_PROFILE="exactly once"`` runs many.
"""

import itertools
from collections.abc import Callable, Generator
from typing import Any, Final

import pytest

from barnabas.broker.coordinators.groups.rebalance import GroupState
from barnabas.broker.coordinators.transactions.state import TransactionState
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.transactions import EndTxnRequest
from tests.simulation.coordinated_world import CoordinatedWorld
from tests.simulation.exactly_once_clients import DATA, PROFILE, Kind, Producer, Reader
from tests.simulation.exactly_once_judge import Judge
from tests.simulation.kinds import run, seeds_of
from tests.simulation.transactional_client import Add, Init, Put, Sleep

_KINDS: Final = {"groups": (8, 1 / 25), "exactly once": (4, 1 / 50)}
"""Kind → the number of chunks, and the part of the usual number of histories."""


@pytest.mark.parametrize(
    ("kind", "chunk"),
    [
        pytest.param(kind, chunk, marks=[pytest.mark.long] if chunk else [])
        for kind, (count, _) in _KINDS.items()
        for chunk in range(count)
    ],
)
def test_groups_and_transactions_keep_their_promises(kind: str, chunk: int) -> None:
    count, part = _KINDS[kind]
    for seed in seeds_of(chunk, count, part):
        run(f"{kind}, pushes" if seed // count % 2 else kind, seed)


_REACHED: Final[dict[str, set[object]]] = {
    "groups": {
        *(set(GroupState) - {GroupState.DEAD}),
        ErrorCode.NONE,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.MEMBER_ID_REQUIRED,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    },
    "exactly once": {
        *(set(TransactionState) - {TransactionState.PREPARE_EPOCH_FENCE, TransactionState.DEAD}),
        *itertools.product((1, 2), (True, False)),
        *Judge.promises,
        ErrorCode.NONE,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    },
}


_FIRST: Final = {"groups": (33, 35, 49), "exactly once": range(38, 45)}
"""The seeds that are tried first: few and short histories have reached everything."""


@pytest.mark.long
@pytest.mark.parametrize("kind", _REACHED)
def test_the_histories_reach_these_states_and_errors(kind: str) -> None:
    missing = set(_REACHED[kind])
    for seed in (*_FIRST[kind], *range(20, 60)):
        missing -= run(kind, seed).judge.reached
        if not missing:
            return
    pytest.fail(f"more than 40 histories have not reached {missing}")


# ---- the torn transaction (KIP-890): version 1 of transactions has it, version 2 cures it

_LATE_MS: Final = 1_000


class Repeating(Producer):
    """Commits a record, then aborts two; every EndTxn arrives once more, amid the next transaction.

    For the rules alone see `test_torn_transaction_of_version_1`.
    """

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
        yield from self._end(is_commit)
        self.judge.told(attempt, is_commit)

    def _send(self, target: Any, body: Any, answered: Callable[[Any], None], api_version: int | None) -> None:
        super()._send(target, body, answered, api_version)
        if isinstance(body, EndTxnRequest):
            about = self.about()
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
    with CoordinatedWorld(0, PROFILE) as world:
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
        assert list(judge.faults_at_rest()) == []
        judge.check_end()
