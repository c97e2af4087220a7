"""A broker's registration: an ephemeral node whose czxid is the broker's epoch.

Every registration also raises the version of ``/brokers/ids`` itself, in the same transaction. So a write can
require that no broker has registered since a read: see `ClusterStore.update_isr`.

If the node exists already, there are four cases:

- It is ours, from a call whose answer was lost: the registration is complete.
- Another broker answers ApiVersions at an address that is not ours: the registration is refused at once.
- It is from an earlier run of this broker whose session has not expired: it names a log dir whose lock this
  process holds. So that run is over, and the node is removed.
- It belongs to another process: this broker waits until it vanishes, for at most a session timeout and two
  seconds. Equal addresses prove nothing, because of NAT.

Blocks; any thread that runs no event loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

from kazoo.exceptions import NodeExistsError, NoNodeError

from barnabas.common.channel import Channel
from barnabas.common.security.channel_security import PLAINTEXT, ChannelSecurity
from barnabas.protocol.errors import (
    ConnectionClosed,
    MalformedFrame,
    RequestTimedOutLocally,
    SaslAuthenticationFailed,
)
from barnabas.protocol.ids import NO_BROKER_EPOCH, BrokerEpoch, Endpoint
from barnabas.protocol.messages.api_versions import ApiVersionsRequest
from barnabas.zookeeper import paths, znodes
from barnabas.zookeeper.errors import BrokerIdTaken, ZooKeeperRolledBack
from barnabas.zookeeper.requests import Transaction, delete, first_error, get, recreate
from barnabas.zookeeper.session import ZooKeeperSession
from barnabas.zookeeper.znodes import AdvertisedListener, BrokerRegistration

log = logging.getLogger("barnabas.zookeeper")

_GRACE_MS: Final = 2_000
_PROBE_TIMEOUT_MS: Final = 1_000


Probe = Callable[[AdvertisedListener], bool]


def make_probe(security: ChannelSecurity = PLAINTEXT) -> Probe:
    """Whether a broker answers at a listener within a second; ``security`` is for those of its protocol."""

    def answers(listener: AdvertisedListener) -> bool:
        fits = listener.security_protocol == security.protocol
        return asyncio.run(_ask(listener.endpoint, security if fits else PLAINTEXT))

    return answers


async def _ask(endpoint: Endpoint, security: ChannelSecurity) -> bool:
    channel = Channel(
        endpoint,
        client_id="registration-probe",
        request_timeout_ms=_PROBE_TIMEOUT_MS,
        connect_timeout_ms=_PROBE_TIMEOUT_MS,
        security=security,
    )
    try:
        await channel.request(ApiVersionsRequest())
    except SaslAuthenticationFailed:
        # A broker refuses us in words.
        return True
    except (ConnectionClosed, RequestTimedOutLocally, MalformedFrame):
        return False
    finally:
        channel.close()
    return True


def register_broker(
    session: ZooKeeperSession,
    registration: BrokerRegistration,
    *,
    newer_than: BrokerEpoch = NO_BROKER_EPOCH,
    probe: Probe,
    grace_ms: int = _GRACE_MS,
) -> BrokerEpoch:
    """Create the node and return its czxid, which is above `newer_than`.

    Raises BrokerIdTaken, ZooKeeperUnavailable, SessionLost, and ZooKeeperRolledBack if the czxid stays below.
    """
    path = paths.broker_id(registration.broker_id)
    data = znodes.encode_broker(registration)
    register = Transaction().create(path, data, ephemeral=True).set(paths.BROKER_IDS, b"")
    deadline = session.threads.now_s() + (session.session_timeout_ms + grace_ms) / 1000
    while True:
        error = first_error(session.attempt(register).get())
        if isinstance(error, NoNodeError):
            recreate(session, [paths.BROKER_IDS])
            continue
        if error is not None and not isinstance(error, NodeExistsError):
            raise error
        changed = threading.Event()
        outcome = session.attempt(get(path, _setter(changed)))
        if isinstance(outcome.error, NoNodeError):
            continue
        present, stat = outcome.get()
        is_ours = stat.ephemeralOwner == session.session_id
        if is_ours and stat.czxid > newer_than:
            log.info("registered broker %s with epoch %s", registration.broker_id, stat.czxid)
            return BrokerEpoch(stat.czxid)
        other = znodes.decode_broker(path, present, registration.broker_id, stat.czxid)
        if not is_ours:
            _refuse_if_alive(other, registration, probe)
        if is_ours or _is_earlier_run(other, registration, newer_than):
            log.info("broker %s replaces its earlier registration", registration.broker_id)
            session.attempt(delete(path))
            if is_ours and error is None:
                # This call created it, so the next registration would not be newer.
                raise ZooKeeperRolledBack(
                    f"ZooKeeper registered broker {registration.broker_id} with epoch {stat.czxid}, after "
                    f"{newer_than} before, so its data are from an older backup; start this broker again"
                )
            continue
        left_s = deadline - session.threads.now_s()
        if left_s <= 0:
            raise BrokerIdTaken(
                f"broker id {registration.broker_id} is still registered by {_describe(other)} after "
                f"{session.session_timeout_ms + grace_ms} ms; this broker is {_describe(registration)}. "
                "Is another broker with this id running, hanging or unreachable from here?"
            )
        log.warning(
            "broker id %s is registered by %s; this broker, %s, waits for the end of that session",
            registration.broker_id,
            _describe(other),
            _describe(registration),
        )
        session.threads.wait(changed, left_s)


def _setter(event: threading.Event) -> Callable[[Any], None]:
    return lambda _: event.set()


def _is_earlier_run(other: BrokerRegistration, ours: BrokerRegistration, newer_than: BrokerEpoch) -> bool:
    """Whether it names a log dir that this process has locked, so that its own process is dead.

    A registration newer than ours does not count: only a broker on a copy of the folder can make one.
    """
    is_earlier = newer_than == NO_BROKER_EPOCH or other.broker_epoch <= newer_than
    return is_earlier and not set(ours.directories).isdisjoint(other.directories)


def _refuse_if_alive(other: BrokerRegistration, ours: BrokerRegistration, probe: Probe) -> None:
    own: Iterable[Endpoint] = [listener.endpoint for listener in ours.listeners]
    for listener in other.listeners:
        # Only this process can answer at its own address.
        if listener.endpoint in own:
            continue
        if probe(listener):
            raise BrokerIdTaken(f"broker id {ours.broker_id} is already taken by {listener.endpoint}")


def _describe(registration: BrokerRegistration) -> str:
    addresses = ", ".join(str(listener.endpoint) for listener in registration.listeners)
    directories = ", ".join(registration.directories) or "an unknown directory"
    return f"{addresses} (directory.id {directories})"
