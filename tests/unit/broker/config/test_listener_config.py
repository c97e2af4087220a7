"""Settings of listeners: whose value counts, and the refused ones of security."""

from pathlib import Path

import pytest

from barnabas.broker.config.listener_config import LISTENER_SETTINGS, parse_listener_name
from barnabas.broker.config.load import config_from, load_config
from barnabas.broker.config.settings import BrokerConfig
from barnabas.common.security.jaas import PLAIN_LOGIN, SCRAM_LOGIN, parse_jaas
from barnabas.common.security.principal import Principal
from barnabas.common.security.secret import Secret, shown
from barnabas.common.settings import setting_text
from barnabas.protocol.errors import InvalidConfiguration
from tests.support.defaults import REQUIRED

TWO = {
    "listeners": "INTERNAL://:9092,EXTERNAL://:9093",
    "listener.security.protocol.map": "INTERNAL:PLAINTEXT,EXTERNAL:SASL_SSL",
    "inter.broker.listener.name": "INTERNAL",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256,PLAIN",
}


def made(settings: dict[str, str]) -> BrokerConfig:
    return config_from(REQUIRED | settings)


def refusal(settings: dict[str, str]) -> str:
    with pytest.raises(InvalidConfiguration) as caught:
        made(settings)
    return str(caught.value)


def test_a_listener_has_its_own_value_else_the_brokers_else_the_default() -> None:
    config = made(
        TWO
        | {
            "ssl.client.auth": "requested",
            "ssl.keystore.location": "/all.pem",
            "listener.name.external.ssl.client.auth": "required",
            "listener.name.external.sasl.enabled.mechanisms": "PLAIN",
        }
    )
    internal, external = config.listener("INTERNAL"), config.listener("EXTERNAL")
    assert (internal.ssl_client_auth, external.ssl_client_auth) == ("requested", "required")
    assert external.ssl_keystore_location == "/all.pem"
    assert internal.sasl_enabled_mechanisms == ("SCRAM-SHA-256", "PLAIN")
    assert external.sasl_enabled_mechanisms == ("PLAIN",)
    assert external.ssl_truststore_type == "JKS"
    assert config.value("ssl.client.auth") == "requested"
    assert config.value("listener.name.external.ssl.client.auth") == "required"
    assert [listener.security_protocol for listener in config.listeners] == ["PLAINTEXT", "SASL_SSL"]
    assert config.inter_broker_security_protocol == "PLAINTEXT"


def test_the_limit_of_all_connections_is_not_the_limit_of_each_listener() -> None:
    config = made(TWO | {"max.connections": "100", "listener.name.external.max.connections": "7"})
    assert config.max_connections == 100
    assert config.listener("EXTERNAL").max_connections == 7
    assert config.listener("INTERNAL").max_connections == 2**31 - 1


def test_a_mechanism_has_its_own_value_else_the_listeners() -> None:
    module = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u";'
    validator = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
    config = made(
        TWO
        | {
            "listener.name.external.plain.sasl.jaas.config": module,
            "listener.name.external.connections.max.reauth.ms": "1000",
            "listener.name.external.scram-sha-256.connections.max.reauth.ms": "2000",
            "listener.name.external.oauthbearer.sasl.server.callback.handler.class": validator,
            "sasl.jaas.config": "ignored, as in Kafka;",
            "sasl.server.callback.handler.class": validator,
        }
    )
    external, reauth = config.listener("EXTERNAL"), "connections.max.reauth.ms"
    assert (external.jaas("PLAIN"), external.jaas("SCRAM-SHA-256")) == (module, None)
    assert config.listener("INTERNAL").jaas("PLAIN") is None
    assert external.of_mechanism("PLAIN", reauth) == 1000
    assert external.of_mechanism("SCRAM-SHA-256", reauth) == 2000
    handler = "sasl.server.callback.handler.class"
    assert external.of_mechanism("OAUTHBEARER", handler) == validator
    assert external.of_mechanism("PLAIN", handler) is None


