"""The authentication of one connection by SASL: which messages may come next, and the peer's principal.

`Authenticator` is a state machine without I/O: tokens in, tokens out, time as an argument. A message that
the state does not allow raises `AuthenticationFailed`, and the connection must be closed. A session may end
before its connection (KIP-368): the peer authenticates once more, by the same mechanism and with the same
principal.
An authenticator is used by one thread at a time, as its session is.

Source: Kafka's `SaslServerAuthenticator`, KIP-43, KIP-152, KIP-368.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple, Protocol

from barnabas.broker.config.listener_config import KNOWN_MECHANISMS
from barnabas.broker.security.session import NEVER_NS, Session
from barnabas.common.security.principal import Principal
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.schema import ApiKey

_MIN_REAUTHENTICATION_NS: Final = 1_000_000_000
"""A peer that authenticates again sooner is refused, as in Kafka."""


class AuthenticationFailed(Exception):
    """The peer is refused. The text goes to the peer and into the log: it has no secret.

    ``code`` is that of an answer, if the request can be answered.
    """

    def __init__(self, text: str, code: ErrorCode = ErrorCode.SASL_AUTHENTICATION_FAILED) -> None:
        super().__init__(text)
        self.code = code


class IllegalHandshake(Exception):
    """A handshake of a peer that is authenticated and may not be so again now: it is told, and may go on."""


class SessionExpired(Exception):
    """The peer's session has ended, and it asks for something else than a handshake."""


class IllegalTransition(RuntimeError):
    """A bug: it ends the connection, and not the broker, because a peer may have caused it."""


class InvalidCredentials(AuthenticationFailed):
    """A mechanism refuses a peer and tells nobody why: the reason would help to guess names."""

    def __init__(self) -> None:
        super().__init__("invalid credentials")


class Identity(NamedTuple):
    """Whom a mechanism has authenticated, and until when in ms of the wall clock; None for ever."""

    name: str
    expires_at_ms: int | None = None


class SaslServer(Protocol):
    """The broker's side of one exchange. Further tokens after the end are not passed to it."""

    @property
    def identity(self) -> Identity | None:
        """None until the exchange has succeeded."""
        ...

    def evaluate(self, token: bytes) -> bytes:
        """The answer to the peer's token. Raises AuthenticationFailed."""
        ...


@dataclass(frozen=True, slots=True)
class Mechanism:
    """One mechanism that a listener offers."""

    make_server: Callable[[], SaslServer]
    max_reauth_ms: int = 0
    """How long a session lasts at most; 0 for no limit (`connections.max.reauth.ms`)."""


class State(Enum):
    INITIAL = auto()
    """Nothing has come."""
    VERSIONS_ANSWERED = auto()
    TOKENS = auto()
    """After SaslHandshake version 1: tokens come in SaslAuthenticate requests."""
    RAW_TOKENS = auto()
    """After SaslHandshake version 0: each frame is a token and nothing else."""
    COMPLETE = auto()
    WRONG_MECHANISM = auto()
    """The peer wants to authenticate again by another mechanism: its next message fails, as in Kafka."""
    FAILED = auto()


class Event(Enum):
    VERSIONS = auto()
    HANDSHAKE = auto()
    RAW_HANDSHAKE = auto()
    OTHER_MECHANISM = auto()
    SUCCESS = auto()
    FAILURE = auto()


_S = State
_E = Event
_TRANSITIONS: Final[Mapping[State, Mapping[Event, State]]] = {
    _S.INITIAL: {
        _E.VERSIONS: _S.VERSIONS_ANSWERED,
        _E.HANDSHAKE: _S.TOKENS,
        _E.RAW_HANDSHAKE: _S.RAW_TOKENS,
        _E.FAILURE: _S.FAILED,
    },
    _S.VERSIONS_ANSWERED: {
        _E.HANDSHAKE: _S.TOKENS,
        _E.RAW_HANDSHAKE: _S.RAW_TOKENS,
        _E.FAILURE: _S.FAILED,
    },
    _S.TOKENS: {_E.SUCCESS: _S.COMPLETE, _E.FAILURE: _S.FAILED},
    _S.RAW_TOKENS: {_E.SUCCESS: _S.COMPLETE, _E.FAILURE: _S.FAILED},
    _S.COMPLETE: {
        _E.HANDSHAKE: _S.TOKENS,
        _E.RAW_HANDSHAKE: _S.RAW_TOKENS,
        _E.OTHER_MECHANISM: _S.WRONG_MECHANISM,
        _E.FAILURE: _S.FAILED,
    },
    _S.WRONG_MECHANISM: {_E.FAILURE: _S.FAILED},
    _S.FAILED: {_E.FAILURE: _S.FAILED},
}
"""State → event → next state; another event is a bug."""

ADMITTED: Final[Mapping[State, frozenset[ApiKey]]] = {
    _S.INITIAL: frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE}),
    _S.VERSIONS_ANSWERED: frozenset({ApiKey.SASL_HANDSHAKE}),
    _S.TOKENS: frozenset({ApiKey.SASL_AUTHENTICATE}),
    _S.RAW_TOKENS: frozenset(),
    _S.COMPLETE: frozenset(ApiKey),
    _S.WRONG_MECHANISM: frozenset(),
    _S.FAILED: frozenset(),
}
"""State → the APIs whose requests are decoded at all. With raw tokens a frame is no request."""


