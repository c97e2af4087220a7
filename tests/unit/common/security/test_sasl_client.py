"""The client's side of SASL: the published exchanges, and brokers that lie."""

import json
from base64 import urlsafe_b64decode
from functools import partial

import pytest

from barnabas.common.security.sasl_client import (
    OAuthBearerClient,
    PlainClient,
    ScramClient,
)
from barnabas.common.security.scram import ScramMechanism, salted_password
from barnabas.common.security.tokens import UnsecuredTokens
from barnabas.protocol.errors import InvalidConfiguration, SaslAuthenticationFailed

# RFC 7677, section 3.
_NONCE = "rOprNGfwEbeRWgbNEkqO"
_SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
_SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def _never_salted(salt: bytes, iterations: int) -> bytes:
    raise NotImplementedError


def scram() -> ScramClient:
    return ScramClient(
        ScramMechanism.SHA_256, "user", partial(salted_password, ScramMechanism.SHA_256, "pencil"), _NONCE
    )


def proving() -> ScramClient:
    """A client that has sent its proof."""
    client = scram()
    client.first()
    client.answer(_SERVER_FIRST)
    return client


def test_scram_as_published() -> None:
    client = scram()
    assert client.mechanism == "SCRAM-SHA-256"
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    proof = client.answer(_SERVER_FIRST)
    assert proof is not None
    assert proof.endswith(b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    assert client.answer(_SERVER_FINAL) is None


def test_nonces_are_not_repeated() -> None:
    firsts = {ScramClient(ScramMechanism.SHA_512, "user", _never_salted).first() for _ in range(20)}
    assert len(firsts) == 20


@pytest.mark.parametrize(
    ("final", "message"),
    [
        (b"v=" + b"A" * 43 + b"=", "may be an impostor"),
        (b"v=", "refused"),
        (b"", "refused"),
        (b"e=other-error", "other-error"),
        (_SERVER_FIRST, "refused"),
    ],
)
def test_a_broker_that_does_not_know_the_password_is_no_broker(final: bytes, message: str) -> None:
    client = proving()
    with pytest.raises(SaslAuthenticationFailed, match=message) as caught:
        client.answer(final)
    assert "pencil" not in str(caught.value)


@pytest.mark.parametrize(
    "challenge", [b"", b"\xff", _SERVER_FIRST.replace(b"rOpr", b"xOpr"), _SERVER_FIRST.replace(b"4096", b"1")]
)
def test_a_wrong_first_message_of_the_broker_gets_no_proof(challenge: bytes) -> None:
    client = scram()
    client.first()
    with pytest.raises(SaslAuthenticationFailed, match="the broker's message is refused"):
        client.answer(challenge)


def test_plain_has_no_challenge() -> None:
    client = PlainClient("me", "sëcret")
    assert client.first() == "\0me\0sëcret".encode()
    assert client.answer(b"") is None
    client = PlainClient("me", "secret")
    client.first()
    with pytest.raises(SaslAuthenticationFailed, match="challenge"):
        client.answer(b"?")


@pytest.mark.parametrize(("username", "password"), [("", "secret"), ("m\0e", "secret"), ("me", "sec\0ret")])
def test_plain_sends_no_field_that_the_broker_would_cut(username: str, password: str) -> None:
    with pytest.raises(SaslAuthenticationFailed, match="zero character"):
        PlainClient(username, password)


def test_a_bearer_token_with_extensions() -> None:
    client = OAuthBearerClient("abc.def", {"logicalCluster": "c1"})
    assert client.first() == b"n,,\x01auth=Bearer abc.def\x01logicalCluster=c1\x01\x01"
    assert client.answer(b"") is None


def test_a_refused_token_is_acknowledged_so_that_the_broker_ends_the_exchange() -> None:
    client = OAuthBearerClient("abc")
    client.first()
    error = b'{"status":"invalid_token"}'
    assert client.answer(error) == b"\x01"
    # The broker fails the exchange now; if it does not, its own rules have let the client in.
    assert client.answer(error) is None


async def test_unsecured_tokens_have_the_claims_of_kafkas_options() -> None:
    options = {
        "unsecuredLoginStringClaim_sub": "alice",
        "unsecuredLoginListClaim_scope": ",read,write",
        "unsecuredLoginNumberClaim_level": "3",
        "unsecuredLoginLifetimeSeconds": "60",
    }
    token = await UnsecuredTokens(options).token()
    header, claims, signature = token.split(".")
    read = [json.loads(urlsafe_b64decode(part + "=" * (-len(part) % 4))) for part in (header, claims)]
    assert read[0] == {"alg": "none"}
    assert signature == ""
    assert round(read[1].pop("exp") - read[1].pop("iat")) == 60
    assert read[1] == {"sub": "alice", "scope": ["read", "write"], "level": 3}
    for options in ({}, {"unsecuredLoginStringClaim_sub": "a", "unsecuredLoginLifetimeSeconds": "x"}):
        with pytest.raises(InvalidConfiguration, match=r"expected clientId|a number"):
            UnsecuredTokens(options)