def test_the_jaas_file_counts_for_mechanisms_without_a_text_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "jaas.conf"
    file.write_text(
        """// As Kafka's manual has it.
        KafkaServer {
            org.apache.kafka.common.security.plain.PlainLoginModule required username="all" password="p";
            org.apache.kafka.common.security.scram.ScramLoginModule required username="scram" password="s";
        };
        external.KafkaServer {
            org.apache.kafka.common.security.plain.PlainLoginModule required
                username="own" password="hunter2";
        };
        Client {
            org.apache.zookeeper.server.auth.DigestLoginModule required username="zk" password="hunter2";
        };
        """
    )
    own = "org.apache.kafka.common.security.plain.PlainLoginModule required;"
    settings = {"java.security.auth.login.config": str(file)}
    config = made(TWO | settings)
    assert parse_jaas(config.listener("EXTERNAL").jaas("PLAIN") or "").username == "own"
    assert config.listener("EXTERNAL").jaas("SCRAM-SHA-256") is None
    assert parse_jaas(config.listener("INTERNAL").jaas("PLAIN") or "").username == "all"
    assert parse_jaas(config.listener("INTERNAL").jaas("SCRAM-SHA-512") or "").username == "scram"
    assert config.zookeeper_login is not None
    assert (config.zookeeper_login.username, config.zookeeper_login.password) == ("zk", "hunter2")
    named = made(TWO | settings | {"listener.name.external.plain.sasl.jaas.config": own})
    assert named.listener("EXTERNAL").jaas("PLAIN") == own
    assert "hunter2" not in repr(config) + repr(config.listener("EXTERNAL"))
    file.write_text('KafkaServer { m required password="hunter2" };')
    text = refusal(TWO | settings)
    assert f"java.security.auth.login.config={str(file)!r} cannot be read: option 2 of a JAAS text" in text
    assert "hunter2" not in text
    assert "cannot be read: [Errno 2]" in refusal({"java.security.auth.login.config": str(tmp_path / "none")})


def test_variables_of_the_environment_give_settings_of_one_listener() -> None:
    config = load_config(
        defaults=REQUIRED | TWO,
        environment={
            "BARNABAS_LISTENER_NAME_EXTERNAL_SSL_KEYSTORE_LOCATION": "/own.pem",
            "BARNABAS_LISTENER_NAME_EXTERNAL_SCRAM_SHA_256_SASL_JAAS_CONFIG": f"{SCRAM_LOGIN} required;",
            "BARNABAS_LISTENER_NAME_SASL_SSL_MAX_CONNECTIONS": "3",
        },
    )
    assert config.listener("EXTERNAL").ssl_keystore_location == "/own.pem"
    assert config.listener("EXTERNAL").jaas("SCRAM-SHA-256") == f"{SCRAM_LOGIN} required;"
    assert config.listener("SASL_SSL").max_connections == 3