class Authenticator:
    """Made with the session of a connection on a SASL listener."""

    def __init__(
        self, session: Session, mechanisms: Mapping[str, Mechanism], max_receive_bytes: int = 65_536
    ) -> None:
        self.state = State.INITIAL
        self.max_receive_bytes = max_receive_bytes
        """Of one frame before the first success, and of one token later."""
        # The session owns it. With a cycle, the collector would free thousands of connections at once.
        self._session = weakref.proxy(session)
        self._mechanisms = mechanisms
        self._mechanism = ""
        # Why the next message of the peer fails.
        self._other_mechanism = ""
        self._server: SaslServer | None = None
        self.has_succeeded = False
        """True from the first success on."""
        self._reauthenticates = False
        self._last_reauthentication_ns = 0

    @property
    def mechanisms(self) -> list[str]:
        """The mechanisms that the listener offers."""
        return list(self._mechanisms)

    @property
    def name(self) -> str:
        """The name of the exchange in logs and answers."""
        return "re-authentication" if self._reauthenticates else "authentication"

    def check(self, api_key: ApiKey, now_ns: int) -> None:
        """Whether a request of this API may be decoded and served now. Raises AuthenticationFailed."""
        state = self.state
        if state is State.COMPLETE and now_ns >= self._session.expires_at_ns:
            if api_key is not ApiKey.SASL_HANDSHAKE:
                raise SessionExpired
        elif api_key not in ADMITTED[state]:
            during = "authentication" if state is State.TOKENS else "handshake"
            text = f"Unexpected Kafka request of type {api_key.name} during SASL {during}."
            raise self.failure(self._other_mechanism or text, ErrorCode.ILLEGAL_SASL_STATE)

    def versions_answered(self) -> None:
        """ApiVersions was answered; a peer that is not authenticated may not ask again."""
        if self.state is State.INITIAL:
            self._move(Event.VERSIONS)

    def handshake(self, mechanism: str, *, has_raw_tokens: bool, now_ns: int) -> None:
        """Begin an exchange. Raises AuthenticationFailed, or IllegalHandshake, after which all goes on."""
        if self.state is State.COMPLETE:
            self._begin_again(now_ns)
        offered = self._mechanisms.get(mechanism)
        if offered is None:
            # A name that the peer made up does not go into the log.
            named = mechanism if mechanism in KNOWN_MECHANISMS else "of another name"
            raise self.failure(f"Unsupported SASL mechanism {named}", ErrorCode.UNSUPPORTED_SASL_MECHANISM)
        if self._reauthenticates and mechanism != self._mechanism:
            self._move(Event.OTHER_MECHANISM)
            self._other_mechanism = (
                f"SASL mechanism '{mechanism}' requested by client is not supported for re-authentication of "
                f"mechanism '{self._mechanism}'"
            )
            return
        self._mechanism, self._server = mechanism, offered.make_server()
        self._move(Event.RAW_HANDSHAKE if has_raw_tokens else Event.HANDSHAKE)

    def _begin_again(self, now_ns: int) -> None:
        session, last_ns = self._session, self._last_reauthentication_ns
        if session.expires_at_ns == NEVER_NS or (last_ns and now_ns - last_ns < _MIN_REAUTHENTICATION_NS):
            raise IllegalHandshake
        self._last_reauthentication_ns = now_ns
        self._reauthenticates = True
        # Every request has to pass `check` until the exchange has succeeded.
        session.expires_at_ns = 0

    def token(self, token: bytes, now_ns: int, now_ms: int) -> tuple[bytes, int]:
        """The answer to a token, and the lifetime of the session in ms: 0 before the end, and for no limit.

        After the last token the session has the peer's principal. Raises AuthenticationFailed.
        """
        server = self._server
        if server is None:
            raise IllegalTransition(f"a token in state {self.state.name} of an authentication")
        if len(token) > self.max_receive_bytes:
            raise self.failure(f"a token of {len(token)} bytes; at most {self.max_receive_bytes} are allowed")
        try:
            answer = server.evaluate(token)
        except InvalidCredentials:
            raise self.failure(
                f"Authentication failed during {self.name} due to invalid credentials with SASL mechanism "
                f"{self._mechanism}"
            ) from None
        except AuthenticationFailed as refusal:
            raise self.failure(str(refusal), refusal.code) from None
        except BaseException:
            self._move(Event.FAILURE)
            raise
        if server.identity is None:
            return answer, 0
        lifetime_ms = self._succeed(server.identity, now_ns, now_ms)
        self._server = None
        return answer, lifetime_ms

    def _succeed(self, identity: Identity, now_ns: int, now_ms: int) -> int:
        session, principal = self._session, Principal.user(identity.name)
        if self._reauthenticates and principal != session.principal:
            former = session.principal
            raise self.failure(
                f"Cannot change principals during re-authentication from {former.type}.{former.name}: "
                f"{principal.type}.{principal.name}"
            )
        limits = [self._mechanisms[self._mechanism].max_reauth_ms or NEVER_NS]
        if identity.expires_at_ms is not None:
            limits.append(max(0, identity.expires_at_ms - now_ms))
        lifetime_ms = min(limits)
        is_limited = lifetime_ms < NEVER_NS // 1_000_000
        self._move(Event.SUCCESS)
        self.has_succeeded = True
        session.authenticated(principal, now_ns + lifetime_ms * 1_000_000 if is_limited else NEVER_NS)
        return lifetime_ms if is_limited else 0

    def failure(
        self, text: str, code: ErrorCode = ErrorCode.SASL_AUTHENTICATION_FAILED
    ) -> AuthenticationFailed:
        """The peer is refused for this reason; the caller raises the returned error."""
        self._move(Event.FAILURE)
        self._server = None
        return AuthenticationFailed(text, code)

    def _move(self, event: Event) -> None:
        after = _TRANSITIONS[self.state].get(event)
        if after is None:
            raise IllegalTransition(f"{event.name} in state {self.state.name} of an authentication")
        self.state = after
