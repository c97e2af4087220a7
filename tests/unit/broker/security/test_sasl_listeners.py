"""The mechanisms that listeners offer, by their settings."""

import traceback
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.config.listener_config import UNSECURED_VALIDATOR
from barnabas.broker.config.listeners import Listener
from barnabas.broker.config.settings import BrokerConfig
from barnabas.broker.security.authentication import AuthenticationFailed, Identity
from barnabas.broker.security.sasl_listeners import SaslListeners
from barnabas.broker.security.scram_credentials import ScramCredentials
from barnabas.broker.security.session import Session
from barnabas.common.security.jaas import OAUTHBEARER_LOGIN, PLAIN_LOGIN
from barnabas.protocol.errors import InvalidConfiguration
from tests.support.building import fatal
from tests.support.cases import each
from tests.support.defaults import make_config

PREFIX = "listener.name.clients"
PLAIN = {f"{PREFIX}.plain.sasl.jaas.config": f'{PLAIN_LOGIN} required user_alice="secret";'}


def config(mechanisms: str, **settings: str) -> BrokerConfig:
    return make_config(
        listeners="BROKERS://127.0.0.1:0,CLIENTS://127.0.0.1:0",
        listener_security_protocol_map="BROKERS:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
        inter_broker_listener_name="BROKERS",
        **{f"{PREFIX}.sasl.enabled.mechanisms": mechanisms, **settings},
    )


def listeners(made: BrokerConfig) -> SaslListeners:
    return SaslListeners(made.listeners, made.listener, ScramCredentials(), on_fatal=fatal)


def session_at(sasl: SaslListeners, listener: str) -> Session:
    session = Session("127.0.0.1")
    sasl.protect(session, listener)
    return session


def test_a_listener_offers_what_its_settings_say() -> None:
    more = {
        f"{PREFIX}.sasl.server.max.receive.size": "1000",
        f"{PREFIX}.scram-sha-256.connections.max.reauth.ms": "5000",
        f"{PREFIX}.oauthbearer.sasl.server.callback.handler.class": UNSECURED_VALIDATOR,
        f"{PREFIX}.oauthbearer.sasl.jaas.config": (
            f'{OAUTHBEARER_LOGIN} required unsecuredValidatorPrincipalClaimName="name";'
        ),
    }
    sasl = listeners(config("PLAIN,SCRAM-SHA-256,OAUTHBEARER", **PLAIN, **more))
    assert sasl.offers_scram
    session = session_at(sasl, "CLIENTS")
    authenticator = session.authenticator
    assert authenticator is not None
    assert authenticator.mechanisms == ["PLAIN", "SCRAM-SHA-256", "OAUTHBEARER"]
    assert authenticator.max_receive_bytes == 1000
    authenticator.handshake("PLAIN", has_raw_tokens=False, now_ns=0)
    authenticator.token(b"\0alice\0secret", 0, 0)
    assert session_at(sasl, "BROKERS").authenticator is None
    limits = {name: made.max_reauth_ms for name, made in authenticator._mechanisms.items()}
    assert limits == {"PLAIN": 0, "SCRAM-SHA-256": 5000, "OAUTHBEARER": 0}
    token_server = authenticator._mechanisms["OAUTHBEARER"].make_server()
    # {"alg":"none"} and {"name":"bob","exp":9999999999}.
    token = "eyJhbGciOiJub25lIn0.eyJuYW1lIjoiYm9iIiwiZXhwIjo5OTk5OTk5OTk5fQ."
    token_server.evaluate(f"n,,\x01auth=Bearer {token}\x01\x01".encode())
    assert token_server.identity == Identity("bob", 9999999999000)


def test_peers_of_other_listeners_are_let_in_and_of_unknown_ones_are_not() -> None:
    sasl = listeners(config("PLAIN", **PLAIN))
    assert not sasl.offers_scram
    unknown = session_at(sasl, "GONE")
    assert unknown.authenticator is not None
    with pytest.raises(AuthenticationFailed):
        unknown.authenticator.handshake("PLAIN", has_raw_tokens=False, now_ns=0)


def test_a_listener_that_is_added_is_protected_and_others_stay() -> None:
    made = config("PLAIN", **PLAIN)
    sasl = listeners(made)
    before = sasl.listeners
    added = Listener("MORE", "127.0.0.1", 0, "SASL_SSL")
    settings = make_config(**{"listener.name.more.sasl.enabled.mechanisms": "SCRAM-SHA-512"})
    sasl.change([*before, added], settings.listener)
    assert sasl.offers_scram
    more = session_at(sasl, "MORE").authenticator
    assert more is not None
    assert more.mechanisms == ["SCRAM-SHA-512"]
    clients = session_at(sasl, "CLIENTS").authenticator
    assert clients is not None
    assert clients.mechanisms == ["PLAIN"], "as it was opened"
    broken = make_config(**{"listener.name.worse.sasl.enabled.mechanisms": "PLAIN"})
    with pytest.raises(InvalidConfiguration):
        sasl.change([Listener("WORSE", "127.0.0.1", 0, "SASL_SSL")], broken.listener)
    assert sasl.listeners == [*before, added]
    sasl.change(before, made.listener)
    assert not sasl.offers_scram


@each(
    [
        ("PLAIN", {}, "plain.sasl.jaas.config: it is not set"),
        ("PLAIN", {"plain.sasl.jaas.config": 'x required user_alice="secret";'}, "must be"),
        ("PLAIN", {"plain.sasl.jaas.config": f'{PLAIN_LOGIN} required user_alice="secret"'}, "semicolon"),
        ("SCRAM-SHA-256", {"scram-sha-256.sasl.jaas.config": f"{PLAIN_LOGIN} required;"}, "must be"),
        ("OAUTHBEARER", {}, "jwks.endpoint.url is not set"),
        ("OAUTHBEARER", {"sasl.oauthbearer.jwks.endpoint.url": "ftp://x"}, "expected a URL"),
        ("OAUTHBEARER", {"sasl.oauthbearer.jwks.endpoint.url": "file:///missing"}, "cannot be read"),
        (
            "OAUTHBEARER",
            {
                "sasl.oauthbearer.jwks.endpoint.url": "https://localhost:1/",
                "oauthbearer.sasl.jaas.config": f'{OAUTHBEARER_LOGIN} required ssl.truststore.location="/n";',
            },
            "clients.oauthbearer: ssl.truststore.location=/n: cannot be read",
        ),
    ],
    name=lambda case: case[2],
)
def test_settings_that_cannot_work_stop_the_broker(case: tuple[str, dict[str, str], str]) -> None:
    mechanism, settings, text = case
    with pytest.raises(InvalidConfiguration, match=text) as refused:
        listeners(config(mechanism, **{f"{PREFIX}.{name}": value for name, value in settings.items()}))
    assert "secret" not in "".join(traceback.format_exception(refused.value))


def test_keys_of_tokens_are_shared_by_listeners_with_the_same_source(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text(
        '{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"a","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}'
    )
    settings: dict[str, Any] = {f"{PREFIX}.sasl.oauthbearer.jwks.endpoint.url": keys.as_uri()}
    sasl = listeners(config("OAUTHBEARER", **settings))
    sasl.start()
    more = make_config(
        **{
            "listener.name.more.sasl.enabled.mechanisms": "OAUTHBEARER",
            "listener.name.more.sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        }
    )
    sasl.change([*sasl.listeners, Listener("MORE", "127.0.0.1", 0, "SASL_SSL")], more.listener)
    assert len(sasl._keys) == 1
    sasl.stop()
