"""Authentication through the dispatcher: in both protocols, with raw tokens, before anything is decoded."""

import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from barnabas.broker.network.request import Lane
from barnabas.broker.security.authentication import State
from barnabas.broker.security.session import Session
from barnabas.common.security.principal import ANONYMOUS, Principal
from barnabas.protocol import codec_kafka
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.frames import LENGTH_BYTES
from barnabas.protocol.messages.api_versions import ApiVersionsRequest
from barnabas.protocol.messages.authentication import (
    DescribeDelegationTokenRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from barnabas.protocol.schema import APIS, ApiKey
from tests.support.serving import (
    CORRELATION_ID,
    EXTERNAL,
    Connection,
    Serving,
    payload_of,
    unknown_session,
)

RIGHT, WRONG = b"\0alice\0secret", b"\0alice\0guess"
VERSIONS = ApiVersionsRequest(client_software_name="a-client", client_software_version="2.0.1")
OTHER = DescribeDelegationTokenRequest(owners=None)


def handshake(mechanism: str = "PLAIN") -> SaslHandshakeRequest:
    return SaslHandshakeRequest(mechanism=mechanism)


def authenticate(token: bytes = RIGHT) -> SaslAuthenticateRequest:
    return SaslAuthenticateRequest(auth_bytes=token)


@pytest.mark.parametrize(("versions", "of_token"), [(None, None), (1, 0), (1, 2)])
def test_a_peer_authenticates_in_either_protocol(
    serving: Serving, versions: int | None, of_token: int | None
) -> None:
    session = unknown_session()
    asked = serving.send(VERSIONS, version=versions and 3, session=session).response
    assert {ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE} <= {key.api_key for key in asked.api_keys}
    agreed = serving.send(handshake(), version=versions, session=session).response
    assert (agreed.error_code, agreed.mechanisms) == (0, ["PLAIN"])
    welcome = serving.send(authenticate(), version=of_token, session=session).response
    assert (welcome.error_code, welcome.error_message, welcome.auth_bytes) == (0, None, b"")
    assert session.principal == Principal.user("alice")
    assert serving.send(OTHER, version=versions and 3, session=session).response.error_code == 61
    assert serving.authentication_outcomes.successes == 1
    # Nothing asked for a second time.
    again = serving.send(handshake(), version=versions, session=session).response
    assert again.error_code == ErrorCode.ILLEGAL_SASL_STATE
    again = serving.send(authenticate(), version=of_token, session=session).response
    assert again.error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert "after successful authentication" in again.error_message


def raw(token: bytes, session: Session) -> Connection:
    return Connection(token, session=session)


def test_after_an_old_handshake_frames_are_tokens(serving: Serving) -> None:
    session = unknown_session()
    assert serving.send(handshake(), version=0, session=session).response.error_code == 0
    assert serving.run(raw(RIGHT, session)).answers == [struct.pack(">i", 0)]
    assert session.principal == Principal.user("alice")
    assert serving.send(OTHER, version=3, session=session).response.error_code == 61


def test_a_raw_token_that_is_refused_gets_no_answer(serving: Serving) -> None:
    session = unknown_session()
    serving.send(handshake(), version=0, session=session)
    refused = serving.run(raw(WRONG, session))
    assert refused.answers == []
    assert refused.closed == "failed authentication: Authentication failed: Invalid username or password"
    assert serving.authentication_outcomes.failures == 1


def test_a_request_is_no_raw_token(serving: Serving) -> None:
    session = unknown_session()
    serving.send(handshake(), version=0, session=session)
    assert serving.send(authenticate(), version=1, session=session).closed
    assert session.principal == ANONYMOUS


@pytest.mark.parametrize("version", [None, 1])
def test_a_refused_peer_is_told_and_closed(
    serving: Serving, version: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    session = unknown_session()
    serving.send(handshake(), version=version, session=session)
    with caplog.at_level("INFO"):
        refused = serving.send(authenticate(WRONG), version=version, session=session)
    text = "Authentication failed: Invalid username or password"
    assert (refused.response.error_code, refused.response.error_message) == (58, text)
    assert refused.closed
    assert f"Failed authentication with /192.0.2.1 (channelId=client-1) ({text})" in caplog.text
    assert "guess" not in caplog.text
    assert serving.authentication_outcomes.failures == 1
    assert serving.send(OTHER, version=version and 3, session=session).closed


@pytest.mark.parametrize("version", [None, 0, 1])
def test_an_unknown_mechanism_is_answered_with_the_known_ones(serving: Serving, version: int | None) -> None:
    session = unknown_session()
    refused = serving.send(handshake("GSSAPI"), version=version, session=session)
    assert (refused.response.error_code, refused.response.mechanisms) == (33, ["PLAIN"])
    assert refused.closed


def test_versions_may_be_asked_once_and_again_only_after_an_unknown_version(serving: Serving) -> None:
    session = unknown_session()
    known = b"".join(bytes(part) for part in codec_kafka.encode_request(3, CORRELATION_ID, "c", VERSIONS))
    newer = bytearray(known[LENGTH_BYTES:])
    newer[2:4] = (99).to_bytes(2, "big")
    unknown = serving.run(Connection(bytes(newer), EXTERNAL, ApiVersionsRequest, 0, session))
    assert unknown.response.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert serving.send(VERSIONS, version=0, session=session).response.error_code == 0
    assert serving.send(VERSIONS, version=0, session=session).closed


def test_an_expired_session_is_closed_at_its_next_request(serving: Serving) -> None:
    session = unknown_session(max_reauth_ms=60_000)
    serving.send(handshake(), version=1, session=session)
    welcome = serving.send(authenticate(), version=1, session=session).response
    assert welcome.session_lifetime_ms == 60_000
    session.expires_at_ns = 0
    assert session.authenticator is not None
    assert serving.send(OTHER, version=3, session=session).closed == "its session has expired"
    assert serving.authentication_outcomes.expired == 1
    assert serving.authentication_outcomes.failures == 0
    # Authentication comes through, and gives it another life.
    assert serving.send(handshake(), version=1, session=session).response.error_code == 0
    assert serving.send(authenticate(), version=1, session=session).response.error_code == 0
    assert serving.send(OTHER, version=3, session=session).response.error_code == 61


def test_unknown_peers_cannot_make_workers_run_their_requests(serving: Serving) -> None:
    session = unknown_session()
    serving.send(handshake(), version=1, session=session)
    tagged = payload_of(authenticate(), 2)[:-1] + b"\x80\x80\x01" + b"\x63\x00" * (1 << 14)
    for payload in (tagged, payload_of(authenticate(b"x" * 60_000))):
        connection = Connection(payload, session=session)
        request = connection.request
        # As the connection of an unknown peer does.
        request.lane = Lane.NETWORK
        serving.dispatch(request)
        assert (request.lane, request.rest, connection.is_answered) == (Lane.NETWORK, None, True)
        assert connection.closed


STATES = [State.INITIAL, State.VERSIONS_ANSWERED, State.TOKENS, State.RAW_TOKENS, State.FAILED]


def _head(api_key: ApiKey, version: int | None) -> bytes:
    """A request whose body nothing can decode."""
    if version is None:
        return struct.pack(">BBIB", 0x95, 0xCE, 27, api_key) + b"\xc1" * 20
    return struct.pack(">hhih", api_key, version, 1, -1) + b"\xff" * 20


@pytest.mark.parametrize("native", [False, True], ids=["kafka", "native"])
def test_before_authentication_nothing_is_decoded_but_the_handshake(serving: Serving, native: bool) -> None:
    """Every API in every state: an undecodable body tells whether the decoder saw it."""
    allowed = {
        (State.INITIAL, ApiKey.API_VERSIONS),
        (State.INITIAL, ApiKey.SASL_HANDSHAKE),
        (State.VERSIONS_ANSWERED, ApiKey.SASL_HANDSHAKE),
        (State.TOKENS, ApiKey.SASL_AUTHENTICATE),
    }
    for state in STATES:
        for api_key in APIS:
            session = unknown_session()
            assert session.authenticator is not None
            session.authenticator.state = state
            if state in (State.TOKENS, State.RAW_TOKENS):
                session.authenticator.state = State.INITIAL
                session.authenticator.handshake("PLAIN", has_raw_tokens=state is State.RAW_TOKENS, now_ns=0)
            version = None if native else APIS[api_key].versions[1]
            connection = serving.run(Connection(_head(api_key, version), session=session))
            case = f"{api_key.name} in {state.name}"
            if api_key is ApiKey.API_VERSIONS and state is State.INITIAL and connection.answers:
                # All its fields may be missing.
                continue
            assert connection.closed, case
            assert connection.answers == [], case
            was_decoded = connection.closed.startswith("malformed request")
            assert was_decoded == ((state, api_key) in allowed), f"{case}: {connection.closed}"
            assert session.principal == ANONYMOUS


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_frames_let_anybody_in(serving: Serving, data: st.DataObject) -> None:
    session = unknown_session()
    whole = [
        b"".join(bytes(part) for part in codec_kafka.encode_request(version, 1, "c", body))[LENGTH_BYTES:]
        for version, body in ((3, VERSIONS), (0, handshake()), (1, handshake()), (1, authenticate(WRONG)))
    ]
    frame = (
        st.sampled_from(whole)
        | st.binary(min_size=1, max_size=60)
        | st.sampled_from(whole).flatmap(lambda known: st.integers(1, len(known)).map(lambda n: known[:n]))
        | st.tuples(st.sampled_from(whole), st.binary(max_size=8)).map(b"".join)
    )
    for payload in data.draw(st.lists(frame, max_size=6)):
        connection = serving.run(Connection(payload, session=session))
        assert connection.is_answered
        assert session.principal == ANONYMOUS
        if connection.closed:
            break
    assert serving.send(OTHER, version=3, session=session).closed
