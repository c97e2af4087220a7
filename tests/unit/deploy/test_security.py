"""The security of a local cluster: parts that fit, kept passwords, settings of brokers and clients."""

import datetime
import json
import os
import runpy
import ssl
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from barnabas.common.properties import parse_properties
from barnabas.common.security.certificate_names import names_of_pem
from barnabas.common.security.jaas import parse_jaas, parse_jaas_file
from barnabas.common.security.keystores import read_keys
from barnabas.common.security.principal_mapping import PrincipalMapping
from barnabas.common.security.scram import ScramCredential, ScramMechanism, credential_of, salted_password
from barnabas.deploy import private_files
from barnabas.deploy import security as security_module
from barnabas.deploy.certificates import CA_FILE
from barnabas.deploy.client_settings import KINDS, client_settings
from barnabas.deploy.process import DeployError
from barnabas.deploy.security import (
    ADMIN,
    BROKER,
    ClusterSecurity,
    UserPasswords,
    check_configuration,
    with_password,
    with_super_users,
)
from barnabas.deploy.state import SecurityConfiguration
from barnabas.protocol.errors import InvalidConfiguration

NOW = datetime.datetime.now(datetime.UTC)
SECURE = SecurityConfiguration(tls=True, mechanism="SCRAM-SHA-256", acl=True)
CERTIFICATES = SecurityConfiguration(tls=True, acl=True)
BOOTSTRAP = "127.0.0.1:9092,127.0.0.1:9093"


def prepared(
    directory: Path, configuration: SecurityConfiguration = SECURE, users: UserPasswords | None = None
) -> ClusterSecurity:
    security = ClusterSecurity(directory, configuration)
    security.prepare([1, 2], users or {}, NOW)
    return security


@pytest.mark.parametrize(
    ("configuration", "users", "settings", "complaint"),
    [
        (None, {"alice": None}, {}, "--user needs users.*--sasl SCRAM-SHA-256"),
        (SecurityConfiguration(acl=True), {}, {}, "--acl needs users.*--sasl SCRAM-SHA-256, or --tls"),
        (CERTIFICATES, {"alice": "x"}, {}, "'alice': a password needs --sasl SCRAM-SHA-256"),
        (CERTIFICATES, {"admin": None}, {}, "'admin': in a certificate expected .* neither admin nor"),
        (CERTIFICATES, {"broker-1": None}, {}, "'broker-1': in a certificate expected .* neither admin nor"),
        (CERTIFICATES, {"a,CN=b": None}, {}, "'a,CN=b': in a certificate expected"),
        (CERTIFICATES, {"x" * 65: None}, {}, "in a certificate expected at most 64"),
        (SecurityConfiguration(mechanism="GSSAPI"), {}, {}, "GSSAPI: expected one of PLAIN, SCRAM-SHA-256"),
        (SecurityConfiguration(mechanism="OAUTHBEARER"), {}, {}, "--set sasl.oauthbearer.jwks.endpoint.url="),
        (SECURE, {"admin": "x"}, {}, "'admin': the cluster makes this user itself"),
        (SECURE, {"broker": "x"}, {}, "'broker': the cluster makes this user itself"),
        (SECURE, {"..": None}, {}, "expected a printable name"),
        (SECURE, {"a\nb": None}, {}, "expected a printable name"),
        (SecurityConfiguration(mechanism="PLAIN"), {"a b": None}, {}, "with PLAIN expected letters"),
    ],
)
def test_parts_that_do_not_fit_are_refused(
    configuration: SecurityConfiguration | None,
    users: UserPasswords,
    settings: dict[str, str],
    complaint: str,
) -> None:
    with pytest.raises(InvalidConfiguration, match=complaint):
        check_configuration(configuration, users, settings)


def test_parts_that_fit() -> None:
    check_configuration(None, {}, {})
    check_configuration(SECURE, {"alice@example.com": "secret"}, {})
    check_configuration(SecurityConfiguration(tls=True), {}, {})
    check_configuration(CERTIFICATES, {"alice@example.com": None}, {})
    check_configuration(
        SecurityConfiguration(mechanism="OAUTHBEARER"),
        {},
        {"sasl.oauthbearer.jwks.endpoint.url": "file:///k"},
    )


def test_users_that_come_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    names = [f"user-{number}" for number in range(8)]
    prepared(tmp_path)

    def keep(name: str) -> None:
        ClusterSecurity(tmp_path, SECURE).keep_user(name, "secret", BOOTSTRAP)

    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(keep, names))
    assert set(names) < set(ClusterSecurity(tmp_path, SECURE).users)


