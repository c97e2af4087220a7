"""Dynamic settings of listeners: encrypted passwords, and the changes of an open listener."""

import logging
from collections.abc import Mapping

import pytest

from barnabas.broker.config.describe import Alteration, altered, describe_all_brokers, describe_broker
from barnabas.broker.config.dynamic import ConfigLayers, LiveSettings, re_encoded
from barnabas.broker.config.load import config_from
from barnabas.broker.config.password_encoder import decode, encode
from barnabas.broker.config.settings import BrokerConfig
from barnabas.broker.config.topic_configs import TopicConfigs
from barnabas.common.security.secret import Secret
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.ids import BrokerId
from barnabas.protocol.messages.configs import ConfigOperation, ConfigResourceType, ConfigSource
from barnabas.zookeeper.configs import ALL_BROKERS, Entity
from barnabas.zookeeper.znodes import StoredConfig
from tests.support.defaults import REQUIRED

OWN = Entity.broker(BrokerId(1))
BROKER, SET = ConfigResourceType.BROKER, ConfigOperation.SET
EXTERNAL = "listener.name.external."
TWO = {
    "listeners": "INTERNAL://:9092,EXTERNAL://:9093",
    "listener.security.protocol.map": "INTERNAL:PLAINTEXT,EXTERNAL:SSL,NEW:SASL_SSL",
    "inter.broker.listener.name": "INTERNAL",
    "password.encoder.secret": "encoder-secret",
    "password.encoder.iterations": "1024",
    f"{EXTERNAL}ssl.keystore.location": "/old.p12",
    f"{EXTERNAL}ssl.keystore.password": "old-secret",
}
KAFKAS = (
    "initializationVector:Cf/JrecQ1h4b34Kh0b0FIg==,keyLength:128,salt:uwrVk2uwJ8IKdgABdbwCS+X5pqcYdehT4TR"
    "ZkWPcLCY7UptP2Eyt2OIKTGyGV4RwaQP5YJWiD8eKI+czJXfPrdsTut90gX/Ljuea3Ml1ejOH+FTdskUUIz6jt6G1vc3vV9TcYCd"
    "BAmkdElMip/ycEs6N+9uYjALGXxBGsKHG41GhTZu3Rq+paien7HW4lp20bOAg+Ug7TfW9+BSk8aNtYmN+dufa52Xz/llRGVlzGJR"
    "TrebACiEFVJblfFUFn1in2w/0bYOiWlnOQVd/rXWJZcY8LotOSQLpR9MFgcPGXrKXFWQFzlgubUuPwUDX8OnrW7+3TDU5n/87mmK"
    "Hg2tQUg==,keyFactoryAlgorithm:PBKDF2WithHmacSHA512,cipherAlgorithm:AES/CBC/PKCS5Padding,iterations:1"
    "024,passwordLength:12,encryptedPassword:iYx+ZxgyoajUGSY1mciDZQ=="
)
"""Encoded by Apache Kafka 3.9.1 with the secret of `TWO`."""


def static(**changes: str) -> BrokerConfig:
    return config_from(REQUIRED | TWO | {name.replace("_", "."): value for name, value in changes.items()})


def layers(broker: Mapping[str, str], everywhere: Mapping[str, str] | None = None) -> ConfigLayers:
    made, problems = ConfigLayers.of(static(), broker, everywhere or {})
    assert not problems
    return made


def alter(current: Mapping[str, str], *changes: tuple[str, str]) -> dict[str, str]:
    alterations = [Alteration(name, SET, value) for name, value in changes]
    return altered(BROKER, current, alterations, layers(current))


def test_a_password_is_kept_encrypted_and_in_force_decoded() -> None:
    stored = alter(
        {},
        (f"{EXTERNAL}ssl.keystore.location", "/new.p12"),
        (f"{EXTERNAL}ssl.keystore.password", "new-secret"),
    )
    assert stored[f"{EXTERNAL}ssl.keystore.location"] == "/new.p12"
    assert "new-secret" not in stored[f"{EXTERNAL}ssl.keystore.password"]
    assert "keyFactoryAlgorithm:PBKDF2WithHmacSHA512" in stored[f"{EXTERNAL}ssl.keystore.password"]
    made = layers(stored)
    listener = made.listener("EXTERNAL")
    assert listener.ssl_keystore_location == "/new.p12"
    assert listener.ssl_keystore_password == Secret("new-secret")
    assert made.listener("INTERNAL").ssl_keystore_location is None
    assert not [secret for secret in ("new-secret", "old-secret", "encoder-secret") if secret in repr(made)]
    # A change of another setting leaves the encrypted text as it is.
    assert alter(stored, ("max.connections", "5")) == stored | {"max.connections": "5"}


