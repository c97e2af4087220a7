"""Keeps a broker registered across ZooKeeper sessions, and fences it while it is not.

Part of the composition root. `join` is called once, on the thread that starts the broker; `session_changed`
on the session's thread. After a session has ended, the broker stays fenced until the controller has sent the
new registration its roles, so each registration needs a broker epoch of its own: see `_register`.

A thread checks the registration whenever its node changes. A registration that was deleted by hand fences the
broker as the end of the session does, and the session's thread registers it again.
"""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import Final

from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.protocol.ids import NO_BROKER_EPOCH, NO_CONTROLLER_EPOCH, BrokerEpoch, ControllerEpoch
from barnabas.zookeeper.errors import SessionLost, ZooKeeperUnavailable
from barnabas.zookeeper.paths import broker_id
from barnabas.zookeeper.session import SessionEvent
from barnabas.zookeeper.store import ClusterStore
from barnabas.zookeeper.znodes import BrokerRegistration, MalformedZnode

logger = logging.getLogger(__name__)

_RETRY_S: Final = 1.0


class Membership:
    def __init__(self, store: ClusterStore, replicas: ReplicaManager) -> None:
        self._store = store
        self._replicas = replicas
        self._registration: BrokerRegistration | None = None
        self._stopping = False
        self._wake = threading.Event()
        # The registration is gone, usually with its session; used by the session thread only.
        self._must_register = False
        self._ended_epoch = NO_BROKER_EPOCH
        # The epoch of the present registration; written by `join`, then by the session thread only.
        self._epoch = NO_BROKER_EPOCH
        self._look = threading.Event()
        self._thread = threading.Thread(target=self._keep_looking, name="registration", daemon=True)

    def join(self, registration: BrokerRegistration) -> None:
        """Register. Raises BrokerIdTaken, ZooKeeperUnavailable or SessionLost."""
        self._registration = registration
        self._register(registration)
        self._store.session.threads.start(self._thread)

    def stop(self) -> None:
        """Ignore all later events of the session."""
        self._stopping = True
        self._wake.set()
        self._look.set()

    def session_changed(self, event: SessionEvent) -> None:
        """Fence this broker without a session, since the others may count it as dead."""
        logger.info("ZooKeeper session: %s", event.name)
        if self._stopping:
            return
        if event is SessionEvent.SILENT:
            self._replicas.fence.silent("ZooKeeper has not answered for a session timeout")
        elif event is SessionEvent.EXPIRED:
            self._end_life("the ZooKeeper session has expired")
        elif event in (SessionEvent.RENEWED, SessionEvent.RESUMED):
            self._replicas.fence.heard()
            if self._must_register:
                # Still fenced, until the controller has sent the roles again.
                self._register_again()

    def _end_life(self, reason: str) -> None:
        self._must_register = True
        self._ended_epoch = self._replicas.broker_epoch
        self._replicas.end_life(reason)

    def _keep_looking(self) -> None:
        while True:
            self._look.wait()
            self._look.clear()
            registration = self._registration
            if self._stopping or registration is None:
                return
            epoch = self._epoch
            try:
                is_there = self._store.is_registered(registration.broker_id, epoch, self._changed)
            except SessionLost:
                # The registration in the next session wakes this thread again.
                continue
            except Exception:
                logger.warning("cannot check the registration of this broker", exc_info=True)
                self._wake.wait(_RETRY_S)
                self._look.set()
                continue
            if not is_there:
                self._store.session.call_soon(partial(self._registration_gone, registration, epoch))

    def _changed(self, _: object) -> None:
        self._look.set()

    def _registration_gone(self, registration: BrokerRegistration, epoch: BrokerEpoch) -> None:
        """On the session's thread; does nothing if the session has ended or the broker registered again."""
        if self._stopping or self._must_register or epoch != self._epoch:
            return
        path = broker_id(registration.broker_id)
        logger.critical("%s was deleted while its session lives; this broker registers again", path)
        self._end_life("the registration was deleted")
        self._register_again()

    def _register_again(self) -> None:
        """Register in a new session. If that fails, the session's next event calls this again."""
        while not self._stopping and self._registration is not None:
            try:
                self._register(self._registration)
            except SessionLost as error:
                logger.warning("not registered, this session is over too: %s", error)
                return
            except ZooKeeperUnavailable as error:
                logger.warning("not registered yet: %s", error)
                if not self._store.session.is_connected:
                    return
            except Exception:
                # For example an unreadable node. Until that is repaired, this broker leads no partition.
                logger.critical("not registered; retry in %.0f s", _RETRY_S, exc_info=True)
                self._wake.wait(_RETRY_S)
            else:
                break
        self._must_register = False

    def _register(self, registration: BrokerRegistration) -> None:
        """Register, with a new broker epoch.

        If the session ends during a registration, the request is sent again in the next session, and the end
        of the former session is reported only after that. The node then exists, but this broker has fenced
        that registration, and the controller does not send it roles twice. So a new registration replaces it.
        """
        broker_epoch = self._store.register_broker(registration, newer_than=self._ended_epoch)
        self._epoch = broker_epoch
        # Read after the registration, so that requests of earlier controllers to it are refused.
        self._replicas.begin_life(broker_epoch, self._controller_epoch())
        self._look.set()

    def _controller_epoch(self) -> ControllerEpoch:
        try:
            return self._store.election.epoch()
        except MalformedZnode as error:
            logger.error("accepting the first controller that sends a request: %s", error)
            return NO_CONTROLLER_EPOCH
