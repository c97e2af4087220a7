"""The machine of one authentication: the table of its states, sessions that end, and the texts for peers."""

from itertools import product

import pytest

from barnabas.broker.security.authentication import (
    ADMITTED,
    AuthenticationFailed,
    Authenticator,
    Identity,
    IllegalHandshake,
    IllegalTransition,
    InvalidCredentials,
    Mechanism,
    SessionExpired,
    State,
)
from barnabas.broker.security.session import NEVER_NS, Session
from barnabas.common.security.principal import ANONYMOUS, Principal
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.schema import ApiKey
from tests.support.cases import each

MS = 1_000_000


class Talk:
    """A mechanism whose peer says its name: ``name``, or ``name until-ms``; and fails on other words."""

    def __init__(self) -> None:
        self.identity: Identity | None = None

    def evaluate(self, token: bytes) -> bytes:
        if token == b"more":
            return b"go on"
        if token == b"wrong":
            raise InvalidCredentials
        if token == b"refused":
            raise AuthenticationFailed("no such token")
        if token == b"broken":
            raise ZeroDivisionError
        name, _, until = token.decode().partition(" ")
        self.identity = Identity(name, int(until) if until else None)
        return b"welcome"


class Peer:
    def __init__(self, max_reauth_ms: int = 0) -> None:
        self.session = Session("127.0.0.1")
        mechanisms = {"TALK": Mechanism(Talk, max_reauth_ms), "OTHER": Mechanism(Talk, max_reauth_ms)}
        self.authenticator = Authenticator(self.session, mechanisms)
        self.session.must_authenticate(self.authenticator)
        self.now_ns = 5_000 * MS

    def ask(self, api_key: ApiKey) -> None:
        self.authenticator.check(api_key, self.now_ns)

    def handshake(self, mechanism: str = "TALK", *, has_raw_tokens: bool = False) -> None:
        self.authenticator.handshake(mechanism, has_raw_tokens=has_raw_tokens, now_ns=self.now_ns)

    def token(self, token: bytes) -> tuple[bytes, int]:
        return self.authenticator.token(token, self.now_ns, now_ms=1_000)

    def into(self, state: State) -> "Peer":
        """Bring it into a state."""
        if state is State.VERSIONS_ANSWERED:
            self.authenticator.versions_answered()
        elif state is not State.INITIAL:
            self.handshake(has_raw_tokens=state is State.RAW_TOKENS)
            if state is State.COMPLETE:
                self.token(b"alice")
            elif state is State.FAILED:
                with pytest.raises(AuthenticationFailed):
                    self.token(b"wrong")
            elif state is State.WRONG_MECHANISM:
                self.token(b"alice 9000")
                self.handshake("OTHER")
        assert self.authenticator.state is state
        return self


def test_a_peer_is_who_it_says_after_the_last_token() -> None:
    peer = Peer()
    calls = []
    peer.session.on_authenticated = lambda: calls.append(peer.session.principal)
    peer.handshake()
    assert peer.token(b"more") == (b"go on", 0)
    assert (peer.session.principal, peer.session.expires_at_ns) == (ANONYMOUS, 0)
    assert peer.token(b"alice") == (b"welcome", 0)
    assert peer.session.principal == Principal.user("alice")
    assert peer.session.expires_at_ns == NEVER_NS
    assert calls == [Principal.user("alice")]


_ALLOWED = {
    State.INITIAL: {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE},
    State.VERSIONS_ANSWERED: {ApiKey.SASL_HANDSHAKE},
    State.TOKENS: {ApiKey.SASL_AUTHENTICATE},
    State.COMPLETE: set(ApiKey),
}


@each(product(State, ApiKey), name=lambda case: f"{case[0].name}-{case[1].name}")
def test_each_state_lets_its_own_requests_through(case: tuple[State, ApiKey]) -> None:
    state, api_key = case
    peer = Peer().into(state)
    if api_key in _ALLOWED.get(state, set()):
        peer.ask(api_key)
        assert peer.authenticator.state is state
        return
    with pytest.raises(AuthenticationFailed) as refused:
        peer.ask(api_key)
    assert peer.authenticator.state is State.FAILED
    assert refused.value.code is ErrorCode.ILLEGAL_SASL_STATE
    assert peer.session.principal == (
        Principal.user("alice") if state is State.WRONG_MECHANISM else ANONYMOUS
    )


def test_what_is_refused_is_named() -> None:
    for state, text in (
        (State.INITIAL, "Unexpected Kafka request of type PRODUCE during SASL handshake."),
        (State.TOKENS, "Unexpected Kafka request of type PRODUCE during SASL authentication."),
        (
            State.WRONG_MECHANISM,
            "SASL mechanism 'OTHER' requested by client is not supported for re-authentication of "
            "mechanism 'TALK'",
        ),
    ):
        with pytest.raises(AuthenticationFailed) as refused:
            Peer().into(state).ask(ApiKey.PRODUCE)
        assert str(refused.value) == text


@each([State.TOKENS, State.RAW_TOKENS, State.FAILED, State.WRONG_MECHANISM], name=lambda state: state.name)
def test_an_illegal_transition_raises_and_changes_nothing(state: State) -> None:
    peer = Peer().into(state)
    with pytest.raises(IllegalTransition):
        peer.handshake()
    assert peer.authenticator.state is state


def test_tokens_without_a_handshake_are_a_bug_of_the_caller() -> None:
    for state in (State.INITIAL, State.VERSIONS_ANSWERED, State.COMPLETE, State.FAILED):
        peer = Peer().into(state)
        with pytest.raises(IllegalTransition):
            peer.token(b"mallory")
        assert peer.session.principal != Principal.user("mallory")