def test_a_password_that_kafka_encoded_is_decoded() -> None:
    assert layers({f"{EXTERNAL}ssl.key.password": KAFKAS}).listener("EXTERNAL").ssl_key_password == Secret(
        "kafka-sécret"
    )


def test_passwords_are_described_without_their_texts() -> None:
    stored = alter(
        {}, (f"{EXTERNAL}ssl.keystore.password", "new-secret"), (f"{EXTERNAL}max.connections", "9")
    )
    entries = {entry.name: entry for entry in describe_broker(layers(stored, {"max.connections": "8"}))}
    password = entries[f"{EXTERNAL}ssl.keystore.password"]
    assert (password.value, password.is_sensitive, password.read_only) == (None, True, False)
    assert password.config_source == ConfigSource.DYNAMIC_BROKER_CONFIG
    assert [(each.value, each.source) for each in password.synonyms] == [
        (None, ConfigSource.DYNAMIC_BROKER_CONFIG),
        (None, ConfigSource.STATIC_BROKER_CONFIG),
        (None, ConfigSource.DEFAULT_CONFIG),
    ]
    location = entries[f"{EXTERNAL}ssl.keystore.location"]
    assert (location.value, location.config_source) == ("/old.p12", ConfigSource.STATIC_BROKER_CONFIG)
    assert entries[f"{EXTERNAL}max.connections"].value == "9"
    assert (entries["max.connections"].value, entries["ssl.keystore.location"].read_only) == ("8", True)
    limits = layers({}, {f"{EXTERNAL}max.connections": "9"})
    assert [entry.name for entry in describe_all_brokers(limits)] == [f"{EXTERNAL}max.connections"]
    assert limits.listener("EXTERNAL").max_connections == 9


@pytest.mark.parametrize(
    ("name", "value", "code", "sentence"),
    [
        (
            "ssl.keystore.location",
            "/k",
            ErrorCode.INVALID_REQUEST,
            "These security configs can be dynamically updated only per-listener using the listener prefix",
        ),
        ("super.users", "User:a", ErrorCode.INVALID_REQUEST, "Cannot update these configs dynamically"),
        (f"{EXTERNAL}ssl.keystore.typo", "x", ErrorCode.INVALID_CONFIG, "unknown broker setting"),
        (
            f"{EXTERNAL}ssl.keystore.type",
            "x",
            ErrorCode.INVALID_CONFIG,
            "ssl.keystore.type='x': expected one of",
        ),
        (
            f"{EXTERNAL}ssl.client.auth",
            "required",
            ErrorCode.INVALID_CONFIG,
            "Configs cannot be updated dynamically for existing listener EXTERNAL, restart broker or create",
        ),
        (
            f"{EXTERNAL}plain.sasl.jaas.config",
            "m required;",
            ErrorCode.INVALID_CONFIG,
            "Configs cannot be updated dynamically for existing listener EXTERNAL",
        ),
        ("max.connections", "0", ErrorCode.INVALID_CONFIG, "max.connections=0: no client could connect"),
        (f"{EXTERNAL}max.connection.creation.rate", "0", ErrorCode.INVALID_CONFIG, "no client could connect"),
        (
            "max.connections.per.ip",
            "0",
            ErrorCode.INVALID_CONFIG,
            "expected max.connections.per.ip.overrides",
        ),
        (
            "listener.security.protocol.map",
            "INTERNAL:PLAINTEXT,EXTERNAL:PLAINTEXT",
            ErrorCode.INVALID_CONFIG,
            "Security protocol cannot be updated for existing listener EXTERNAL: expected SSL",
        ),
    ],
)
def test_what_cannot_change_while_a_broker_runs_is_refused(
    name: str, value: str, code: ErrorCode, sentence: str
) -> None:
    with pytest.raises(ApiError) as refused:
        alter({}, (name, value))
    assert refused.value.code is code
    assert sentence in str(refused.value)


def test_all_but_some_addresses_may_be_refused() -> None:
    chosen = ("max.connections.per.ip", "0"), ("max.connections.per.ip.overrides", "10.0.0.1:9")
    assert alter({}, *chosen) == dict(chosen)


def test_a_new_listener_comes_with_any_settings() -> None:
    jaas = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    stored = alter(
        {},
        ("listeners", f"{TWO['listeners']},NEW://:9094"),
        ("listener.name.new.sasl.enabled.mechanisms", "SCRAM-SHA-256"),
        ("listener.name.new.scram-sha-256.sasl.jaas.config", jaas),
        ("listener.name.new.ssl.client.auth", "required"),
    )
    new = layers(stored).listener("NEW")
    assert (new.jaas("SCRAM-SHA-256"), new.ssl_client_auth) == (jaas, "required")
    # Once it is open they are fixed.
    with pytest.raises(ApiError, match="for existing listener NEW"):
        alter(stored, ("listener.name.new.ssl.client.auth", "none"))


