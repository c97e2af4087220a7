"""PLAIN and SCRAM on the broker's side, against aiokafka's client among others."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from aiokafka.conn import ScramAuthenticator
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.security.authentication import AuthenticationFailed, Identity, InvalidCredentials
from barnabas.broker.security.password_servers import PlainPasswords, PlainServer, ScramServer
from barnabas.broker.security.scram_credentials import ScramCredentials
from barnabas.common.security import scram
from barnabas.common.security.scram import ScramMechanism
from tests.support.cases import each

PASSWORDS = PlainPasswords({"alice": "pässword", "bob": "x"})


def test_plain_knows_the_users_of_the_listener() -> None:
    for token in (b"\0alice\0p\xc3\xa4ssword", b"alice\0alice\0p\xc3\xa4ssword"):
        server = PlainServer(PASSWORDS)
        assert server.evaluate(token) == b""
        assert server.identity == Identity("alice")


@each(
    [
        (b"\0alice\0password", "Authentication failed: Invalid username or password"),
        (b"\0alice\0p\xc3\xa4sswor", "Authentication failed: Invalid username or password"),
        (b"\0Alice\0p\xc3\xa4ssword", "Authentication failed: Invalid username or password"),
        (b"\0carol\0x", "Authentication failed: Invalid username or password"),
        (b"\0\0x", "Authentication failed: username not specified"),
        (b"\0alice\0", "Authentication failed: password not specified"),
        (b"bob\0alice\0p\xc3\xa4ssword", "different from username"),
        (b"", "expected 3 tokens, got 1"),
        (b"alice\0p\xc3\xa4ssword", "expected 3 tokens, got 2"),
        (b"\0alice\0p\xc3\xa4ssword\0", "expected 3 tokens, got 4"),
        (b"\0alice\0p\xc3\xa4ssword\0\0\0", "expected 3 tokens, got 4"),
        (b"\0alice\0p\xe4ssword", "UTF-8"),
    ],
    name=repr,
)
def test_plain_refuses_everything_else(case: tuple[bytes, str]) -> None:
    token, text = case
    server = PlainServer(PASSWORDS)
    with pytest.raises(AuthenticationFailed, match=text) as refused:
        server.evaluate(token)
    assert server.identity is None
    assert "ssword" not in str(refused.value).replace("or password", "").replace("password not", "")


def _credentials(**users: str) -> ScramCredentials:
    credentials = ScramCredentials()
    credentials.set_secret(b"shared by the brokers")
    for user, password in users.items():
        credentials.update(
            user,
            {each.value: scram.make_credential(each, password, 4096).text for each in ScramMechanism},
        )
    return credentials


CREDENTIALS = _credentials(alice="pencil")


def _server(mechanism: ScramMechanism, credentials: ScramCredentials = CREDENTIALS) -> ScramServer:
    return ScramServer(mechanism, partial(credentials.find, mechanism))


def _aiokafka(mechanism: ScramMechanism, user: str, password: str) -> Callable[[bytes | None], Any]:
    client = ScramAuthenticator(
        loop=None, sasl_plain_password=password, sasl_plain_username=user, sasl_mechanism=mechanism.value
    )
    steps = client.authenticator_scram()

    def step(challenge: bytes | None) -> bytes | None:
        try:
            return steps.send(challenge)[0]
        except StopIteration:
            return None

    return step


def _exchange(step: Callable[[bytes | None], Any], server: ScramServer) -> None:
    token = step(None)
    while token is not None:
        token = step(server.evaluate(token))


@each(ScramMechanism, name=lambda mechanism: str(mechanism.value))
def test_an_independent_client_authenticates(mechanism: ScramMechanism) -> None:
    server = _server(mechanism)
    _exchange(_aiokafka(mechanism, "alice", "pencil"), server)
    assert server.identity == Identity("alice")
    for user, password in (("alice", "pencils"), ("mallory", "pencil"), ("alice,", "pencil")):
        server = _server(mechanism)
        with pytest.raises(InvalidCredentials):
            _exchange(_aiokafka(mechanism, user, password), server)
        assert server.identity is None


def _begun(first: bytes = b"n,,n=alice,r=abc") -> tuple[ScramServer, bytes]:
    server = ScramServer(
        ScramMechanism.SHA_256, partial(CREDENTIALS.find, ScramMechanism.SHA_256), lambda: "server"
    )
    return server, server.evaluate(first)


def _final(challenge: bytes, first: str = "n=alice,r=abc", header: str = "n,,", nonce: str = "") -> bytes:
    """The last message of a client that knows alice's password."""
    mechanism = ScramMechanism.SHA_256
    opened = scram.ClientFirst.parse(f"{header}{first}".encode())
    asked = scram.ServerFirst.parse(challenge, opened.nonce)
    final = scram.ClientFinal.make(header, nonce or asked.nonce)
    salted = scram.salted_password(mechanism, "pencil", asked.salt, asked.iterations)
    return final.encoded(scram.client_proof(mechanism, salted, scram.auth_message(opened, asked, final)))


