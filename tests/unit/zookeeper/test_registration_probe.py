"""Whether a broker answers at another's listener, with the security of brokers where it fits."""

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from barnabas.common.security.channel_security import ChannelSecurity, PasswordLogin
from barnabas.common.threads import LoopThread
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from barnabas.protocol.messages.authentication import (
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from barnabas.protocol.schema import ApiKey
from barnabas.zookeeper.registration import make_probe
from barnabas.zookeeper.znodes import AdvertisedListener
from tests.support.waiting import DEADLINE_S
from tests.unit.common.channel_server import Server

SECURITY = ChannelSecurity(login=PasswordLogin("PLAIN", "broker", "secret"))


@pytest.fixture
def server() -> Iterator[Server]:
    """On a loop of its own, because a probe runs one itself."""
    loop = LoopThread("server", on_fatal=print)
    loop.start()
    made = Server()
    made.bodies[ApiKey.API_VERSIONS] = ApiVersionsResponse(error_code=0, api_keys=[])
    made.bodies[ApiKey.SASL_HANDSHAKE] = SaslHandshakeResponse(error_code=0, mechanisms=["PLAIN"])

    def run(work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, loop.loop).result(DEADLINE_S)

    run(made.start())
    yield made
    run(made.stop())
    assert loop.stop()


def listener(server: Server, protocol: str) -> AdvertisedListener:
    return AdvertisedListener("BROKERS", *server.endpoint, protocol)


@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.SASL_AUTHENTICATION_FAILED])
def test_a_broker_that_takes_or_refuses_the_login_answers(server: Server, code: ErrorCode) -> None:
    server.bodies[ApiKey.SASL_AUTHENTICATE] = SaslAuthenticateResponse(error_code=code)
    assert make_probe(SECURITY)(listener(server, "SASL_PLAINTEXT"))
    assert type(server.requests[0].body) is SaslHandshakeRequest


def test_a_listener_of_another_protocol_gets_no_login(server: Server) -> None:
    assert make_probe(SECURITY)(listener(server, "PLAINTEXT"))
    assert [type(request.body) for request in server.requests] == [ApiVersionsRequest]


def test_a_process_that_hangs_up_does_not_answer(server: Server) -> None:
    server.hangs_up = True
    assert not make_probe(SECURITY)(listener(server, "SASL_PLAINTEXT"))
    assert not make_probe()(listener(server, "PLAINTEXT"))
