"""A broker's membership of the cluster: it joins, stays registered across ZooKeeper sessions, and leaves.

`Membership.join` is called once, on the thread that starts the broker; `session_changed` on the session's
thread. After a session has ended, the broker stays fenced until the controller has sent the roles of the new
registration. So each registration needs a broker epoch of its own; see `_register`.

A thread checks the registration whenever its node changes. A registration that was deleted by hand fences the
broker as the end of the session does, and the session's thread registers it again.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.common.channel import Channel
from barnabas.common.security.channel_security import PLAINTEXT, ChannelSecurity
from barnabas.common.workers import Task
from barnabas.protocol.errors import ErrorCode, LocalError
from barnabas.protocol.ids import (
    NO_BROKER_EPOCH,
    NO_CONTROLLER_EPOCH,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    Endpoint,
)
from barnabas.protocol.messages.inter_broker import ControlledShutdownRequest
from barnabas.zookeeper.errors import SessionLost, ZooKeeperUnavailable
from barnabas.zookeeper.json_nodes import MalformedZnode
from barnabas.zookeeper.paths import broker_id
from barnabas.zookeeper.session import SessionEvent
from barnabas.zookeeper.store import ClusterStore
from barnabas.zookeeper.znodes import AdvertisedListener, BrokerRegistration

logger = logging.getLogger(__name__)

_RETRY_S: Final = 1.0


class Membership:
    def __init__(
        self, store: ClusterStore, replicas: ReplicaManager, *, on_fatal: Callable[[BaseException], None]
    ) -> None:
        self._store = store
        self._replicas = replicas
        self._registration: BrokerRegistration | None = None
        self._stopping = False
        self._wake = threading.Event()
        # The registration is gone, usually with its session; used by the session thread only.
        self._must_register = False
        self._ended_epoch = NO_BROKER_EPOCH
        # A change could not be written; used by the session thread only.
        self._must_update = False
        # The epoch of the present registration; written by `join`, then by the session thread only.
        self._epoch = NO_BROKER_EPOCH
        self._check = Task("registration", self._check_registration, on_fatal=on_fatal)
        replicas.roles.is_elected = self._is_elected

    def join(self, registration: BrokerRegistration) -> None:
        """Register. Raises BrokerIdTaken, ZooKeeperUnavailable or SessionLost."""
        self._registration = registration
        self._register(registration)

    def start(self) -> None:
        """Check the registration whenever its node changes."""
        self._check.start()

    def update(
        self,
        *,
        listeners: tuple[AdvertisedListener, ...] | None = None,
        principals: tuple[str, ...] | None = None,
    ) -> None:
        """Register other addresses or principals, now and in all later registrations. Any thread."""
        self._store.session.call_soon(partial(self._update, listeners, principals))

    def _update(
        self, listeners: tuple[AdvertisedListener, ...] | None, principals: tuple[str, ...] | None
    ) -> None:
        """On the session's thread, which also registers again."""
        former = self._registration
        if former is None:
            return
        registration = replace(
            former,
            listeners=former.listeners if listeners is None else listeners,
            principals=former.principals if principals is None else principals,
        )
        if registration == former:
            return
        self._registration = registration
        try:
            if not self._must_register and not self._store.update_registration(registration, self._epoch):
                logger.info("the change follows with the next registration")
        except (SessionLost, ZooKeeperUnavailable) as error:
            logger.warning("the change is not registered yet: %s", error)
            self._must_update = True

    def stop(self) -> None:
        """Ignore all later events of the session."""
        self._stopping = True
        self._wake.set()
        self._check.stop(0.0)

    def session_changed(self, event: SessionEvent) -> None:
        """Fence this broker while it has no session, because the others may count it as dead."""
        logger.info("ZooKeeper session: %s", event.name)
        if self._stopping:
            return
        if event is SessionEvent.SILENT:
            self._replicas.fence.silent("ZooKeeper has not answered for a session timeout")
        elif event is SessionEvent.EXPIRED:
            self._end_registration("the ZooKeeper session has expired")
        elif event in (SessionEvent.RENEWED, SessionEvent.RESUMED):
            self._replicas.fence.heard()
            if self._must_register:
                # Still fenced, until the controller has sent the roles again.
                self._register_again()
            elif self._must_update and self._registration is not None:
                self._must_update = not self._store.update_registration(self._registration, self._epoch)

    def _end_registration(self, reason: str) -> None:
        self._must_register = True
        self._ended_epoch = self._replicas.roles.broker_epoch
        self._replicas.roles.registration_lost(reason)

    def _check_registration(self) -> float | None:
        registration, epoch = self._registration, self._epoch
        if self._stopping or registration is None:
            return None
        try:
            is_registered = self._store.is_registered(registration.broker_id, epoch, self._changed)
        except SessionLost:
            # The registration in the next session wakes the task again.
            return None
        except ZooKeeperUnavailable as error:
            logger.warning("the registration of this broker is not checked: %s", error)
            return _RETRY_S
        except Exception:
            logger.warning("cannot check the registration of this broker", exc_info=True)
            return _RETRY_S
        if not is_registered:
            self._store.session.call_soon(partial(self._registration_gone, registration, epoch))
        return None

    def _changed(self, _: object) -> None:
        self._check.wake()

    def _registration_gone(self, registration: BrokerRegistration, epoch: BrokerEpoch) -> None:
        """On the session's thread; does nothing if the session has ended or the broker registered again."""
        if self._stopping or self._must_register or epoch != self._epoch:
            return
        path = broker_id(registration.broker_id)
        logger.critical("%s was deleted while its session is alive; this broker registers again", path)
        self._end_registration("the registration was deleted")
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
        self._replicas.roles.registered(broker_epoch, self._controller_epoch())
        self._check.wake()

    def _is_elected(self, controller_epoch: int) -> bool:
        """Whether ZooKeeper confirms that a controller of this epoch was elected.

        False if it cannot be asked; the controller sends its request again. On the thread of the controller's
        requests, which must not wait for ZooKeeper longer than necessary.
        """
        if not self._store.session.is_connected:
            logger.warning(
                "controller epoch %d is not confirmed: no connection to ZooKeeper", controller_epoch
            )
            return False
        try:
            return self._store.election.has_reached(controller_epoch)
        except MalformedZnode as error:
            logger.error("accepting controller epoch %d unconfirmed: %s", controller_epoch, error)
            return True
        except (SessionLost, ZooKeeperUnavailable) as error:
            logger.warning("controller epoch %d is not confirmed: %s", controller_epoch, error)
            return False

    def _controller_epoch(self) -> ControllerEpoch:
        try:
            return self._store.election.epoch()
        except MalformedZnode as error:
            logger.error("accepting the first controller that sends a request: %s", error)
            return NO_CONTROLLER_EPOCH


