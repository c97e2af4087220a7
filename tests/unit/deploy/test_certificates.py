"""The certificates of a local cluster: their uses, the files that are kept, and those that are made again."""

import datetime
import ssl
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509 import (
    DNSName,
    ExtendedKeyUsage,
    IPAddress,
    SubjectAlternativeName,
    load_pem_x509_certificate,
)
from cryptography.x509.oid import ExtendedKeyUsageOID

from barnabas.common.security.tls import handshake
from barnabas.deploy import certificates
from barnabas.deploy.certificates import (
    CA_FILE,
    check_name,
    keystore_file,
    prepare,
    prepare_client,
    server_names,
)
from barnabas.deploy.process import DeployError

NOW = datetime.datetime.now(datetime.UTC)
NAMES = ["127.0.0.1", "localhost", "::1"]


def _handshake(server_file: Path, ca_file: Path, name: str, client_file: Path | None = None) -> None:
    """A handshake in memory; raises SSLError if the client does not trust the server by this name.

    With the file of a client also if the server does not trust that.
    """
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(server_file)
    client_context = ssl.create_default_context(cafile=ca_file)
    if client_file is not None:
        client_context.load_cert_chain(client_file)
        server_context.load_verify_locations(ca_file)
        server_context.verify_mode = ssl.CERT_REQUIRED
    handshake(server_context, client_context, name)


@pytest.mark.parametrize("name", NAMES)
def test_a_client_trusts_each_broker_by_each_name(tmp_path: Path, name: str) -> None:
    prepare(tmp_path, [1, 2], NAMES, NOW)
    for broker in (1, 2):
        _handshake(keystore_file(tmp_path, broker), tmp_path / CA_FILE, name)
    with pytest.raises(ssl.SSLCertVerificationError):
        _handshake(keystore_file(tmp_path, 1), tmp_path / CA_FILE, "example.com")


def test_only_the_owner_reads_private_keys_which_are_in_pkcs_8(tmp_path: Path) -> None:
    folder = tmp_path / "security"
    prepare(folder, [1], NAMES, NOW)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    with_key = [path for path in folder.iterdir() if b"PRIVATE KEY" in path.read_bytes()]
    assert {path.name for path in with_key} == {"broker-1.pem", "ca-key.pem"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in with_key} == {0o600}
    pem = keystore_file(folder, 1).read_bytes()
    assert pem.startswith(b"-----BEGIN PRIVATE KEY-----")
    load_pem_private_key(pem, None)


def test_what_is_still_good_is_kept(tmp_path: Path) -> None:
    prepare(tmp_path, [1], NAMES, NOW)
    first = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    prepare(tmp_path, [1, 2], NAMES[:2], NOW + datetime.timedelta(days=300))
    second = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert {name: second[name] for name in first} == first
    assert set(second) - set(first) == {"broker-2.pem"}


def test_a_certificate_that_expires_soon_is_made_again_by_the_same_authority(tmp_path: Path) -> None:
    prepare(tmp_path, [1], NAMES, NOW)
    ca, first = (tmp_path / CA_FILE).read_bytes(), keystore_file(tmp_path, 1).read_bytes()
    later = NOW + datetime.timedelta(days=368)
    prepare(tmp_path, [1], NAMES, later)
    assert (tmp_path / CA_FILE).read_bytes() == ca
    assert keystore_file(tmp_path, 1).read_bytes() != first
    renewed = load_pem_x509_certificate(keystore_file(tmp_path, 1).read_bytes())
    assert renewed.not_valid_after_utc > later + datetime.timedelta(days=390)


def test_a_new_name_makes_the_certificate_again(tmp_path: Path) -> None:
    prepare(tmp_path, [1], NAMES, NOW)
    prepare(tmp_path, [1], [*NAMES, "kafka.example.com", "10.0.0.7"], NOW)
    certificate = load_pem_x509_certificate(keystore_file(tmp_path, 1).read_bytes())
    names = certificate.extensions.get_extension_for_class(SubjectAlternativeName).value
    assert "kafka.example.com" in names.get_values_for_type(DNSName)
    assert "10.0.0.7" in map(str, names.get_values_for_type(IPAddress))


@pytest.mark.parametrize("damaged", [CA_FILE, "ca-key.pem", "broker-1.pem"])
def test_a_damaged_file_is_made_again_and_all_fit_together(tmp_path: Path, damaged: str) -> None:
    prepare(tmp_path, [1], NAMES, NOW)
    (tmp_path / damaged).write_text("damaged")
    prepare(tmp_path, [1], NAMES, NOW)
    _handshake(keystore_file(tmp_path, 1), tmp_path / CA_FILE, "localhost")


def test_the_names_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates.socket, "gethostname", lambda: "laptop")
    assert server_names(["db.example.com"]) == ["127.0.0.1", "localhost", "::1", "laptop", "db.example.com"]
    monkeypatch.setattr(certificates.socket, "gethostname", lambda: "my_laptop")
    assert server_names() == ["127.0.0.1", "localhost", "::1"]


@pytest.mark.parametrize("name", ["", "a b", "-a", "a..b", "a_b", "http://a", "*"])
def test_a_text_that_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="expected the name or the address of a host"):
        check_name(name)
    assert check_name("a-1.example.com") == "a-1.example.com"
    assert check_name("::0001") == "::1"


def test_a_users_certificate_is_good_for_a_client_and_for_no_server(tmp_path: Path) -> None:
    folder, client = tmp_path / "security", tmp_path / "keystore.pem"
    prepare(folder, [1], NAMES, NOW)
    prepare_client(folder, client, "localhost", NOW)
    _handshake(keystore_file(folder, 1), folder / CA_FILE, "localhost", client)
    with pytest.raises(ssl.SSLCertVerificationError):
        _handshake(client, folder / CA_FILE, "localhost")
    assert stat.S_IMODE(client.stat().st_mode) == 0o600
    certificate = load_pem_x509_certificate(client.read_bytes())
    assert certificate.subject.rfc4514_string() == "CN=localhost,OU=local cluster,O=Barnabas"
    # Some clients believe the common name of a server without other names.
    usage = certificate.extensions.get_extension_for_class(ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]


def test_a_users_certificate_is_kept_while_it_is_good(tmp_path: Path) -> None:
    folder, client = tmp_path / "security", tmp_path / "keystore.pem"
    prepare(folder, [1], NAMES, NOW)
    texts = []
    for name, days in (("alice", 0), ("alice", 300), ("bob", 300), ("bob", 690)):
        prepare_client(folder, client, name, NOW + datetime.timedelta(days=days))
        texts.append(client.read_bytes())
    assert texts[0] == texts[1]
    assert len({*texts}) == 3
    (folder / "ca-key.pem").write_text("secret")
    with pytest.raises(
        DeployError, match="has no authority that could sign the certificate of 'bob'"
    ) as caught:
        prepare_client(folder, client, "bob", NOW)
    assert caught.value.__suppress_context__
