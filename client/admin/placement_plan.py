"""Plans reassignments that move few bytes: pure functions over the replicas, their sizes and the racks.

`plan` keeps every replica that may stay. A replica that must be added goes to the allowed broker with the
fewest replicas, on a rack that the partition does not use yet if there is one. With `is_balanced` further
replicas move, the smallest first, from brokers with many replicas to brokers with few, until the counts
differ by one at most. The order of replicas is changed only to spread the preferred leaders, which moves no
bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from barnabas.protocol.errors import LocalError
from barnabas.protocol.ids import BrokerId, TopicPartition


class CannotPlan(LocalError):
    """The partitions cannot be placed as requested; the text says why."""


class Placement(NamedTuple):
    """The replicas of a partition, the preferred leader first, and the size of its log."""

    replicas: tuple[BrokerId, ...]
    size_bytes: int = 0


class Move(NamedTuple):
    """The replicas of a partition before and after; `copied_bytes` must be copied to the added ones."""

    before: tuple[BrokerId, ...]
    after: tuple[BrokerId, ...]
    copied_bytes: int


@dataclass
class _Board:
    """The replicas while they are planned; the counts follow from them."""

    replicas: dict[TopicPartition, list[BrokerId]]
    racks: Mapping[BrokerId, str | None]
    counts: Counter[BrokerId]

    def add(self, tp: TopicPartition, broker: BrokerId) -> None:
        self.replicas[tp].append(broker)
        self.counts[broker] += 1

    def remove(self, tp: TopicPartition, broker: BrokerId) -> None:
        self.replicas[tp].remove(broker)
        self.counts[broker] -= 1

    def may_move(self, tp: TopicPartition, source: BrokerId, target: BrokerId) -> bool:
        """Whether a replica can move there without sharing a rack that it does not share now."""
        replicas = self.replicas[tp]
        if source not in replicas or target in replicas:
            return False
        moved = [target if broker == source else broker for broker in replicas]
        return self.shared_racks(moved) <= self.shared_racks(replicas)

    def shared_racks(self, replicas: Iterable[BrokerId]) -> int:
        """How many replicas have a rack that an earlier one has, too."""
        named = [rack for broker in replicas if (rack := self.racks.get(broker)) is not None]
        return len(named) - len(set(named))


def plan(
    placements: Mapping[TopicPartition, Placement],
    allowed: Mapping[BrokerId, str | None],
    *,
    replication_factor: int | None = None,
    is_balanced: bool = True,
) -> dict[TopicPartition, Move]:
    """The partitions that change, with their new replicas on the allowed brokers (broker → rack or None).

    Raises CannotPlan.
    """
    if not allowed:
        raise CannotPlan("no broker is left that may have replicas")
    board = _Board({tp: [] for tp in placements}, allowed, Counter(dict.fromkeys(allowed, 0)))
    wanted: dict[TopicPartition, int] = {}
    for tp, placement in placements.items():
        wanted[tp] = len(placement.replicas) if replication_factor is None else replication_factor
        if not 1 <= wanted[tp] <= len(allowed):
            raise CannotPlan(
                f"{tp} shall have {wanted[tp]} replicas, and {len(allowed)} brokers may have them: "
                f"{sorted(allowed)}"
            )
        for broker in placement.replicas:
            if broker in allowed:
                board.add(tp, broker)
    # The largest first, while there is most choice.
    for tp in sorted(placements, key=lambda tp: (-placements[tp].size_bytes, tp)):
        while len(board.replicas[tp]) > wanted[tp]:
            board.remove(tp, _most_dispensable(board, tp))
        while len(board.replicas[tp]) < wanted[tp]:
            board.add(tp, _best_addition(board, tp))
    if is_balanced:
        _balance(board, placements)
    _spread_leaders(board, placements)
    return {
        tp: Move(placement.replicas, after, placement.size_bytes * len(set(after) - set(placement.replicas)))
        for tp, placement in sorted(placements.items())
        if (after := tuple(board.replicas[tp])) != placement.replicas
    }


def _most_dispensable(board: _Board, tp: TopicPartition) -> BrokerId:
    replicas = board.replicas[tp]

    def cost(broker: BrokerId) -> tuple[int, int, int]:
        others = [other for other in replicas if other != broker]
        return board.shared_racks(others), -board.counts[broker], -replicas.index(broker)

    return min(replicas, key=cost)


def _best_addition(board: _Board, tp: TopicPartition) -> BrokerId:
    replicas = board.replicas[tp]
    free = [broker for broker in board.counts if broker not in replicas]
    return min(
        free, key=lambda broker: (board.shared_racks([*replicas, broker]), board.counts[broker], broker)
    )


def _balance(board: _Board, placements: Mapping[TopicPartition, Placement]) -> None:
    """Move single replicas from crowded brokers while some other broker has at least two fewer."""
    by_size = sorted(placements, key=lambda tp: (placements[tp].size_bytes, tp))
    while True:
        order = sorted(board.counts, key=lambda broker: (board.counts[broker], broker))
        step = _balancing_step(board, placements, by_size, order)
        if step is None:
            return
        tp, source, target = step
        board.replicas[tp][board.replicas[tp].index(source)] = target
        board.counts[source] -= 1
        board.counts[target] += 1


def _balancing_step(
    board: _Board,
    placements: Mapping[TopicPartition, Placement],
    by_size: Sequence[TopicPartition],
    order: Sequence[BrokerId],
) -> tuple[TopicPartition, BrokerId, BrokerId] | None:
    for source in reversed(order):
        for target in order:
            if board.counts[source] - board.counts[target] < 2:
                break
            movable = [tp for tp in by_size if board.may_move(tp, source, target)]
            if movable:
                # A replica that is added in any case moves without further bytes.
                return min(movable, key=lambda tp: source in placements[tp].replicas), source, target
    return None


def _spread_leaders(board: _Board, placements: Mapping[TopicPartition, Placement]) -> None:
    """Choose the preferred leader of each partition that moves, and of others only if that balances them."""
    leads = Counter(dict.fromkeys(board.counts, 0))
    for replicas in board.replicas.values():
        leads[replicas[0]] += 1
    is_changed = True
    while is_changed:
        is_changed = False
        for tp in sorted(placements):
            replicas = board.replicas[tp]
            least = min(replicas, key=lambda broker: (leads[broker], replicas.index(broker)))
            if leads[replicas[0]] - leads[least] >= 2:
                leads[replicas[0]] -= 1
                leads[least] += 1
                replicas.remove(least)
                replicas.insert(0, least)
                is_changed = True
