"""The controller's seat: the ephemeral ``/controller``, and ``/controller_epoch``, raised by each election.

Both change in one transaction, so that each controller has an epoch that no earlier one had, even if somebody
deleted or corrupted the epoch by hand. Blocks; any thread; raises as the session does.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final

from kazoo.exceptions import NoNodeError

from barnabas.protocol.ids import NO_BROKER, BrokerId, ControllerEpoch
from barnabas.zookeeper import paths, znodes
from barnabas.zookeeper.controller_writer import ControllerWriter, first_error
from barnabas.zookeeper.session import Start, ZooKeeperSession, ZooKeeperUnavailable
from barnabas.zookeeper.znodes import ControllerNode, MalformedZnode

log = logging.getLogger("barnabas.controller")

Watch = Callable[[Any], None]

_ROUNDS: Final = 10


class Seat:
    """``highest_written`` reads the highest controller epoch in the states of all partitions."""

    def __init__(self, session: ZooKeeperSession, highest_written: Callable[[], ControllerEpoch]) -> None:
        self._session = session
        self._highest_written = highest_written
        self._highest_seen = ControllerEpoch(0)

    def holder(self, watch: Watch | None = None) -> ControllerNode | None:
        """The controller's node. The watch covers it and the epoch's node, even while they do not exist.

        An unreadable node names no broker, but still belongs to the session that created it.
        """
        both = (paths.CONTROLLER, paths.CONTROLLER_EPOCH)
        for outcome in self._session.run_all([_exists(path, watch) for path in both]):
            outcome.get()
        node, epoch = self._session.run_all([_get(path) for path in both])
        if not isinstance(epoch.error, NoNodeError):
            self._see(epoch.get()[0])
        if isinstance(node.error, NoNodeError):
            return None
        data, stat = node.get()
        try:
            return znodes.decode_controller(paths.CONTROLLER, data, stat.ephemeralOwner, stat.czxid)
        except MalformedZnode as error:
            log.error("%s", error)
            return ControllerNode(broker_id=NO_BROKER, session_id=stat.ephemeralOwner, czxid=stat.czxid)

    def epoch(self) -> ControllerEpoch:
        """The epoch of the last election, 0 before the first."""
        found = self._session.attempt(_get(paths.CONTROLLER_EPOCH))
        if isinstance(found.error, NoNodeError):
            return ControllerEpoch(0)
        return znodes.decode_epoch(paths.CONTROLLER_EPOCH, found.get()[0])

    def _see(self, data: bytes) -> ControllerEpoch | None:
        """Decode the epoch and remember the highest one; None if the data is no epoch."""
        try:
            epoch = znodes.decode_epoch(paths.CONTROLLER_EPOCH, data)
        except MalformedZnode as error:
            log.error("%s; the next controller continues from the highest known epoch", error)
            return None
        self._highest_seen = max(self._highest_seen, epoch)
        return epoch

    def take(self, broker: BrokerId) -> ControllerWriter | None:
        """Stand for election: None when another broker is the controller.

        ``/controller`` is created and the epoch raised in one transaction. A node that our own session left
        behind (a resignation whose delete did not get through) is removed first.
        """
        for _ in range(_ROUNDS):
            epoch, version = self._epoch_and_version()
            fresh = ControllerEpoch(epoch + 1)
            error, retried = self._claim(broker, fresh, version)
            if error is None:
                return ControllerWriter(self._session, fresh, version + 1)
            holder = self.holder()
            if holder is None:
                continue
            if holder.session_id != self._session.session_id:
                return None
            if retried and self._epoch_and_version() == (fresh, version + 1):
                return ControllerWriter(self._session, fresh, version + 1)
            self._session.attempt(lambda zk: zk.delete_async(paths.CONTROLLER))
        return None

    def take_from(self, seen: ControllerNode, broker: BrokerId) -> ControllerWriter | None:
        """Take the seat from a dead process in one transaction; None if its node is gone.

        The check of the epoch's version ensures that no later controller's node is deleted.
        """
        epoch, version = self._epoch_and_version()
        fresh = ControllerEpoch(epoch + 1)
        if self.holder() != seen:
            return None
        error, retried = self._claim(broker, fresh, version, is_taken=True)
        if error is None:
            return ControllerWriter(self._session, fresh, version + 1)
        holder = self.holder()
        is_ours = holder is not None and holder.session_id == self._session.session_id
        if retried and is_ours and self._epoch_and_version() == (fresh, version + 1):
            return ControllerWriter(self._session, fresh, version + 1)
        return None

    def _claim(
        self, broker: BrokerId, epoch: ControllerEpoch, version: int, *, is_taken: bool = False
    ) -> tuple[Exception | None, bool]:
        data = znodes.encode_controller(broker, _now_ms())

        def start(zk: Any) -> Any:
            transaction = zk.transaction()
            if is_taken:
                transaction.delete(paths.CONTROLLER)
            transaction.create(paths.CONTROLLER, data, ephemeral=True)
            transaction.set_data(paths.CONTROLLER_EPOCH, znodes.encode_epoch(epoch), version)
            return transaction.commit_async()

        outcome = self._session.attempt(start)
        return first_error(outcome.get()), outcome.retried

    def _epoch_and_version(self) -> tuple[ControllerEpoch, int]:
        for _ in range(_ROUNDS):
            found = self._session.attempt(_get(paths.CONTROLLER_EPOCH))
            if not isinstance(found.error, NoNodeError):
                data, stat = found.get()
                epoch = self._see(data)
                return self._highest_known() if epoch is None else epoch, stat.version
            first = self._highest_known()
            if first > 0:
                log.error("%s was missing: recreated with epoch %d", paths.CONTROLLER_EPOCH, first)
            self._session.attempt(_create_epoch(first))
        raise ZooKeeperUnavailable(f"{paths.CONTROLLER_EPOCH} is deleted again and again")

    def _highest_known(self) -> ControllerEpoch:
        """The epoch must never fall, because brokers refuse controllers with a lower epoch than the last."""
        return max(self._highest_seen, self._highest_written())


def _now_ms() -> int:
    """Wall time, for a timestamp in a znode that only people read."""
    return int(time.time() * 1000)


def _exists(path: str, watch: Watch | None) -> Start:
    return lambda zk: zk.exists_async(path, watch)


def _get(path: str) -> Start:
    return lambda zk: zk.get_async(path)


def _create_epoch(epoch: ControllerEpoch) -> Start:
    return lambda zk: zk.create_async(paths.CONTROLLER_EPOCH, znodes.encode_epoch(epoch))
