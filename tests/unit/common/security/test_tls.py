"""Contexts from Kafka's settings, shown by handshakes in memory."""

import ssl
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12

from barnabas.common.security.tls import (
    TlsSettings,
    client_context,
    handshake,
    openssl_name,
    reason_of,
    server_context,
    settings_from,
)
from barnabas.protocol.errors import InvalidConfiguration
from tests.support.certificates import Certificates
from tests.support.defaults import make_config


def fails(server: ssl.SSLContext, client: ssl.SSLContext, name: str = "localhost") -> str:
    with pytest.raises(ssl.SSLError) as failure:
        handshake(server, client, name)
    return reason_of(failure.value)


class TestHandshakes:
    def test_both_sides_of_the_same_settings(self, certificates: Certificates) -> None:
        settings = certificates.settings()
        serving, _ = handshake(server_context(settings), client_context(settings), "localhost")
        assert serving.version() == "TLSv1.3"
        assert serving.getpeercert(binary_form=True) is None

    def test_a_required_client_certificate(self, certificates: Certificates) -> None:
        server = server_context(certificates.settings(client_auth="required"))
        serving, _ = handshake(server, client_context(certificates.settings("alice")), "localhost")
        assert serving.getpeercert(binary_form=True)
        without = client_context(TlsSettings(truststore_location=str(certificates.trusted)))
        assert "certificate" in fails(server, without)

    def test_a_requested_client_certificate_may_be_missing(self, certificates: Certificates) -> None:
        server = server_context(certificates.settings(client_auth="requested"))
        without = client_context(TlsSettings(truststore_location=str(certificates.trusted)))
        assert handshake(server, without, "localhost")[0].getpeercert(binary_form=True) is None

    def test_a_certificate_of_an_unknown_authority(self, certificates: Certificates, tmp_path: Path) -> None:
        stranger = Certificates(tmp_path)
        server = server_context(certificates.settings(client_auth="required"))
        client = client_context(
            TlsSettings(
                keystore_location=str(stranger.key_store("alice")),
                truststore_location=str(certificates.trusted),
            )
        )
        assert fails(server, client) == ("certificate verify failed: unable to get local issuer certificate")

    def test_an_expired_client_certificate(self, certificates: Certificates) -> None:
        server = server_context(certificates.settings(client_auth="required"))
        client = client_context(
            TlsSettings(
                keystore_location=str(certificates.key_store("old", is_expired=True)),
                truststore_location=str(certificates.trusted),
            )
        )
        assert fails(server, client) == "certificate verify failed: certificate has expired"

    def test_the_name_of_the_server_is_checked_unless_that_is_off(self, certificates: Certificates) -> None:
        server = server_context(certificates.settings())
        checked = client_context(certificates.settings())
        assert "Hostname mismatch" in fails(server, checked, "elsewhere")
        handshake(server, checked, "127.0.0.1")
        unchecked = client_context(certificates.settings(endpoint_identification_algorithm=""))
        handshake(server, unchecked, "elsewhere")

    def test_a_signed_certificate_in_the_trust_store_is_an_anchor(
        self, certificates: Certificates, tmp_path: Path
    ) -> None:
        alone = tmp_path / "server.pem"
        issued = certificates.key_store("server").read_text()
        alone.write_text(issued[issued.index("-----BEGIN CERTIFICATE") :])
        client = client_context(TlsSettings(truststore_location=str(alone)))
        handshake(server_context(certificates.settings()), client, "localhost")

    def test_a_downgrade_is_refused(self, certificates: Certificates) -> None:
        client = certificates.client_context()
        client.set_ciphers("DEFAULT:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="TLSv1"):
            client.minimum_version = ssl.TLSVersion.TLSv1
        with pytest.warns(DeprecationWarning, match="TLSv1"):
            client.maximum_version = ssl.TLSVersion.TLSv1_1
        assert fails(server_context(certificates.settings()), client) == "unsupported protocol"


class TestProtocolsAndSuites:
    @pytest.mark.parametrize(
        ("protocols", "suites", "expected"),
        [
            (("TLSv1.2",), (), "TLSv1.2"),
            (("TLSv1.3",), (), "TLSv1.3"),
            (("TLSv1.2", "TLSv1.3"), ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",), "TLSv1.2"),
            (("TLSv1.2", "TLSv1.3"), ("TLS_AES_256_GCM_SHA384",), "TLSv1.3"),
        ],
    )
    def test_the_version_of_a_connection(
        self, certificates: Certificates, protocols: tuple[str, ...], suites: tuple[str, ...], expected: str
    ) -> None:
        limited = certificates.settings(enabled_protocols=protocols, cipher_suites=suites)
        serving, _ = handshake(server_context(limited), client_context(certificates.settings()), "localhost")
        assert serving.version() == expected

    def test_a_chosen_suite(self, certificates: Certificates) -> None:
        suite = "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"
        limited = certificates.settings(cipher_suites=(suite,))
        serving, _ = handshake(server_context(limited), client_context(certificates.settings()), "localhost")
        cipher = serving.cipher()
        assert cipher is not None
        assert cipher[0] == "ECDHE-ECDSA-CHACHA20-POLY1305"

    @pytest.mark.parametrize(
        ("java", "openssl"),
        [
            ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "ECDHE-RSA-AES256-GCM-SHA384"),
            ("TLS_RSA_WITH_AES_128_CBC_SHA", "AES128-SHA"),
            ("TLS_DHE_RSA_WITH_CHACHA20_POLY1305_SHA256", "DHE-RSA-CHACHA20-POLY1305"),
            ("TLS_ECDHE_ECDSA_WITH_AES_128_CCM_8", "ECDHE-ECDSA-AES128-CCM8"),
            ("TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA384", "ECDHE-ECDSA-AES256-SHA384"),
            ("TLS_ECDHE_RSA_WITH_CAMELLIA_128_CBC_SHA256", "ECDHE-RSA-CAMELLIA128-SHA256"),
            ("ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-RSA-AES256-GCM-SHA384"),
        ],
    )
    def test_names_of_suites(self, java: str, openssl: str) -> None:
        assert openssl_name(java) == openssl
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).set_ciphers(openssl)

    def test_one_suite_of_tls_13_warns_that_the_others_stay(
        self, certificates: Certificates, caplog: pytest.LogCaptureFixture
    ) -> None:
        server_context(certificates.settings(cipher_suites=("TLS_AES_256_GCM_SHA384",)))
        assert "TLS_AES_128_GCM_SHA256, TLS_CHACHA20_POLY1305_SHA256 are used too" in caplog.text

    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            ({"enabled_protocols": ("TLSv1.1", "TLSv1.2")}, "TLSv1.1 not supported"),
            ({"cipher_suites": ("TLS_NO_SUCH_WITH_THING",)}, "TLS_NO_SUCH_WITH_THING is unknown"),
            (
                {"enabled_protocols": ("TLSv1.3",), "cipher_suites": ("ECDHE-RSA-AES256-GCM-SHA384",)},
                "at least one suite for TLSv1.3",
            ),
            ({"client_auth": "perhaps"}, "ssl.client.auth=perhaps"),
        ],
    )
    def test_refused_settings(
        self, certificates: Certificates, changed: dict[str, object], message: str
    ) -> None:
        with pytest.raises(InvalidConfiguration, match=message):
            server_context(certificates.settings(**changed))

    def test_another_check_of_the_name_is_refused(self, certificates: Certificates) -> None:
        with pytest.raises(InvalidConfiguration, match="expected https"):
            client_context(certificates.settings(endpoint_identification_algorithm="LDAPS"))