def test_a_folder_of_another_user_gets_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "security").mkdir()
    monkeypatch.setattr(private_files.os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(DeployError, match="belongs to another user"):
        prepared(tmp_path)
    assert list((tmp_path / "security").iterdir()) == []


def test_passwords_are_random_or_given_and_kept(tmp_path: Path) -> None:
    first = prepared(tmp_path, users={"zookeeper": None, "bob": "given"}).users
    assert set(first) == {ADMIN, BROKER, "zookeeper", "bob"}
    assert first["bob"] == "given"
    assert len({*first.values()}) == 4
    assert all(len(first[name]) == 32 for name in (ADMIN, BROKER, "zookeeper"))
    again = prepared(tmp_path, users={"zookeeper": None, "bob": "changed"}).users
    assert again == first | {"bob": "changed"}


def test_a_private_file_is_on_the_disk_before_it_replaces_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[dict[str, str]] = []

    def sync(descriptor: int) -> None:
        synced.append({path.name: path.read_text() for path in tmp_path.iterdir()})

    monkeypatch.setattr(private_files.os, "fsync", sync)
    private_files.write_private(tmp_path / "passwords.json", "secret")
    assert synced == [{f".passwords.json.{os.getpid()}.new": "secret"}]


def test_secrets_are_in_private_files_and_in_no_text_that_is_shown(tmp_path: Path) -> None:
    security = prepared(tmp_path, users={"alice": None})
    folders = security.write_clients(BOOTSTRAP)
    passwords = security.users.values()
    for path in tmp_path.rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path
    assert [folder.name for folder in folders] == ["admin", "alice"]
    shown = json.dumps(security.describe()) + repr(security.access(BOOTSTRAP)) + repr(security)
    assert not [password for password in passwords if password in shown]
    assert security.describe()["users"] == ["admin", "alice"]


def test_a_broker_gets_its_own_certificate_and_the_brokers_user(tmp_path: Path) -> None:
    security = prepared(tmp_path)
    settings = security.broker_settings(2)
    jaas = parse_jaas(settings.pop("listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config"), "SCRAM-SHA-256")
    assert (jaas.username, jaas.password, jaas.users) == (BROKER, security.users[BROKER], {})
    assert settings == {
        "security.inter.broker.protocol": "SASL_SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(tmp_path / "security" / "broker-2.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(tmp_path / "security" / "ca.pem"),
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256",
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:admin;User:broker",
    }


def test_with_plain_the_brokers_know_the_passwords(tmp_path: Path) -> None:
    security = prepared(tmp_path, SecurityConfiguration(mechanism="PLAIN"), {"alice": "secret"})
    settings = security.broker_settings(1)
    jaas = parse_jaas(settings["listener.name.sasl_plaintext.plain.sasl.jaas.config"], "PLAIN")
    assert jaas.users == security.users
    assert "ssl.keystore.location" not in settings
    assert "authorizer.class.name" not in settings


def test_with_tokens_admin_and_the_brokers_log_in_by_scram(tmp_path: Path) -> None:
    security = prepared(tmp_path, SecurityConfiguration(tls=True, mechanism="OAUTHBEARER"))
    settings = security.broker_settings(1)
    assert settings["sasl.enabled.mechanisms"] == "OAUTHBEARER,SCRAM-SHA-256"
    assert settings["sasl.mechanism.inter.broker.protocol"] == "SCRAM-SHA-256"
    assert security.access(BOOTSTRAP).mechanism == "SCRAM-SHA-256"


def test_tls_alone_has_no_users(tmp_path: Path) -> None:
    security = prepared(tmp_path, SecurityConfiguration(tls=True))
    assert "sasl.enabled.mechanisms" not in security.broker_settings(1)
    (folder,) = security.write_clients(BOOTSTRAP)
    assert client_settings("java", security.access(BOOTSTRAP)) == {
        "bootstrap.servers": BOOTSTRAP,
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(tmp_path / "security" / CA_FILE),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(tmp_path / "clients" / "admin" / "keystore.pem"),
    }
    assert "sasl" not in (folder / "confluent.json").read_text()
    assert security.describe()["users"] == []


def test_certificates_tell_users_apart(tmp_path: Path) -> None:
    security = prepared(tmp_path, CERTIFICATES, {"alice": None})
    settings = security.broker_settings(2)
    assert settings["ssl.client.auth"] == "required"
    assert settings["super.users"] == "User:admin;User:broker"
    mapping = PrincipalMapping(settings["ssl.principal.mapping.rules"])

    def principal(path: str) -> str | None:
        return mapping.name_of(names_of_pem(read_keys(str(tmp_path / path), None, None).chain).subject)

    assert principal("clients/alice/keystore.pem") == "alice"
    assert principal("clients/admin/keystore.pem") == ADMIN
    assert principal("security/broker-2.pem") == BROKER
    assert security.describe()["users"] == ["admin", "alice"]
    # The next start knows them by their certificates.
    assert prepared(tmp_path, CERTIFICATES).client_users == ["admin", "alice"]
    with pytest.raises(DeployError, match=r"user 'bob' has no certificate in .*clients"):
        security.access(BOOTSTRAP, "bob")


def test_users_with_odd_names_and_passwords_do_without_certificates(tmp_path: Path) -> None:
    security = prepared(tmp_path, users={"a,b": None, "broker-1": None})
    security.write_clients(BOOTSTRAP)
    for user in ("a,b", "broker-1"):
        assert "keystore" not in security.clients_of(user).joinpath("client.properties").read_text()


def test_each_file_of_a_user_has_the_settings_of_its_client(tmp_path: Path) -> None:
    password = 'quo"ted\\ and spaced ü'
    security = prepared(tmp_path, users={"alice": password})
    folder = security.clients_of("alice")
    security.write_clients(BOOTSTRAP)
    access = security.access(BOOTSTRAP, "alice")

    def settings(kind: str) -> dict[str, Any]:
        return client_settings(kind, access)

    assert parse_properties((folder / "client.properties").read_text("ascii")) == settings("java")
    assert parse_jaas(settings("java")["sasl.jaas.config"], "SCRAM-SHA-256").options == {
        "username": "alice",
        "password": password,
    }
    for kind in ("confluent", "kafka-python", "barnabas", "spark"):
        assert json.loads((folder / f"{kind.replace('-', '_')}.json").read_text()) == settings(kind)
    assert settings("spark") == {f"kafka.{name}": value for name, value in settings("java").items()}
    assert (
        settings("confluent")["sasl.password"] == settings("kafka-python")["sasl_plain_password"] == password
    )
    keystore = str(folder / "keystore.pem")
    assert settings("java")["ssl.keystore.location"] == settings("kafka-python")["ssl_certfile"] == keystore
    assert settings("confluent")["ssl.certificate.location"] == settings("barnabas")["ssl_key_location"]
    assert settings("confluent")["ssl.key.location"] == keystore
    assert f"sasl.password={password}\n" in (folder / "librdkafka.properties").read_text()

    module = runpy.run_path(str(folder / "aiokafka_settings.py"))["settings"]
    given = settings("aiokafka")
    contexts = [module.pop("ssl_context"), given.pop("ssl_context")]
    assert module == given
    assert all(isinstance(context, ssl.SSLContext) and context.get_ca_certs() for context in contexts)
    with pytest.raises(ValueError, match="expected one of " + ", ".join(KINDS)):
        settings("sarama")


def test_users_that_come_and_go(tmp_path: Path) -> None:
    security = prepared(tmp_path)
    folder = security.keep_user("../../team/a", "secret", BOOTSTRAP)
    assert folder.parent == tmp_path / "clients"
    assert (folder / "client.properties").exists()
    assert security.access(BOOTSTRAP, "../../team/a").password == "secret"
    security.forget_user("../../team/a")
    assert not folder.exists()
    with pytest.raises(DeployError, match=r"the password of '\.\./\.\./team/a' is not known"):
        security.access(BOOTSTRAP, "../../team/a")


def test_a_damaged_password_file_is_not_shown_and_not_replaced(tmp_path: Path) -> None:
    security = prepared(tmp_path)
    path = tmp_path / "security" / "passwords.json"
    path.write_text('{"admin": secret}')
    with pytest.raises(DeployError, match="cannot be read") as caught:
        security.prepare([1], {}, NOW)
    assert "secret" not in str(caught.value)
    assert caught.value.__suppress_context__
    assert path.read_text() == '{"admin": secret}'


def test_other_super_users_are_added_to_the_clusters_own() -> None:
    secured = {"super.users": "User:admin;User:broker"}
    assert with_super_users(secured, {"super.users": "User:alice;User:admin"}) == {
        "super.users": "User:admin;User:broker;User:alice"
    }
    assert with_super_users({}, {"super.users": "User:alice"}) == {}


def opens(mechanism: ScramMechanism, text: str, password: str) -> bool:
    stored = ScramCredential.parse(text)
    salted = salted_password(mechanism, password, stored.salt, stored.iterations)
    return credential_of(mechanism, salted, stored.salt, stored.iterations) == stored


@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_a_credential_is_written_once_for_each_password(mechanism: ScramMechanism) -> None:
    others = {"producer_byte_rate": "1000", "SCRAM-OTHER": "x"}
    first = with_password(others, mechanism, "secret")
    assert {name: first[name] for name in others} == others
    assert opens(mechanism, first[mechanism.value], "secret")
    assert with_password(first, mechanism, "secret") is first

    second = with_password(first, mechanism, "another")
    assert not opens(mechanism, second[mechanism.value], "secret")
    assert opens(mechanism, second[mechanism.value], "another")


def test_a_damaged_credential_is_replaced() -> None:
    mechanism = ScramMechanism.SHA_512
    assert opens(mechanism, with_password({mechanism.value: "salt=?"}, mechanism, "x")[mechanism.value], "x")


def test_a_missing_package_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DeployError, match=r"trustme.*pip install 'barnabas\[secure\]'"):
        prepared(tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_brokers_log_in_to_zookeeper_as_its_only_user(tmp_path: Path) -> None:
    security = prepared(tmp_path)
    path = Path(security.zookeeper_settings["java.security.auth.login.config"])
    (server,), (client,) = (parse_jaas_file(path.read_text())[name] for name in ("Server", "Client"))
    assert server.users == {client.username: client.password}
    assert client.password not in security.users.values()
    first = path.read_text()
    assert prepared(tmp_path).jaas_file.read_text() == first
