"""What brokers show to each other, and which principals may send requests of brokers."""

import ssl
from pathlib import Path

import pytest
import trustme

from barnabas.broker.config.load import config_from
from barnabas.broker.config.settings import BrokerConfig
from barnabas.broker.security.inter_broker import (
    BrokerPrincipals,
    make_inter_broker_security,
    own_principal,
)
from barnabas.broker.security.session import Session
from barnabas.common.security.channel_security import PLAINTEXT
from barnabas.common.security.principal import ANONYMOUS, Principal
from barnabas.common.security.sasl_client import OAuthBearerClient, PlainClient, ScramClient
from barnabas.protocol.errors import InvalidConfiguration
from tests.support.defaults import REQUIRED

LOGIN = 'org.apache.kafka.common.security.{} required username="broker" password="hunter2";'
PLAIN = LOGIN.format("plain.PlainLoginModule")
SCRAM = LOGIN.format("scram.ScramLoginModule")
OAUTH = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
    'unsecuredLoginStringClaim_sub="broker";'
)
BROKER = Principal.user("broker")


def made(protocol: str, mechanism: str = "PLAIN", jaas: str | None = None, **others: str) -> BrokerConfig:
    settings = {
        "listeners": "BROKERS://:9092",
        "listener.security.protocol.map": f"BROKERS:{protocol}",
        "inter.broker.listener.name": "BROKERS",
        "sasl.enabled.mechanisms": mechanism,
        "sasl.mechanism.inter.broker.protocol": mechanism,
    }
    if jaas is not None:
        settings[f"listener.name.brokers.{mechanism.lower()}.sasl.jaas.config"] = jaas
    return config_from(REQUIRED | settings | {name.replace("_", "."): text for name, text in others.items()})


@pytest.mark.parametrize(
    ("mechanism", "jaas", "client_type"),
    [
        ("PLAIN", PLAIN, PlainClient),
        ("SCRAM-SHA-256", SCRAM, ScramClient),
        ("SCRAM-SHA-512", SCRAM, ScramClient),
        ("OAUTHBEARER", OAUTH, OAuthBearerClient),
    ],
)
async def test_a_broker_logs_in_as_the_user_of_its_listeners_login_module(
    mechanism: str, jaas: str, client_type: type
) -> None:
    config = made("SASL_PLAINTEXT", mechanism, jaas)
    security = make_inter_broker_security(config, ssl.create_default_context)
    assert security.protocol == "SASL_PLAINTEXT"
    assert security.login is not None
    client = await security.login.start()
    assert type(client) is client_type
    assert client.mechanism == mechanism
    assert own_principal(config, config.listener("BROKERS")) == BROKER
    assert "hunter2" not in repr(security)


def test_a_listener_without_security_needs_nothing() -> None:
    config = made("PLAINTEXT")
    assert make_inter_broker_security(config, ssl.create_default_context) is PLAINTEXT
    assert own_principal(config, config.listener("BROKERS")) is None


@pytest.mark.parametrize(
    ("jaas", "message"),
    [
        (None, r"listener\.name\.brokers\.plain\.sasl\.jaas\.config: expected a login module"),
        (SCRAM, "must be org.apache.kafka.common.security.plain"),
        (PLAIN.partition(" username")[0] + ' user_alice="hunter2";', "has no username and password"),
    ],
)
def test_brokers_that_could_not_log_in_do_not_start(jaas: str | None, message: str) -> None:
    def start() -> None:
        config = made("SASL_PLAINTEXT", "PLAIN", jaas)
        make_inter_broker_security(config, ssl.create_default_context)

    with pytest.raises(InvalidConfiguration, match=message) as caught:
        start()
    assert "hunter2" not in str(caught.value)


def test_the_principal_of_a_certificate(tmp_path: Path) -> None:
    store = tmp_path / "store.pem"
    issued = trustme.CA().issue_cert("localhost", common_name="first")
    issued.private_key_and_cert_chain_pem.write_to_path(store)
    context = ssl.create_default_context()
    config = made("SSL", ssl_client_auth="required", ssl_keystore_location=str(store))
    security = make_inter_broker_security(config, lambda: context)
    assert security.protocol == "SSL"
    assert security.tls is not None
    assert security.tls() is context
    own = own_principal(config, config.listener("BROKERS"))
    assert own is not None
    assert "CN=first" in own.name
    # Without certificates of clients nobody can be told from a broker.
    config = made("SSL", ssl_keystore_location=str(store))
    assert own_principal(config, config.listener("BROKERS")) is None


@pytest.mark.parametrize(
    ("principal", "is_broker"), [(BROKER, True), (Principal.user("admin"), True), (ANONYMOUS, False)]
)
def test_brokers_and_super_users_are_brokers(
    principal: Principal, is_broker: bool, caplog: pytest.LogCaptureFixture
) -> None:
    session = Session("127.0.0.1", principal)
    assert BrokerPrincipals(BROKER, [Principal.user("admin")]).is_broker(session) == is_broker
    assert ("name its principal in super.users" in caplog.text) != is_broker
    assert BrokerPrincipals().is_broker(session)
    # Not the brokers' own principal: other listeners are for super users alone.
    assert BrokerPrincipals(BROKER, [Principal.user("admin")]).is_super_user(session) == (
        principal.name == "admin"
    )