async def request_controlled_shutdown(
    broker_id: BrokerId,
    broker_epoch: BrokerEpoch,
    controller: Callable[[], Endpoint | None],
    *,
    max_retries: int,
    retry_backoff_ms: int,
    timeout_ms: int,
    security: ChannelSecurity = PLAINTEXT,
) -> bool:
    """Ask the controller to move this broker's leaderships away, with at most ``max_retries`` retries.

    Returns whether no leadership remains here. ``controller`` returns the controller's address.
    """
    for attempt in range(max_retries + 1):
        if attempt:
            await asyncio.sleep(retry_backoff_ms / 1000)
        endpoint = controller()
        if endpoint is None:
            logger.warning("controlled shutdown: the controller is unknown")
            continue
        channel = Channel(
            endpoint,
            client_id=f"broker-{broker_id}-shutdown",
            request_timeout_ms=timeout_ms,
            security=security,
        )
        try:
            response = await channel.request(
                ControlledShutdownRequest(broker_id=broker_id, broker_epoch=broker_epoch)
            )
        except LocalError as error:
            logger.warning("controlled shutdown: %s", error)
            continue
        finally:
            channel.close()
        remaining = response.remaining_partitions
        if response.error_code == ErrorCode.NONE and not remaining:
            return True
        logger.warning(
            "controlled shutdown: error %d, this broker still leads %d partitions",
            response.error_code,
            len(remaining),
        )
    return False