SECRET = "hunter2"


@pytest.fixture(scope="module")
def encrypted(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A PEM file whose key is encrypted PKCS8."""
    text = certificates.key_store("server").read_bytes()
    key = serialization.load_pem_private_key(text, None)
    path = tmp_path_factory.mktemp("encrypted") / "server.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(SECRET.encode()),
        )
        + text[text.index(b"-----BEGIN CERTIFICATE") :]
    )
    return path


@pytest.fixture(scope="module")
def pkcs12_store(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Path:
    text = certificates.key_store("server").read_bytes()
    key = serialization.load_pem_private_key(text, None)
    chain = x509.load_pem_x509_certificates(text)
    path = tmp_path_factory.mktemp("pkcs12") / "server.jks"
    path.write_bytes(
        pkcs12.serialize_key_and_certificates(
            b"server",
            key,  # type: ignore[arg-type]  # it takes this kind
            chain[0],
            chain[1:] or None,
            serialization.BestAvailableEncryption(SECRET.encode()),
        )
    )
    return path


class TestKeyStores:
    def serves(self, certificates: Certificates, **settings: object) -> None:
        server = server_context(TlsSettings(**settings))  # type: ignore[arg-type]  # values are of any type
        handshake(server, client_context(certificates.settings()), "localhost")

    def refusal(self, **settings: object) -> str:
        with pytest.raises(InvalidConfiguration) as refused:
            server_context(TlsSettings(**settings))  # type: ignore[arg-type]  # values are of any type
        assert SECRET not in str(refused.value)
        assert "PRIVATE" not in str(refused.value)
        return str(refused.value)

    def test_an_encrypted_key(self, certificates: Certificates, encrypted: Path) -> None:
        self.serves(certificates, keystore_location=str(encrypted), key_password=SECRET)
        assert "expected ssl.key.password" in self.refusal(keystore_location=str(encrypted))
        assert "cannot be used" in self.refusal(keystore_location=str(encrypted), key_password="wrong")

    def test_inline_pem_on_one_line_as_in_a_properties_file(
        self, certificates: Certificates, encrypted: Path
    ) -> None:
        text = " ".join(encrypted.read_text().split("\n"))
        at = text.index("-----BEGIN CERTIFICATE")
        self.serves(
            certificates,
            keystore_type="PEM",
            keystore_key=text[:at],
            keystore_certificate_chain=text[at:],
            key_password=SECRET,
        )

    def test_pkcs12_in_a_jks_file(self, certificates: Certificates, pkcs12_store: Path) -> None:
        self.serves(certificates, keystore_location=str(pkcs12_store), keystore_password=SECRET)
        refusal = self.refusal(keystore_location=str(pkcs12_store), keystore_password="wrong")
        assert "no PKCS12 for this password" in refusal

    def test_a_trust_store_of_java(self, certificates: Certificates, tmp_path: Path) -> None:
        store = tmp_path / "trust.p12"
        authority = x509.load_pem_x509_certificate(certificates.trusted.read_bytes())
        store.write_bytes(
            pkcs12.serialize_java_truststore(
                [pkcs12.PKCS12Certificate(authority, b"ca")],
                serialization.BestAvailableEncryption(SECRET.encode()),
            )
        )
        client = client_context(TlsSettings(truststore_location=str(store), truststore_password=SECRET))
        handshake(server_context(certificates.settings()), client, "localhost")

    def test_jks_is_refused_with_the_command_that_converts_it(self, tmp_path: Path) -> None:
        store = tmp_path / "old.jks"
        store.write_bytes(b"\xfe\xed\xfe\xed" + bytes(40))
        assert f"keytool -importkeystore -srckeystore {store}" in self.refusal(
            keystore_location=str(store), keystore_password=SECRET
        )

    def test_without_cryptography_pkcs12_names_the_extra(
        self, pkcs12_store: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.serialization", None)
        assert "barnabas[secure]" in self.refusal(
            keystore_location=str(pkcs12_store), keystore_password=SECRET
        )

    def test_a_key_of_another_certificate(self, certificates: Certificates) -> None:
        refusal = self.refusal(
            keystore_type="PEM",
            keystore_key=certificates.key_store("server").read_text(),
            keystore_certificate_chain=certificates.key_store("alice").read_text(),
        )
        assert "key values mismatch" in refusal

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({}, "a TLS listener needs a certificate"),
            ({"keystore_location": "/nowhere"}, "ssl.keystore.location=/nowhere: cannot be read"),
            ({"keystore_location": "/dev/null"}, "expected one PEM private key, found 0"),
            ({"keystore_password": SECRET}, "expected both or neither"),
            ({"keystore_type": "PEM", "keystore_key": SECRET}, "expected both or neither"),
            ({"keystore_key": SECRET, "keystore_certificate_chain": ""}, "expected PEM"),
        ],
    )
    def test_refused_key_stores(self, settings: dict[str, object], message: str) -> None:
        assert message in self.refusal(**settings)

    def test_settings_of_a_listener(self, certificates: Certificates, encrypted: Path) -> None:
        config = make_config(
            listeners="SSL://:9093",
            inter_broker_listener_name="SSL",
            ssl_keystore_type="PEM",
            ssl_enabled_protocols="TLSv1.2",
            ssl_client_auth="required",
            ssl_truststore_location=certificates.trusted,
            **{"listener_name_ssl_ssl_keystore_location": encrypted},
            **{"listener_name_ssl_ssl_key_password": SECRET},
        )
        server = server_context(settings_from(config.listener("SSL")))
        serving, _ = handshake(server, client_context(certificates.settings("alice")), "localhost")
        assert serving.version() == "TLSv1.2"
        assert serving.getpeercert(binary_form=True)

    def test_secrets_are_not_shown(self) -> None:
        settings = TlsSettings(key_password=SECRET, keystore_password=SECRET, keystore_key=SECRET)
        assert SECRET not in repr(settings)


def test_a_trust_store_with_odd_letters_is_refused(certificates: Certificates, tmp_path: Path) -> None:
    store = tmp_path / "trusted.pem"
    store.write_text("-----BEGIN CERTIFICATE-----\nMII\u00e4\n-----END CERTIFICATE-----\n", "utf-8")
    settings = replace(certificates.settings(client_auth="required"), truststore_location=str(store))
    with pytest.raises(InvalidConfiguration, match=r"trusted\.pem: the certificates cannot be used"):
        server_context(settings)