def test_a_new_listener_without_a_supported_mechanism_is_refused() -> None:
    added = ("listeners", f"{TWO['listeners']},NEW://:9094")
    with pytest.raises(ApiError, match="of listener NEW: GSSAPI is not supported"):
        alter({}, added)
    plain = ("listener.name.new.sasl.enabled.mechanisms", "PLAIN")
    jaas = ("listener.name.new.plain.sasl.jaas.config", "com.Own required password=hunter2;")
    with pytest.raises(ApiError, match=r"new\.plain\.sasl\.jaas\.config: the login module of") as refused:
        alter({}, added, plain, jaas)
    assert "hunter2" not in str(refused.value)


def test_without_a_secret_of_the_encoder_no_password_is_taken() -> None:
    made, _ = ConfigLayers.of(config_from(REQUIRED), {}, {})
    name = "listener.name.plaintext.ssl.key.password"
    with pytest.raises(ApiError, match="Password encoder secret not configured") as refused:
        altered(BROKER, {}, [Alteration(name, SET, "new-secret")], made)
    assert "new-secret" not in str(refused.value)
    _, problems = ConfigLayers.of(config_from(REQUIRED), {name: "stored"}, {})
    assert problems == [f"{name} cannot be decoded with password.encoder.secret, which is not set"]


def test_a_password_is_decoded_with_the_old_secret_during_a_change() -> None:
    stored = alter({}, (f"{EXTERNAL}ssl.key.password", "new-secret"))
    changed = {"password.encoder.secret": "next", "password.encoder.old.secret": "encoder-secret"}
    made, problems = ConfigLayers.of(config_from(REQUIRED | TWO | changed), stored, {})
    assert not problems
    assert made.listener("EXTERNAL").ssl_key_password == Secret("new-secret")
    moved = re_encoded(config_from(REQUIRED | TWO | changed), stored)
    made, _ = ConfigLayers.of(static(password_encoder_secret="next"), moved, {})
    assert made.listener("EXTERNAL").ssl_key_password == Secret("new-secret")
    assert re_encoded(config_from(REQUIRED | TWO | changed), moved) == moved
    lost, problems = ConfigLayers.of(static(password_encoder_secret="next"), stored, {})
    assert problems == [f"{EXTERNAL}ssl.key.password cannot be decoded with password.encoder.secret"]
    assert lost.listener("EXTERNAL").ssl_key_password is None


def test_no_password_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    config = static()
    live = LiveSettings(
        config,
        TopicConfigs(config.topics),
        topics_changed=lambda topics: None,
        topics_written=lambda topics: None,
        layers_changed=lambda layers: None,
    )
    name = f"{EXTERNAL}ssl.keystore.password"
    stored = alter({}, (name, "new-secret"))
    with caplog.at_level(logging.INFO):
        live.take({OWN: StoredConfig(stored)})
        live.take(
            {OWN: StoredConfig({name: "plain-secret"}), ALL_BROKERS: StoredConfig({name: stored[name]})}
        )
    assert f"{name} cannot be decoded with password.encoder.secret" in caplog.text
    assert f"{name} cannot be set for all brokers" in caplog.text
    assert f"'{name}': '[hidden]'" in caplog.text
    assert not [text for text in ("new-secret", "plain-secret", stored[name]) if text in caplog.text]


@pytest.mark.parametrize("cipher", ["AES/CBC/PKCS5Padding", "AES/GCM/NoPadding"])
@pytest.mark.parametrize("password", ["", "a", "sixteen letters!", "pässwörd \U0001f511"])
def test_a_password_survives_encoding(cipher: str, password: str) -> None:
    config = static(password_encoder_cipher_algorithm=cipher, password_encoder_key_length="256")
    secret = Secret("one")
    text = encode(config, secret, Secret(password))
    assert decode(secret, text).value == password
    assert ("authenticationTagLength:128" in text) == ("GCM" in cipher)
    assert encode(config, secret, Secret(password)) != text
    assert decode(secret, text) is decode(secret, text), "the derivation of a key is slow"
    with pytest.raises(ValueError, match="cannot be decoded"):
        decode(Secret("other"), text)


@pytest.mark.parametrize("change", ["", "salt:", "iterations:99999999999", "keyLength:7", "passwordLength:8"])
def test_a_damaged_text_of_a_password_is_refused(change: str) -> None:
    secret = Secret("encoder-secret")
    text = encode(static(), secret, Secret("1234567"))
    name = change.partition(":")[0]
    parts = [part for part in text.split(",") if not part.startswith(f"{name}:")]
    damaged = ",".join([*parts, change]) if change else "no parts"
    with pytest.raises(ValueError, match="cannot be decoded"):
        decode(secret, damaged)
