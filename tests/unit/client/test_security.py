"""The settings of TLS and SASL: the security that they make, refusals, and secrets that they hide."""

import pickle
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme

from barnabas.client.config import AdminConfig, ClientConfig, ProducerConfig
from barnabas.client.security import make_security
from barnabas.common.security.sasl_client import OAuthBearerClient, PlainClient, SaslClient, ScramClient
from barnabas.protocol.errors import InvalidConfiguration

SASL = {"security_protocol": "SASL_PLAINTEXT"}
PLAIN = {**SASL, "sasl_mechanism": "PLAIN"}
OAUTH = {**SASL, "sasl_mechanism": "OAUTHBEARER"}
SCRAM_JAAS = (
    'org.apache.kafka.common.security.scram.ScramLoginModule required username="me" password="hunter2";'
)
PLAIN_JAAS = SCRAM_JAAS.replace("scram.Scram", "plain.Plain")
OAUTH_JAAS = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required {};"


async def started(**settings: Any) -> SaslClient:
    login = make_security(AdminConfig(**settings)).login
    assert login is not None
    return await login.start()


async def test_user_and_password_come_by_name_or_in_kafkas_form() -> None:
    given: list[dict[str, Any]] = [
        {**PLAIN, "sasl_username": "me", "sasl_password": "hunter2"},
        {**PLAIN, "sasl_jaas_config": PLAIN_JAAS},
        {**PLAIN, "sasl_jaas_config": PLAIN_JAAS, "sasl_password": "hunter2"},
        {**PLAIN, **AdminConfig.parse({"sasl.username": "me", "sasl.password": "hunter2"})},
    ]
    for settings in given:
        client = await started(**settings)
        assert isinstance(client, PlainClient)
        assert client.first() == b"\0me\0hunter2"
    scram = await started(**SASL, sasl_mechanism="SCRAM-SHA-512", sasl_jaas_config=SCRAM_JAAS)
    assert isinstance(scram, ScramClient)
    assert scram.mechanism == "SCRAM-SHA-512"
    assert scram.first().startswith(b"n,,n=me,r=")


async def test_tokens_come_from_text_function_file_or_kafkas_form(tmp_path: Path) -> None:
    file = tmp_path / "the token"
    file.write_text("t")
    url = file.as_uri()
    given: list[dict[str, Any]] = [
        {"sasl_oauth_token": "t"},
        {"sasl_oauth_token_provider": lambda: "t"},
        {"sasl_oauthbearer_token_endpoint_url": url},
    ]
    for settings in given:
        client = await started(**OAUTH, **settings, sasl_oauthbearer_extensions="a=b, c=d")
        assert isinstance(client, OAuthBearerClient)
        assert client.first() == b"n,,\x01auth=Bearer t\x01a=b\x01c=d\x01\x01"
    options = 'unsecuredLoginStringClaim_sub="me" unsecuredLoginExtension_x="y" extension_z="1"'
    unsecured = await started(**OAUTH, sasl_jaas_config=OAUTH_JAAS.format(options))
    assert unsecured.first().endswith(b"\x01x=y\x01z=1\x01\x01")


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"security_protocol": "TLS"}, "expected one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
    (
        {"sasl_username": "me"},
        "security_protocol=PLAINTEXT does not use it: expected SASL_SSL or SASL_PLAINTEXT",
    ),
    ({"security_protocol": "SSL", "sasl_password": "hunter2"}, "does not use it: expected SASL_SSL"),
    (SASL, "needs sasl_mechanism: expected one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER"),
    ({**SASL, "sasl_mechanism": "GSSAPI"}, "GSSAPI (Kerberos) is not supported"),
    ({**PLAIN, "sasl_username": "me"}, "sasl_mechanism=PLAIN needs sasl_password, or password in sasl_jaas"),
    (PLAIN, "needs sasl_username"),
    ({**PLAIN, "sasl_jaas_config": SCRAM_JAAS}, "must be org.apache.kafka.common.security.plain.PlainLogin"),
    (
        {**PLAIN, "sasl_jaas_config": PLAIN_JAAS, "sasl_password": "x"},
        "sasl_password and sasl_jaas_config differ",
    ),
    (OAUTH, "expected clientId and clientSecret"),
    ({**OAUTH, "sasl_oauthbearer_token_endpoint_url": "ftp://x"}, "a URL that begins with"),
    (
        {**OAUTH, "sasl_oauthbearer_token_endpoint_url": "http://x"},
        "expected clientId and clientSecret in the JAAS text",
    ),
    ({**OAUTH, "sasl_oauth_token_provider": "hunter2"}, "a function that returns a token"),
    ({"ssl_endpoint_identification_algorithm": "dns"}, "https, or an empty text or none"),
    ({"ssl_ca_location": "a", "ssl_truststore_location": "b"}, "expected one of them"),
    ({"ssl_key_location": "a"}, "expected both or neither"),
    ({"ssl_enabled_protocols": "SSLv3"}, "TLSv1.2, TLSv1.3"),
    ({"sasl_pasword": "hunter2"}, "did you mean sasl_password?"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED)