def test_a_proof_is_for_this_nonce_and_this_header() -> None:
    server, challenge = _begun()
    assert server.evaluate(_final(challenge)).startswith(b"v=")
    assert server.identity == Identity("alice")
    for wrong in (
        _final(challenge, nonce="abc"),
        _final(challenge, nonce="xabcserver"),
        _final(challenge, header="n,a=alice,"),
        challenge,
        b"",
        b"n,,n=alice,r=abc",
    ):
        server, challenge = _begun()
        with pytest.raises(InvalidCredentials):
            server.evaluate(wrong)
        assert server.identity is None


def test_the_nonce_of_librdkafka_before_2_6_1_has_the_clients_part_twice() -> None:
    """Apache Kafka 3.9 accepts every nonce that ends with the right one because of it."""
    server, challenge = _begun()
    assert server.evaluate(_final(challenge, nonce="abcabcserver")).startswith(b"v=")
    assert server.identity == Identity("alice")


def test_a_recorded_exchange_cannot_be_replayed() -> None:
    server = _server(ScramMechanism.SHA_256)
    recorded = _final(server.evaluate(b"n,,n=alice,r=abc"))
    server.evaluate(recorded)
    for _ in range(3):
        again = _server(ScramMechanism.SHA_256)
        again.evaluate(b"n,,n=alice,r=abc")
        with pytest.raises(InvalidCredentials):
            again.evaluate(recorded)


def test_nobody_acts_as_another_user_or_by_a_delegation_token() -> None:
    with pytest.raises(AuthenticationFailed, match="different from username"):
        _begun(b"n,a=bob,n=alice,r=abc")
    server, challenge = _begun(b"n,a=alice,n=alice,r=abc")
    server.evaluate(_final(challenge, header="n,a=alice,"))
    assert server.identity == Identity("alice")
    server, challenge = _begun(b"n,,n=alice,r=abc,tokenauth=true")
    with pytest.raises(InvalidCredentials):
        server.evaluate(_final(challenge, "n=alice,r=abc,tokenauth=true"))


def test_an_unknown_user_looks_like_the_others() -> None:
    credentials = _credentials()
    other_broker = _credentials()
    mechanism = ScramMechanism.SHA_256
    for user in ("alice", "bob"):
        text = scram.make_credential(mechanism, "x", 8192, b"1q1f7u7xj1mgvrudtmra6pgyhd").text
        credentials.update(user, {mechanism.value: text})
        other_broker.update(user, {mechanism.value: text})
    found, is_real = credentials.find(mechanism, "mallory")
    assert not is_real
    assert (found.iterations, len(found.salt)) == (8192, 26)
    assert found.salt.isalnum()
    assert found.salt.islower() or found.salt.isdigit()
    assert other_broker.find(mechanism, "mallory") == (found, False)
    assert credentials.find(mechanism, "mallorz")[0].salt != found.salt
    assert credentials.find(ScramMechanism.SHA_512, "mallory")[0].iterations == 4096


def test_credentials_follow_the_settings_of_users() -> None:
    credentials = _credentials(alice="pencil")
    assert credentials.find(ScramMechanism.SHA_512, "alice")[1]
    only = {"SCRAM-SHA-256": scram.make_credential(ScramMechanism.SHA_256, "x").text, "other": "y"}
    credentials.update("alice", only)
    assert not credentials.find(ScramMechanism.SHA_512, "alice")[1]
    assert credentials.find(ScramMechanism.SHA_256, "alice")[0].text == only["SCRAM-SHA-256"]
    weak = scram.make_credential(ScramMechanism.SHA_256, "x", 4095).text
    for broken in ("salt=broken", weak):
        credentials.update("alice", {"SCRAM-SHA-256": broken})
        assert not credentials.find(ScramMechanism.SHA_256, "alice")[1], "it lets nobody in"
    credentials.update("alice", {})
    assert not credentials.find(ScramMechanism.SHA_256, "alice")[1]


@given(st.lists(st.binary(max_size=50), max_size=3))
def test_any_tokens_are_refused(tokens: list[bytes]) -> None:
    for server in (PlainServer(PASSWORDS), _server(ScramMechanism.SHA_256)):
        for token in tokens:
            try:
                server.evaluate(token)
            except AuthenticationFailed:
                break
        assert server.identity is None
