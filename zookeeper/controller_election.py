"""Controller elections: the ephemeral ``/controller``, and ``/controller_epoch``, raised by each election.

Both change in one transaction, so each controller has an epoch that no earlier one had, even if somebody
deleted or corrupted the epoch by hand. Blocks; any thread; raises as the session does.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from kazoo.exceptions import NoNodeError

from barnabas.protocol.ids import NO_BROKER, BrokerId, ControllerEpoch
from barnabas.zookeeper import paths, znodes
from barnabas.zookeeper.controller_writer import ControllerWriter
from barnabas.zookeeper.json_nodes import MalformedZnode
from barnabas.zookeeper.requests import Transaction, Watch, delete, exists, first_error, get, retry_cas, sync
from barnabas.zookeeper.session import Outcome, ZooKeeperSession
from barnabas.zookeeper.znodes import ControllerNode

log = logging.getLogger("barnabas.zookeeper")


class ControllerElection:
    """``highest_written`` reads the highest controller epoch in the states of all partitions."""

    def __init__(self, session: ZooKeeperSession, highest_written: Callable[[], ControllerEpoch]) -> None:
        self._session = session
        self._highest_written = highest_written
        self._highest_seen = ControllerEpoch(0)

    def current(self, watch: Watch | None = None) -> ControllerNode | None:
        """The controller's node. The watch covers it and the epoch's node, even while they do not exist.

        An unreadable node names no broker, but still belongs to the session that created it.
        """
        both = (paths.CONTROLLER, paths.CONTROLLER_EPOCH)
        for outcome in self._session.run_all([exists(path, watch) for path in both]):
            outcome.get()
        node, epoch = self._session.run_all([get(path) for path in both])
        if not isinstance(epoch.error, NoNodeError):
            self._read_epoch(epoch.get()[0])
        if isinstance(node.error, NoNodeError):
            return None
        data, stat = node.get()
        try:
            return znodes.decode_controller(paths.CONTROLLER, data, stat.ephemeralOwner, stat.czxid)
        except MalformedZnode as error:
            log.error("%s", error)
            return ControllerNode(broker_id=NO_BROKER, session_id=stat.ephemeralOwner, czxid=stat.czxid)

    def epoch(self) -> ControllerEpoch:
        """The epoch of the last election, 0 before the first; ZooKeeper's server may be a moment behind."""
        return self._decoded(self._session.attempt(get(paths.CONTROLLER_EPOCH)))

    def has_reached(self, epoch: int) -> bool:
        """Whether an election has given a controller this epoch or a later one. Raises MalformedZnode."""
        if self.epoch() >= epoch:
            return True
        _, outcome = self._session.run_all([sync(paths.CONTROLLER_EPOCH), get(paths.CONTROLLER_EPOCH)])
        return self._decoded(outcome) >= epoch

    def _decoded(self, outcome: Outcome) -> ControllerEpoch:
        if isinstance(outcome.error, NoNodeError):
            return ControllerEpoch(0)
        return znodes.decode_epoch(paths.CONTROLLER_EPOCH, outcome.get()[0])

    def _read_epoch(self, data: bytes) -> ControllerEpoch | None:
        """Decode the epoch and remember the highest one; None if the data is no epoch."""
        try:
            epoch = znodes.decode_epoch(paths.CONTROLLER_EPOCH, data)
        except MalformedZnode as error:
            log.error("%s; the next controller continues from the highest known epoch", error)
            return None
        self._highest_seen = max(self._highest_seen, epoch)
        return epoch

    def run(self, broker: BrokerId) -> ControllerWriter | None:
        """Create ``/controller`` and raise the epoch; None if another broker is the controller.

        A node of our own session is removed first: its deletion failed when this broker resigned.
        """

        def attempt() -> tuple[ControllerWriter | None] | None:
            writer, node = self._attempt(broker)
            if writer is not None or (node is not None and node.session_id != self._session.session_id):
                return (writer,)
            if node is not None:
                self._session.attempt(delete(paths.CONTROLLER))
            return None

        return retry_cas(attempt, f"{paths.CONTROLLER} is created and deleted again and again")[0]

    def depose(
        self, dead: ControllerNode, broker: BrokerId, may_write: Callable[[], bool] = lambda: True
    ) -> ControllerWriter | None:
        """Become controller in place of a dead process, in one transaction.

        None if its node is gone, or if ``may_write``, asked between ZooKeeper's answers and the write, denies
        it. The check of the epoch's version ensures that no later controller's node is deleted.
        """
        return self._attempt(broker, dead, may_write)[0]

    def _attempt(
        self,
        broker: BrokerId,
        dead: ControllerNode | None = None,
        may_write: Callable[[], bool] = lambda: True,
    ) -> tuple[ControllerWriter | None, ControllerNode | None]:
        """One transaction. Returns the writer if it was carried out, else the present node."""
        epoch, version = self._epoch_and_version()
        if dead is not None and (self.current() != dead or not may_write()):
            return None, None
        writer = ControllerWriter(self._session, ControllerEpoch(epoch + 1), version + 1)
        node_data, epoch_data = znodes.encode_controller(broker, _now_ms()), znodes.encode_epoch(writer.epoch)
        transaction = Transaction() if dead is None else Transaction().delete(paths.CONTROLLER)
        transaction.create(paths.CONTROLLER, node_data, ephemeral=True)
        transaction.set(paths.CONTROLLER_EPOCH, epoch_data, version)
        outcome = self._session.attempt(transaction)
        if first_error(outcome.get()) is None:
            return writer, None
        node = self.current()
        is_ours = node is not None and node.session_id == self._session.session_id
        if is_ours and outcome.retried and self._epoch_and_version() == (writer.epoch, version + 1):
            return writer, node
        return None, node

    def _epoch_and_version(self) -> tuple[ControllerEpoch, int]:
        def attempt() -> tuple[ControllerEpoch, int] | None:
            outcome = self._session.attempt(get(paths.CONTROLLER_EPOCH))
            if not isinstance(outcome.error, NoNodeError):
                data, stat = outcome.get()
                epoch = self._read_epoch(data)
                return self._highest_epoch() if epoch is None else epoch, stat.version
            first = self._highest_epoch()
            if first > 0:
                log.error("%s was missing: recreated with epoch %d", paths.CONTROLLER_EPOCH, first)
            data = znodes.encode_epoch(first)
            self._session.attempt(Transaction().create(paths.CONTROLLER_EPOCH, data))
            return None

        return retry_cas(attempt, f"{paths.CONTROLLER_EPOCH} is deleted again and again")

    def _highest_epoch(self) -> ControllerEpoch:
        """The epoch must not fall, because brokers refuse controllers with a lower epoch."""
        return max(self._highest_seen, self._highest_written())


def _now_ms() -> int:
    """The wall time. Only people read this timestamp."""
    return int(time.time() * 1000)
