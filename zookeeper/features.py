"""The finalised features in ZooKeeper: the levels that all brokers of the cluster use (KIP-584).

`FeatureStore` reads and writes ``/feature``, Kafka's znode, by compare-and-set. A write also requires that no
broker has registered since the registrations were read, so that no broker joins that lacks a level. The calls
block, may come from any thread but the client library's, and raise `ZooKeeperUnavailable` or `SessionLost`
unless they say otherwise.

`FeatureChanges` holds the present levels, which any thread may read, and follows the znode on a thread of its
own. While the znode is malformed, or names a level that this broker does not support, the former levels stay
in force. At start a malformed znode counts as one without levels, because every broker serves the clients of
level 0; a level that is not supported refuses the start.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Final

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from barnabas.common.workers import Task
from barnabas.protocol.errors import ErrorCode, LocalError, api_error
from barnabas.protocol.ids import BrokerId
from barnabas.zookeeper import paths, znodes
from barnabas.zookeeper.errors import SessionLost, ZooKeeperUnavailable, as_api_errors
from barnabas.zookeeper.json_nodes import MalformedZnode
from barnabas.zookeeper.requests import Transaction, Watch, exists, first_error, read, retry_cas
from barnabas.zookeeper.session import SessionEvent, ZooKeeperSession
from barnabas.zookeeper.znodes import BrokerRegistration, FinalizedFeatures, LevelRange

log = logging.getLogger("barnabas.zookeeper")

_RETRY_S: Final = 1.0
_STOP_S: Final = 2.0

Registrations = Mapping[BrokerId, BrokerRegistration]
Levels = Mapping[str, int]
Edit = Callable[[Levels, Registrations], Levels]


class UnsupportedFeatureLevel(LocalError):
    """The cluster uses a feature at a level that this broker does not have."""


class FeatureStore:
    """``brokers`` reads the registrations."""

    def __init__(self, session: ZooKeeperSession, brokers: Callable[[], Registrations]) -> None:
        self.session = session
        self._brokers = brokers

    def read(self, watch: Watch | None = None) -> FinalizedFeatures:
        """The levels in ZooKeeper; the watch also covers the creation of the node. Raises MalformedZnode."""
        if watch is not None:
            self.session.run(exists(paths.FEATURES, watch))
        node = read(self.session, [paths.FEATURES])
        if not node:
            return FinalizedFeatures()
        data, stat = node[paths.FEATURES]
        return znodes.decode_features(paths.FEATURES, data, stat.version)

    def change(self, edit: Edit) -> FinalizedFeatures:
        """Write what ``edit`` makes of the present levels; it is called again if others write meanwhile.

        Raises REQUEST_TIMED_OUT, FEATURE_UPDATE_FAILED for a malformed node, and what ``edit`` raises.
        """

        def attempt() -> FinalizedFeatures | None:
            # Read first, so that a registration after it makes the write fail.
            registered = self.session.run(exists(paths.BROKER_IDS))
            former = self._readable()
            levels = {name: level for name, level in edit(former.levels, self._brokers()).items() if level}
            if levels == former.levels:
                return former
            return self._replace(levels, former, -1 if registered is None else registered.version)

        with as_api_errors():
            return retry_cas(attempt, "features or registered brokers are changed by others again and again")

    def _replace(
        self, levels: Levels, former: FinalizedFeatures, registrations_version: int
    ) -> FinalizedFeatures | None:
        """The new version; None if the levels or the registrations have changed."""
        data = znodes.encode_features(levels)
        transaction = Transaction().check(paths.BROKER_IDS, registrations_version)
        if former.exists:
            transaction.set(paths.FEATURES, data, former.epoch)
        else:
            transaction.create(paths.FEATURES, data)
        written = FinalizedFeatures(levels, former.epoch + 1)
        outcome = self.session.attempt(transaction)
        error = first_error(outcome.get())
        if error is None:
            return written
        if not isinstance(error, BadVersionError | NodeExistsError | NoNodeError):
            raise error
        # It may be our own write: its answer was lost.
        return written if outcome.retried and self._readable() == written else None

    def _readable(self) -> FinalizedFeatures:
        try:
            return self.read()
        except MalformedZnode as error:
            raise api_error(ErrorCode.FEATURE_UPDATE_FAILED, str(error)) from error


class FeatureChanges:
    """`load` is called once, before `start`; then the thread reads the levels, and so does `refresh`."""

    def __init__(
        self,
        store: FeatureStore,
        *,
        supported: Mapping[str, LevelRange],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._store = store
        self.supported = supported
        self.current = FinalizedFeatures()
        # Held during a read, so that no earlier state replaces a later one.
        self._lock = threading.Lock()
        self._task = Task("feature-changes", self._catch_up, on_fatal=on_fatal)
        # Here, so that the loss of a session between `load` and `start` is noticed.
        store.session.add_listener(self._session_changed)

    def load(self) -> None:
        """Read the levels and begin to watch.

        Raises UnsupportedFeatureLevel, ZooKeeperUnavailable or SessionLost.
        """
        try:
            features = self._store.read(self._changed)
        except MalformedZnode as error:
            log.error("no feature is finalized until this is repaired: %s", error)
            return
        problem = self._unsupported(features)
        if problem is not None:
            raise UnsupportedFeatureLevel(
                f"{problem}; start a version that supports it, or lower the level with "
                "`barnabas features downgrade`"
            )
        self.current = features

    def start(self) -> None:
        self._task.start()

    def stop(self) -> None:
        """End the task; it is abandoned if ZooKeeper does not answer. Idempotent."""
        self._store.session.remove_listener(self._session_changed)
        self._task.stop(_STOP_S)

    def change(self, edit: Edit) -> None:
        """`FeatureStore.change`, whose result is current when this returns."""
        with as_api_errors():
            self._store.change(edit)
            self.refresh()

    def refresh(self) -> None:
        with self._lock:
            former = self.current
            try:
                features = self._store.read(self._changed)
            except MalformedZnode as error:
                log.error("keeping the features that were read before: %s", error)
                return
            problem = self._unsupported(features)
            if problem is not None:
                log.critical("keeping the features that were read before: %s", problem)
                return
            self.current = features
        if former.exists and not features.exists:
            log.error("%s was deleted; no feature is finalized", paths.FEATURES)
        elif features != former:
            log.info("finalized features, epoch %d: %s", features.epoch, dict(features.levels) or "none")

    def _unsupported(self, features: FinalizedFeatures) -> str | None:
        """The first level that this broker does not support, as a text."""
        for name, level in sorted(features.levels.items()):
            levels = self.supported.get(name)
            if levels is None or level not in levels:
                own = "does not have it" if levels is None else f"supports levels {levels}"
                return f"the cluster uses the feature {name} at level {level}; this broker {own}"
        return None

    def _session_changed(self, event: SessionEvent) -> None:
        if event in (SessionEvent.RENEWED, SessionEvent.RESUMED):
            self._task.wake()

    def _changed(self, _: object) -> None:
        self._task.wake()

    def _catch_up(self) -> float | None:
        try:
            self.refresh()
        except (ZooKeeperUnavailable, SessionLost) as error:
            log.warning("features cannot be read now: %s", error)
            return _RETRY_S
        return None