def test_a_wrong_setting_is_refused_by_name_and_shows_no_secret(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidConfiguration) as refusal:
        ClientConfig.of(settings)
    assert message in str(refusal.value)
    assert "hunter2" not in str(refusal.value)


def test_secrets_are_hidden_and_reach_another_process() -> None:
    config = ProducerConfig(**PLAIN, sasl_username="me", sasl_password="hunter2", ssl_key_password="hunter2")
    assert "hunter2" not in repr(config) + repr(make_security(config))
    copy = pickle.loads(pickle.dumps(config))
    assert copy == config
    assert copy.sasl_password.value == "hunter2"


# ---- TLS


@pytest.fixture(scope="module")
def pems(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pems")
    ca = trustme.CA()
    own = ca.issue_cert("client")
    paths = {name: folder / f"{name}.pem" for name in ("ca", "key", "chain", "both")}
    ca.cert_pem.write_to_path(paths["ca"])
    own.private_key_pem.write_to_path(paths["key"])
    own.cert_chain_pems[0].write_to_path(paths["chain"])
    own.private_key_and_cert_chain_pem.write_to_path(paths["both"])
    return paths


def context(**settings: Any) -> ssl.SSLContext:
    tls = make_security(AdminConfig(security_protocol="ssl", **settings)).tls
    assert tls is not None
    return tls()


def test_the_forms_of_certificates(pems: dict[str, Path]) -> None:
    texts = {name: path.read_text() for name, path in pems.items()}
    paths = {name: str(path) for name, path in pems.items()}
    given: list[dict[str, Any]] = [
        {"ssl_ca_location": paths["ca"]},
        {"ssl_truststore_location": paths["ca"], "ssl_truststore_type": "PEM"},
        {"ssl_truststore_certificates": texts["ca"]},
        {
            "ssl_ca_location": paths["ca"],
            "ssl_certificate_location": paths["chain"],
            "ssl_key_location": paths["key"],
        },
        {"ssl_ca_location": paths["ca"], "ssl_keystore_location": paths["both"]},
        {
            "ssl_ca_location": paths["ca"],
            "ssl_keystore_key": texts["key"],
            "ssl_keystore_certificate_chain": texts["chain"],
        },
    ]
    for settings in given:
        made = context(**settings)
        assert [each["issuer"] for each in made.get_ca_certs()]
        assert made.check_hostname
    assert not context(ssl_endpoint_identification_algorithm="none").check_hostname
    assert not context(**AdminConfig.parse({"ssl.endpoint.identification.algorithm": ""})).check_hostname


def _remove(path: Path) -> None:
    path.unlink()


def _damage(path: Path) -> None:
    path.write_text("damaged")


@pytest.mark.parametrize("harm", [_remove, _damage])
def test_changed_files_count_from_the_next_connection_and_a_bad_change_does_not(
    tmp_path: Path, pems: dict[str, Path], harm: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "ca.pem"
    file.write_text(pems["ca"].read_text())
    tls = make_security(AdminConfig(security_protocol="SSL", ssl_ca_location=str(file))).tls
    assert tls is not None
    first = tls()
    assert tls() is first
    harm(file)
    assert tls() is first
    assert "the earlier certificates stay in use" in caplog.text
    trustme.CA().cert_pem.write_to_path(file)
    second = tls()
    assert second is not first
    assert tls() is second


def test_a_missing_file_is_named_at_the_first_connection() -> None:
    for name in ("ssl_ca_location", "ssl_keystore_location"):
        with pytest.raises(InvalidConfiguration, match="/no/such/file"):
            context(**{name: "/no/such/file"})
    with pytest.raises(InvalidConfiguration, match="ssl_key_location=/no/such/file: No such"):
        context(ssl_key_location="/no/such/file", ssl_certificate_location="/no/such/file")
