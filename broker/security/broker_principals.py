"""Which sessions are brokers', where the inter-broker listener authenticates and no ACLs decide.

Each broker registers the principal as which it logs in to others, in ``/brokers/ids``, where clients do not
write. `BrokerPrincipals` accepts this broker's own principal, the super users and the registered principals.
`RegisteredPrincipals` reads those before the first request, when the set of live brokers changes, and when an
unknown principal sends a request of brokers. That is refused meanwhile, and a broker sends it again. Brokers
of versions that register no principal have to be super users.

All but `load`, on any thread, without I/O; the registrations are read on a thread of its own.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from barnabas.broker.base.clocks import monotonic_ms
from barnabas.broker.base.limited_log import LimitedLog
from barnabas.broker.config.listener_config import UNSECURED_VALIDATOR, ListenerConfig
from barnabas.broker.config.settings import BrokerConfig
from barnabas.broker.security.inter_broker import own_login
from barnabas.broker.security.session import Session
from barnabas.common.security.channel_security import ChannelSecurity, TokenLogin
from barnabas.common.security.principal import Principal
from barnabas.common.security.sasl_client import OAUTHBEARER
from barnabas.common.security.tokens import claim_in
from barnabas.common.workers import Task
from barnabas.protocol.errors import InvalidConfiguration, LocalError, SaslAuthenticationFailed
from barnabas.protocol.ids import BrokerId

logger = logging.getLogger(__name__)

_INTERVAL_MS: Final = 1_000
"""Between two reads, independent of requests."""
_RETRY_S: Final = 5.0
_GRACE_MS: Final = 60_000
"""A principal stays accepted for this time after its registration: a lost session is soon replaced."""
_MAX_REFUSED: Final = 100
_STOP_S: Final = 2.0


def authenticates_brokers(config: BrokerConfig, listener: ListenerConfig) -> bool:
    """Whether each session of the inter-broker listener has a principal."""
    protocol = config.inter_broker_security_protocol
    return protocol.startswith("SASL_") or (protocol == "SSL" and listener.ssl_client_auth == "required")


def own_principal(
    config: BrokerConfig,
    listener: ListenerConfig,
    security: ChannelSecurity,
    certificate_name: Callable[[], str],
) -> Principal:
    """The principal as which this broker logs in to others that have the same settings.

    ``certificate_name`` is the principal's name by the certificate in use. Raises InvalidConfiguration, and
    LocalError if there is no token now, for which it may block.
    """
    if security.login is None:
        return Principal.user(certificate_name())
    module = own_login(config, listener)
    if not isinstance(security.login, TokenLogin):
        return Principal.user(module.username or "")
    claim = listener.of_mechanism(OAUTHBEARER, "sasl.oauthbearer.sub.claim.name")
    if listener.of_mechanism(OAUTHBEARER, "sasl.server.callback.handler.class") == UNSECURED_VALIDATOR:
        claim = module.options.get("unsecuredValidatorPrincipalClaimName", "sub")
    subject = claim_in(asyncio.run(security.login.token()), claim)
    if not isinstance(subject, str) or not subject.strip():
        raise SaslAuthenticationFailed(f"this broker's own token has no claim {claim}")
    return Principal.user(subject.strip())


class BrokerPrincipals:
    """Whether a session is a broker's.

    On other listeners brokers are super users alone, so that the inter-broker listener can be changed broker
    by broker: until then the others use the former one.
    """

    def __init__(
        self,
        brokers: Collection[Principal] | None = None,
        super_users: Collection[Principal] = (),
        on_unknown: Callable[[Session], object] = id,
    ) -> None:
        """None: the listener does not authenticate, and every session may be a broker's.

        ``on_unknown`` is called with sessions that are refused.
        """
        self._super_users = frozenset(super_users)
        self._on_unknown = on_unknown
        self.accepted: frozenset[Principal] | None = None
        self.registered: frozenset[Principal] = frozenset()
        if brokers is not None:
            self.accept(brokers)

    def accept(self, brokers: Iterable[Principal]) -> None:
        """These are the brokers from now on, beside the super users."""
        self.registered = frozenset(brokers)
        self.accepted = self._super_users | self.registered

    def is_super_user(self, session: Session) -> bool:
        return session.principal in self._super_users

    def is_registered(self, session: Session) -> bool:
        return session.principal in self.registered

    def is_broker(self, session: Session) -> bool:
        """Whether requests of brokers may come from this session."""
        if self.accepted is None or session.principal in self.accepted:
            return True
        self._on_unknown(session)
        return False


class RegisteredPrincipals:
    """`load` is called once, before `start`; then `brokers` accepts the registered principals."""

    def __init__(
        self,
        super_users: Iterable[Principal],
        *,
        own: Callable[[], Principal],
        publish: Callable[[Principal], object],
        read: Callable[[], Mapping[BrokerId, Iterable[str]]],
        now_ms: Callable[[], float] = monotonic_ms,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        """``own`` is of `own_principal`, ``read`` returns the principals that brokers have registered.

        ``publish`` registers this broker's own; it is called after `start`, when that has changed.
        """
        self._super_users = frozenset(super_users)
        self._read_own, self._publish, self._read = own, publish, read
        self._now_ms = now_ms
        self.own: Principal | None = None
        # When it is tried again after a failure, which may be of a server that has this broker's tokens.
        self._own_due_ms = -math.inf
        # Of the task alone: when each principal was last registered, and when the next one is forgotten.
        self._seen_ms: dict[Principal, float] = {}
        self._forgets_ms = math.inf
        self._read_ids: frozenset[BrokerId] = frozenset()
        self._next_read_ms = -math.inf
        self._must_read = False
        # Principals that were refused since the last read, with their hosts.
        self._refused: dict[Principal, str] = {}
        self.brokers = BrokerPrincipals((), self._super_users, self._note_refused)
        self._report = LimitedLog(logger, logging.WARNING, now_ms)
        self._task = Task("broker-principals", self._refresh, on_fatal=on_fatal)

    def load(self) -> None:
        """Read this broker's principal and those of the registered brokers. Raises LocalError."""
        try:
            self.own = self._read_own()
        except InvalidConfiguration:
            raise
        except LocalError as error:
            logger.warning("this broker cannot register its principal yet: %s", error)
        self._read_registrations()

    def start(self) -> None:
        self._task.start()
        if self.own is None:
            self._task.wake()

    def stop(self) -> None:
        self._task.stop(_STOP_S)

    @property
    def own_texts(self) -> tuple[str, ...]:
        """The principals that this broker registers; none while it does not know its own."""
        return () if self.own is None else (str(self.own),)

    def check_own(self) -> None:
        """Register this broker's own principal again if it has changed."""
        self._task.wake()

    def live_brokers(self, ids: Iterable[BrokerId]) -> None:
        """Read the registrations soon if these are not the brokers of the last read."""
        if frozenset(ids) != self._read_ids:
            self._read_soon()

    def _note_refused(self, session: Session) -> None:
        if len(self._refused) < _MAX_REFUSED:
            self._refused[session.principal] = session.host
        self._read_soon()

    def _read_soon(self) -> None:
        self._must_read = True
        self._task.wake()

    def _refresh(self) -> float | None:
        waits_s: list[float] = []
        now_ms = self._now_ms()
        if self._must_read or now_ms >= self._forgets_ms:
            if now_ms >= self._next_read_ms:
                waits_s += [] if self._try_to_read() else [_RETRY_S]
            else:
                waits_s.append((self._next_read_ms - now_ms) / 1000)
        if self._forgets_ms < math.inf:
            waits_s.append(max(0.0, self._forgets_ms - now_ms) / 1000)
        # Last, because it may wait for a server.
        if not self._refresh_own(now_ms):
            waits_s.append((self._own_due_ms - now_ms) / 1000)
        return min(waits_s, default=None)

    def _refresh_own(self, now_ms: float) -> bool:
        if now_ms < self._own_due_ms:
            return False
        try:
            own = self._read_own()
        except LocalError as error:
            logger.warning("this broker's own principal is not known now: %s", error)
            self._own_due_ms = now_ms + _RETRY_S * 1000
            return False
        if own != self.own:
            self.own = own
            self._accept()
            self._publish(own)
        return True

    def _try_to_read(self) -> bool:
        self._must_read = False
        self._next_read_ms = self._now_ms() + _INTERVAL_MS
        refused, self._refused = self._refused, {}
        try:
            self._read_registrations()
        except LocalError as error:
            logger.warning("the principals of the registered brokers cannot be read now: %s", error)
            self._must_read = True
            return False
        for principal, host in refused.items():
            if principal not in (self.brokers.accepted or ()):
                self._report(
                    "%s at %s sends requests of brokers, and no registered broker logs in so; if it is one "
                    "of a version that registers no principal, name it in super.users",
                    principal,
                    host,
                )
        return True

    def _read_registrations(self) -> None:
        registered = self._read()
        now_ms = self._now_ms()
        self._read_ids = frozenset(registered)
        present = {principal for texts in registered.values() for principal in _parsed(texts)}
        gone = {
            principal: seen_ms
            for principal, seen_ms in self._seen_ms.items()
            if principal not in present and now_ms - seen_ms < _GRACE_MS
        }
        self._forgets_ms = min(gone.values(), default=math.inf) + _GRACE_MS
        self._seen_ms = gone | dict.fromkeys(present, now_ms)
        self._accept()

    def _accept(self) -> None:
        own = () if self.own is None else (self.own,)
        self.brokers.accept((*self._seen_ms, *own))


def _parsed(texts: Iterable[str]) -> Iterable[Principal]:
    for text in texts:
        try:
            yield Principal.parse(text)
        except ValueError as error:
            logger.warning("a registered principal is ignored: %s", error)
