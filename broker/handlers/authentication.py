"""SaslHandshake and SaslAuthenticate, and the requests of peers that are not authenticated.

The rules are the `Authenticator`'s. `admit` is asked before a request is decoded: a peer that is not known
gets nothing decoded but ApiVersions, SaslHandshake and SaslAuthenticate, each at its time.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

from barnabas.broker.base.clocks import wall_clock_ms
from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.services import Services
from barnabas.broker.network.request import Buffers, Request
from barnabas.broker.security.authentication import (
    AuthenticationFailed,
    Authenticator,
    IllegalHandshake,
    SessionExpired,
    State,
)
from barnabas.protocol import codec_msgpack
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import authentication as wire
from barnabas.protocol.schema import APIS, ApiKey

_KAFKA_HEAD: Final = struct.Struct(">hh")
_LENGTH: Final = struct.Struct(">i")
_NATIVE_KEY_AT: Final = 6
_NOT_KAFKA: Final = (
    "Exception handling first SASL packet from client, GSSAPI is not supported by server",
    ErrorCode.UNSUPPORTED_SASL_MECHANISM,
)


class _Head(NamedTuple):
    """The API and its version in Kafka's protocol, None in the native one, read without decoding."""

    api_key: ApiKey
    version: int | None

    @classmethod
    def of(cls, view: memoryview) -> _Head | None:
        """None if it is no request of either protocol."""
        if len(view) <= _NATIVE_KEY_AT:
            return None
        key, version = (
            _KAFKA_HEAD.unpack_from(view)
            if view[0] == 0
            else (view[_NATIVE_KEY_AT] if codec_msgpack.is_native(view) else -1, None)
        )
        return cls(ApiKey(key), version) if key in APIS else None

    @property
    def is_answered_with_versions(self) -> bool:
        first, last = APIS[self.api_key].versions
        is_known = self.version is None or first <= self.version <= last
        return self.api_key is ApiKey.API_VERSIONS and is_known


def admit(services: Services, request: Request) -> bool:
    """Whether a request may be decoded whose peer is not authenticated, or is not any more.

    If not, it is answered: by the answer to a raw token, or by closing.
    """
    authenticator = request.peer.session.authenticator
    if authenticator is None:
        return True
    if authenticator.state is State.RAW_TOKENS:
        _take_raw_token(services, request, authenticator)
        return False
    head = _Head.of(request.frame.view)
    try:
        if head is None:
            raise authenticator.failure(*_NOT_KAFKA)
        authenticator.check(head.api_key, request.received_ns)
    except SessionExpired:
        services.authentication_outcomes.has_expired()
        request.close_connection("its session has expired")
        return False
    except AuthenticationFailed as failure:
        _refuse(services, request, failure)
        return False
    if head.is_answered_with_versions:
        authenticator.versions_answered()
    return True


def _take_raw_token(services: Services, request: Request, authenticator: Authenticator) -> None:
    try:
        answer, _ = authenticator.token(bytes(request.frame.view), request.received_ns, wall_clock_ms())
    except AuthenticationFailed as failure:
        _refuse(services, request, failure)
        return
    _note_success(services, authenticator)
    request.respond([_LENGTH.pack(len(answer)), answer])


def handle_handshake(services: Services, request: ApiRequest) -> None:
    authenticator = request.raw.peer.session.authenticator
    if authenticator is None:
        request.respond(wire.SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE))
        return
    try:
        authenticator.handshake(
            request.body.mechanism,
            has_raw_tokens=request.api_version == 0,
            now_ns=request.raw.received_ns,
        )
    except IllegalHandshake:
        request.respond(wire.SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE))
    except AuthenticationFailed as failure:
        answer = wire.SaslHandshakeResponse(error_code=failure.code, mechanisms=authenticator.mechanisms)
        _answer_failure(services, request, failure, answer)
    else:
        request.respond(wire.SaslHandshakeResponse(error_code=0, mechanisms=authenticator.mechanisms))


def handle_authenticate(services: Services, request: ApiRequest) -> None:
    authenticator = request.raw.peer.session.authenticator
    if authenticator is None or authenticator.state is State.COMPLETE:
        text = (
            "the listener does not use SASL"
            if authenticator is None
            else "SaslAuthenticate request received after successful authentication"
        )
        code = ErrorCode.ILLEGAL_SASL_STATE
        request.respond(wire.SaslAuthenticateResponse(error_code=code, error_message=text))
        return
    try:
        answer, lifetime_ms = authenticator.token(
            request.body.auth_bytes, request.raw.received_ns, wall_clock_ms()
        )
    except AuthenticationFailed as failure:
        refusal = wire.SaslAuthenticateResponse(error_code=failure.code, error_message=str(failure))
        _answer_failure(services, request, failure, refusal)
        return
    _note_success(services, authenticator)
    request.respond(
        wire.SaslAuthenticateResponse(error_code=0, auth_bytes=answer, session_lifetime_ms=lifetime_ms)
    )


def _note_success(services: Services, authenticator: Authenticator) -> None:
    if authenticator.state is State.COMPLETE:
        services.authentication_outcomes.succeeded()


def _answer_failure(
    services: Services, request: ApiRequest, failure: AuthenticationFailed, answer: Any
) -> None:
    encoded = request.encoded(answer)
    if encoded is not None:
        request.raw.errors = encoded.errors
        _refuse(services, request.raw, failure, encoded.buffers)


def _refuse(
    services: Services, request: Request, failure: AuthenticationFailed, answer: Buffers = ()
) -> None:
    """Answer, if there is an answer, and close the connection after a pause."""
    peer, reason = request.peer, str(failure)

    # It does not refer to the error, whose traceback has the frames of this thread.
    def end() -> None:
        request.close_connection(f"failed authentication: {reason}", answer)

    cancel = services.authentication_outcomes.failed(peer.session, peer.connection_id, reason, end)
    request.park(cancel)
