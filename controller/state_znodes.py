"""`Leadership`: how the controller's state machines read and write partition states in ZooKeeper.

States are written by compare-and-set; the context gets every state that was read or written. A state that a
later controller has written raises ControllerMoved. Runs on the controller's event thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from barnabas.controller.context import ControllerContext, EpochLogger
from barnabas.protocol.ids import TopicPartition
from barnabas.zookeeper.controller_writer import ControllerWriter
from barnabas.zookeeper.errors import ControllerMoved
from barnabas.zookeeper.requests import retry_cas
from barnabas.zookeeper.store import ClusterStore
from barnabas.zookeeper.znodes import LeadershipState

Choose = Callable[[TopicPartition, LeadershipState], LeadershipState | None]
"""The next state, from the present one; None if the state shall stay."""


@dataclass(eq=False)
class Leadership:
    _context: ControllerContext
    _store: ClusterStore
    _writer: ControllerWriter

    def __post_init__(self) -> None:
        self.epoch = self._writer.epoch
        self.state_change_log = EpochLogger("barnabas.state_change", self.epoch)

    def read(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LeadershipState]:
        """Read the states again; partitions without a readable state are omitted."""
        states = self._store.leadership(partitions)
        self._take(states)
        return states

    def create(
        self, states: Mapping[TopicPartition, LeadershipState]
    ) -> tuple[dict[TopicPartition, LeadershipState], dict[TopicPartition, LeadershipState]]:
        """Write first states; returns the written states and the states that existed already."""
        updates = self._writer.create_leadership(states)
        self._take(updates.conflicts)
        self._context.leadership.update(updates.written)
        return updates.written, updates.conflicts

    def update(
        self, partitions: Collection[TopicPartition], choose: Choose
    ) -> dict[TopicPartition, LeadershipState]:
        """Write the chosen states; returns those written. A state that has changed is chosen again."""
        pending = [tp for tp in partitions if tp in self._context.leadership]
        written: dict[TopicPartition, LeadershipState] = {}

        def attempt() -> dict[TopicPartition, LeadershipState] | None:
            nonlocal pending
            chosen = {}
            for tp in pending:
                state = choose(tp, self._context.leadership[tp])
                if state is not None:
                    chosen[tp] = state
            if not chosen:
                return written
            updates = self._writer.update_leadership(chosen)
            written.update(updates.written)
            self._context.leadership.update(updates.written)
            self._take(updates.conflicts)
            pending = list(updates.conflicts)
            return None if pending else written

        return retry_cas(attempt, "leaders change their ISRs faster than the controller can")

    def _take(self, states: Mapping[TopicPartition, LeadershipState]) -> None:
        for tp, state in states.items():
            if state.controller_epoch > self.epoch:
                raise ControllerMoved(
                    f"{tp} was written by controller epoch {state.controller_epoch}, ours is {self.epoch}"
                )
        self._context.leadership.update(states)