@pytest.mark.parametrize(("mechanism", "named"), [("GSSAPI", "GSSAPI"), ("X\nINFO", "of another name")])
def test_a_mechanism_that_is_not_enabled_is_refused(mechanism: str, named: str) -> None:
    peer = Peer()
    with pytest.raises(AuthenticationFailed, match=f"Unsupported SASL mechanism {named}$") as refused:
        peer.handshake(mechanism)
    assert refused.value.code is ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert peer.authenticator.state is State.FAILED
    assert peer.authenticator.mechanisms == ["TALK", "OTHER"]


def test_a_mechanism_that_refuses_ends_it() -> None:
    for token, text in (
        (
            b"wrong",
            "Authentication failed during authentication due to invalid credentials with SASL mechanism TALK",
        ),
        (b"refused", "no such token"),
    ):
        peer = Peer().into(State.TOKENS)
        with pytest.raises(AuthenticationFailed) as refused:
            peer.token(token)
        assert str(refused.value) == text
        assert refused.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED
        assert peer.authenticator.state is State.FAILED
    peer = Peer().into(State.TOKENS)
    with pytest.raises(ZeroDivisionError):
        peer.token(b"broken")
    assert peer.authenticator.state is State.FAILED


@each(
    [
        # connections.max.reauth.ms, the token's own end, the lifetime in the answer
        (0, "", 0),
        (600, "", 600),
        (0, " 1500", 500),
        (600, " 1500", 500),
        (400, " 1500", 400),
        (400, " 900", 0),
    ]
)
def test_a_session_lasts_as_long_as_the_setting_and_the_token(case: tuple[int, str, int]) -> None:
    max_reauth_ms, until, lifetime_ms = case
    peer = Peer(max_reauth_ms).into(State.TOKENS)
    assert peer.token(f"alice{until}".encode()) == (b"welcome", lifetime_ms)
    is_limited = bool(max_reauth_ms or until)
    assert peer.session.expires_at_ns == (peer.now_ns + lifetime_ms * MS if is_limited else NEVER_NS)


def test_after_the_end_of_a_session_only_a_handshake_comes_through() -> None:
    peer = Peer(600).into(State.COMPLETE)
    peer.now_ns += 599 * MS
    peer.ask(ApiKey.PRODUCE)
    peer.now_ns += 1 * MS
    for api_key in set(ApiKey) - {ApiKey.SASL_HANDSHAKE}:
        with pytest.raises(SessionExpired):
            peer.ask(api_key)
    peer.ask(ApiKey.SASL_HANDSHAKE)
    peer.handshake()
    for api_key in (ApiKey.PRODUCE, ApiKey.API_VERSIONS):
        other = Peer(600).into(State.COMPLETE)
        other.handshake()
        with pytest.raises(AuthenticationFailed):
            other.ask(api_key)
    assert peer.token(b"alice") == (b"welcome", 600)
    peer.ask(ApiKey.PRODUCE)


def test_a_peer_authenticates_again_before_its_session_ends_and_no_request_passes_meanwhile() -> None:
    peer = Peer(60_000).into(State.COMPLETE)
    peer.now_ns += 30_000 * MS
    peer.handshake()
    assert peer.authenticator.name == "re-authentication"
    assert peer.now_ns >= peer.session.expires_at_ns, "requests must be checked"
    assert peer.token(b"more") == (b"go on", 0)
    assert peer.token(b"alice") == (b"welcome", 60_000)
    assert peer.session.expires_at_ns == peer.now_ns + 60_000 * MS


def test_a_peer_stays_who_it_was() -> None:
    peer = Peer(60_000).into(State.COMPLETE)
    peer.handshake()
    with pytest.raises(AuthenticationFailed) as refused:
        peer.token(b"bob")
    assert str(refused.value) == (
        "Cannot change principals during re-authentication from User.alice: User.bob"
    )
    assert peer.session.principal == Principal.user("alice")
    assert peer.authenticator.state is State.FAILED


def test_a_later_token_is_not_longer_than_the_first_may_be() -> None:
    """Before the first success the frame is bounded, and later by `socket.request.max.bytes` alone."""
    peer = Peer(60_000).into(State.COMPLETE)
    peer.handshake()
    with pytest.raises(AuthenticationFailed, match="65537 bytes; at most 65536"):
        peer.token(b"a" * 65_537)
    assert peer.authenticator.state is State.FAILED


def test_credentials_of_a_second_authentication_are_called_so() -> None:
    peer = Peer(60_000).into(State.COMPLETE)
    peer.handshake()
    with pytest.raises(AuthenticationFailed, match="during re-authentication due to"):
        peer.token(b"wrong")


def test_a_handshake_that_nobody_asked_for_is_answered_and_changes_nothing() -> None:
    endless = Peer().into(State.COMPLETE)
    with pytest.raises(IllegalHandshake):
        endless.handshake()
    assert endless.authenticator.state is State.COMPLETE
    assert endless.session.expires_at_ns == NEVER_NS
    # More than one in a second.
    peer = Peer(60_000).into(State.COMPLETE)
    peer.handshake()
    peer.token(b"alice")
    peer.now_ns += 999 * MS
    with pytest.raises(IllegalHandshake):
        peer.handshake()
    peer.now_ns += 1 * MS
    peer.handshake()


def test_the_table_of_requests_is_kafkas() -> None:
    """Before authentication nothing is decoded but the three APIs of the handshake."""
    handshake = {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
    admitted = set().union(*(keys for state, keys in ADMITTED.items() if state is not State.COMPLETE))
    assert admitted == handshake