def test_secrets_show_themselves_nowhere() -> None:
    config = made(
        TWO
        | {
            "ssl.keystore.password": "hunter2",
            "listener.name.external.ssl.key.password": "hunter2",
            "listener.name.external.plain.sasl.jaas.config": f"{PLAIN_LOGIN} required password=hunter2;",
            "password.encoder.secret": "hunter2",
        }
    )
    external = config.listener("EXTERNAL")
    assert external.ssl_key_password is not None
    assert external.ssl_key_password.value == "hunter2"
    assert external.ssl_keystore_password == Secret("hunter2")
    shown_texts = [repr(config), str(config), repr(external), str(dict(config.given)), f"{Secret('hunter2')}"]
    assert not [text for text in shown_texts if "hunter2" in text]
    assert setting_text(external.ssl_key_password) == "[hidden]"
    assert Secret("a") != Secret("b")
    assert (Secret("a") == "a") is False


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"ssl.keystore.pasword": "hunter2"}, "unknown setting ssl.keystore.pasword=[hidden]; "),
        (
            {"delegation.token.secret.key": "hunter2"},
            "secret.key=[hidden]: expected no value, as there are no",
        ),
        ({"listener.name.x.plain.sasl.jaas.confg": "hunter2"}, "jaas.confg=[hidden]; did you mean"),
        ({"ssl.keystore.type": "BKS"}, "ssl.keystore.type='BKS': expected one of JKS, PKCS12, PEM"),
    ],
)
def test_an_error_names_the_setting_and_hides_a_secret(settings: dict[str, str], kept: str) -> None:
    text = refusal(settings)
    assert kept in text
    assert "hunter2" not in text
    assert shown("log.segment.bytes", "x") == "'x'"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"sasl.enabled.mechanisms": "GSSAPI,PLAIN"},
            "of listener EXTERNAL: GSSAPI is not supported; expected a list of PLAIN, SCRAM-SHA-256, ",
        ),
        (
            {"listener.name.external.sasl.enabled.mechanisms": "GSSAPI"},
            "sasl.enabled.mechanisms=GSSAPI of listener EXTERNAL: GSSAPI is not supported",
        ),
        ({"sasl.enabled.mechanisms": "DIGEST-MD5"}, "sasl.enabled.mechanisms='DIGEST-MD5': expected a comma"),
        (
            {"inter.broker.listener.name": "EXTERNAL", "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER"},
            "sasl.mechanism.inter.broker.protocol=OAUTHBEARER: expected one of sasl.enabled.mechanisms=SCR",
        ),
        (
            {"security.inter.broker.protocol": "SASL_SSL"},
            "inter.broker.listener.name and security.inter.broker.protocol: expected only one of them",
        ),
        ({"principal.builder.class": "com.Own"}, "principal.builder.class='com.Own': expected org.apache."),
        ({"ssl.engine.factory.class": "com.Own"}, "ssl.engine.factory.class='com.Own': expected org.apache."),
        (
            {"client.quota.callback.class": "com.Own"},
            "client.quota.callback.class='com.Own': expected no value",
        ),
        (
            {"authorizer.class.name": "com.Own"},
            "authorizer.class.name='com.Own': expected an empty text, or one",
        ),
        (
            {"listener.name.external.plain.sasl.server.callback.handler.class": "com.Own"},
            "listener.name.external.plain.sasl.server.callback.handler.class='com.Own': expected one of org.",
        ),
        (
            {"super.users": "alice"},
            "super.users='alice': expected a list of principals separated by semicolons",
        ),
        (
            {"listener.name.EXTERNAL.ssl.client.auth": "none"},
            "did you mean listener.name.external.ssl.client.",
        ),
        (
            {"listener.name.external.num.io.threads": "3"},
            "unknown setting listener.name.external.num.io.threads",
        ),
        (
            {"listener.name.external.plain.ssl.client.auth": "none"},
            "unknown setting listener.name.external.pl",
        ),
        (
            {"connection.failed.authentication.delay.ms": "600000"},
            "connection.failed.authentication.delay.ms=600000: expected less than connections.max.idle.ms",
        ),
        ({"password.encoder.key.length": "64"}, "password.encoder.key.length=64: expected 128, 192 or 256"),
        (
            {"zookeeper.ssl.crl.enable": "true"},
            "zookeeper.ssl.crl.enable='true': expected false, as lists of",
        ),
        (
            {"max.connections.per.ip.overrides": "a:x"},
            "max.connections.per.ip.overrides='a:x': expected a comma",
        ),
    ],
)
def test_what_is_missing_is_refused_by_name(settings: dict[str, str], sentence: str) -> None:
    assert sentence in refusal(TWO | settings)


def test_settings_of_kafka_with_the_value_of_a_text() -> None:
    config = made(
        {
            "super.users": "User:alice; User:CN=a,O=b",
            "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
            "max.connections.per.ip.overrides": "localhost:5,::1:7",
            "security.inter.broker.protocol": "SSL",
            "listeners": "PLAINTEXT://:1,SSL://:2",
            "ssl.endpoint.identification.algorithm": "",
            "ssl.cipher.suites": "",
        }
    )
    assert config.super_users == (Principal.user("alice"), Principal.user("CN=a,O=b"))
    assert setting_text(config.super_users) == "User:alice;User:CN=a,O=b"
    assert config.max_connections_per_ip_overrides == {"localhost": 5, "::1": 7}
    assert (config.inter_broker_listener_name, config.inter_broker_security_protocol) == ("SSL", "SSL")
    assert config.listener("SSL").ssl_endpoint_identification_algorithm == ""
    assert config.own_listener.ssl_cipher_suites == ()


def test_a_name_with_the_prefix_of_a_listener_is_taken_apart() -> None:
    parsed = parse_listener_name("listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config")
    assert parsed is not None
    assert parsed[:2] == ("sasl_ssl", "scram-sha-256.sasl.jaas.config")
    assert parsed.declared is LISTENER_SETTINGS["sasl.jaas.config"]
    for name in ("ssl.client.auth", "listener.name.ssl.client.auth", "listener.name.x.", "listener.name..a"):
        assert parse_listener_name(name) is None
