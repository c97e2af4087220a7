"""The certificates that brokers show to each other."""

import asyncio
import ssl

import pytest

from barnabas.broker.config.load import config_from
from barnabas.broker.config.settings import BrokerConfig
from barnabas.broker.security.broker_principals import authenticates_brokers, own_principal
from barnabas.broker.security.inter_broker import make_inter_broker_security
from barnabas.common.security.channel_security import PLAINTEXT
from barnabas.common.security.principal import Principal
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
def test_a_broker_logs_in_as_the_user_of_its_listeners_login_module(
    mechanism: str, jaas: str, client_type: type
) -> None:
    config = made("SASL_PLAINTEXT", mechanism, jaas)
    security = make_inter_broker_security(config, ssl.create_default_context)
    assert security.protocol == "SASL_PLAINTEXT"
    assert security.login is not None
    client = asyncio.run(security.login.start())
    assert type(client) is client_type
    assert client.mechanism == mechanism
    assert own_principal(config, config.listener("BROKERS"), security, str) == BROKER
    assert authenticates_brokers(config, config.listener("BROKERS"))
    assert "hunter2" not in repr(security)


def test_a_listener_without_security_needs_nothing() -> None:
    config = made("PLAINTEXT")
    assert make_inter_broker_security(config, ssl.create_default_context) is PLAINTEXT
    assert not authenticates_brokers(config, config.listener("BROKERS"))


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


def test_the_principal_of_a_certificate() -> None:
    context = ssl.create_default_context()
    config = made("SSL", ssl_client_auth="required", ssl_keystore_location="store.pem")
    security = make_inter_broker_security(config, lambda: context)
    assert security.protocol == "SSL"
    assert security.tls is not None
    assert security.tls() is context
    listener = config.listener("BROKERS")
    assert authenticates_brokers(config, listener)
    assert own_principal(config, listener, security, lambda: "CN=first") == Principal.user("CN=first")
    # Without certificates of clients nobody can be told from a broker.
    config = made("SSL", ssl_keystore_location="store.pem")
    assert not authenticates_brokers(config, config.listener("BROKERS"))
