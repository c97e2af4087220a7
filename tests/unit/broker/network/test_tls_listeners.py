"""Certificates that change while a broker runs: Kafka's rules for the new one."""

import logging
import shutil
import ssl
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.config.listener_config import ListenerConfig
from barnabas.broker.network.tls_listeners import TlsListeners
from barnabas.protocol.errors import InvalidConfiguration
from tests.support.certificates import Certificates
from tests.support.defaults import make_config
from tests.support.socket_server import Client, servers

NAMES = ("localhost", "one")


class Rig:
    """A listener with a key store of its own in a folder."""

    def __init__(self, certificates: Certificates, folder: Path, brokers: str = "") -> None:
        self.certificates = certificates
        self.store = folder / "server.pem"
        certificates.write_key_store(self.store, "server", "localhost", "one")
        self.settings: dict[str, object] = {}
        self.listeners = TlsListeners(brokers)
        self.listeners.apply({"A": self.config()})

    def config(self, **settings: object) -> ListenerConfig:
        return make_config(
            listeners="A://:1",
            listener_security_protocol_map="A:SSL",
            inter_broker_listener_name="A",
            **self.certificates.listener_settings(),
            **{
                f"listener_name_a_{name}": value
                for name, value in ({"ssl_keystore_location": self.store} | self.settings | settings).items()
            },
        ).listener("A")

    def is_replaced(self) -> bool:
        """Reload changed files; whether new connections use another context."""
        before = self.listeners.of("A")
        self.listeners.reload_changed_files()
        return self.listeners.of("A") is not before


@pytest.fixture
def rig(certificates: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Rig:
    caplog.set_level(logging.INFO)
    return Rig(certificates, tmp_path)


def test_a_renewed_certificate_is_used(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    assert not rig.is_replaced()
    rig.certificates.write_key_store(rig.store, "server", "localhost", "one", "two")
    assert rig.is_replaced()
    assert "A: new connections use the certificate of CN=server,OU=tests,O=Barnabas" in caplog.text
    assert not rig.is_replaced()


@pytest.mark.parametrize(
    ("name", "hosts", "reason", "allowing"),
    [
        ("other", ("localhost", "one"), "subject of its certificate is CN=other", "ssl_allow_dn_changes"),
        ("server", ("localhost",), "lacks alternative names", "ssl_allow_san_changes"),
    ],
)
def test_another_name_is_refused_unless_it_is_allowed(
    rig: Rig,
    name: str,
    hosts: tuple[str, ...],
    reason: str,
    allowing: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig.certificates.write_key_store(rig.store, name, *hosts)
    assert not rig.is_replaced()
    assert "listener A keeps its certificate" in caplog.text
    assert reason in caplog.text
    before = rig.listeners.of("A")
    rig.listeners.apply({"A": rig.config(**{allowing: True})})
    assert rig.listeners.of("A") is not before


def test_a_broken_file_is_reported_once_and_tried_again_when_it_has_changed(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    whole = rig.store.read_bytes()
    for broken in (whole[:300], b""):
        rig.store.write_bytes(broken)
        assert not rig.is_replaced()
        assert not rig.is_replaced()
    rig.store.unlink()
    assert not rig.is_replaced()
    assert caplog.text.count("keeps its certificate") == 3
    rig.store.write_bytes(whole)
    assert rig.is_replaced()


def test_settings_that_cannot_be_used_change_nothing(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    before = rig.listeners.of("A")
    rig.listeners.apply({"A": rig.config(ssl_keystore_location="/nowhere")})
    assert rig.listeners.of("A") is before
    assert "/nowhere: cannot be read" in caplog.text
    with pytest.raises(InvalidConfiguration, match=r"listener A: .*/nowhere"):
        rig.listeners.check("A", rig.config(ssl_keystore_location="/nowhere"))
    with pytest.raises(InvalidConfiguration, match=r"listener B: .*/nowhere"):
        rig.listeners.apply({"A": rig.config(), "B": rig.config(ssl_keystore_location="/nowhere")})
    assert rig.listeners.of("A") is before
    rig.listeners.apply({})
    with pytest.raises(KeyError):
        rig.listeners.of("A")


def test_brokers_must_still_reach_each_other(
    certificates: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(certificates, tmp_path, brokers="A")
    (tmp_path / "others").mkdir()
    stranger = Certificates(tmp_path / "others")
    stranger.write_key_store(rig.store, "server", "localhost", "one")
    assert not rig.is_replaced()
    assert "could not connect to each other: certificate verify failed" in caplog.text
    with pytest.raises(InvalidConfiguration, match="could not connect to each other"):
        TlsListeners("A").apply({"A": rig.config()})
    TlsListeners("B").apply({"A": rig.config()})


def test_a_new_authority_and_its_certificate_may_come_at_once(
    certificates: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """If the new trust store has both authorities: as if the stores had come one after the other."""
    (tmp_path / "others").mkdir()
    successor = Certificates(tmp_path / "others")
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(certificates.trusted.read_bytes())
    rig = Rig(certificates, tmp_path, brokers="A")
    rig.settings = {"ssl_truststore_location": trusted, "ssl_client_auth": "required"}
    rig.listeners = TlsListeners("A")
    rig.listeners.apply({"A": rig.config()})
    both = certificates.trusted.read_bytes() + successor.trusted.read_bytes()
    for present, is_taken in ((successor.trusted.read_bytes(), False), (both, True)):
        successor.write_key_store(rig.store, "server", "localhost", "one")
        trusted.write_bytes(present)
        assert rig.is_replaced() is is_taken
    assert caplog.text.count("could not connect to each other") == 1
    # The second step, which only the new certificate passes.
    trusted.write_bytes(successor.trusted.read_bytes())
    assert rig.is_replaced()


def test_connections_to_other_brokers_use_the_certificate_that_the_listener_keeps(
    certificates: Certificates, tmp_path: Path
) -> None:
    """Else the other brokers would see a principal that is none of a broker."""
    rig = Rig(certificates, tmp_path, brokers="A")
    before = rig.listeners.outgoing()
    assert before.check_hostname
    certificates.write_key_store(rig.store, "other", "localhost", "one")
    assert not rig.is_replaced()
    assert rig.listeners.outgoing() is before
    certificates.write_key_store(rig.store, "server", "localhost", "one")
    assert rig.is_replaced()
    assert rig.listeners.outgoing() is not before
    with pytest.raises(InvalidConfiguration, match="listener B: its certificate is not read yet"):
        TlsListeners("B").outgoing()


def test_only_the_stores_of_an_open_listener_change(rig: Rig, certificates: Certificates) -> None:
    """Other programs may write anything into ZooKeeper."""
    rig.listeners.apply({"B": rig.config(ssl_client_auth="required")})
    before = rig.listeners.of("B")
    rig.listeners.apply({"B": rig.config(ssl_principal_mapping_rules="RULE:.*/admin/")})
    assert rig.listeners.of("B") is before
    rig.listeners.apply({"B": rig.config(ssl_keystore_location=certificates.key_store("server", *NAMES))})
    after = rig.listeners.of("B")
    assert after is not before
    assert after.context.verify_mode is ssl.CERT_REQUIRED
    rig.listeners.apply({})
    rig.listeners.apply({"B": rig.config()})
    assert rig.listeners.of("B").context.verify_mode is ssl.CERT_NONE


def test_new_connections_see_the_new_certificate_and_old_ones_go_on(
    certificates: Certificates, tmp_path: Path
) -> None:
    store = tmp_path / "server.pem"
    shutil.copy(certificates.key_store("server"), store)
    settings: dict[str, Any] = certificates.listener_settings(ssl_keystore_location=store)

    def certificate_of(client: Client) -> bytes | None:
        assert isinstance(client.socket, ssl.SSLSocket)
        return client.socket.getpeercert(binary_form=True)

    with servers(protocol="SSL", **settings) as serve:
        served, tls = serve(), certificates.client_context()
        old = served.client(tls=tls)
        certificates.write_key_store(store, "server")
        served.server.tls.reload_changed_files()
        new = served.client(tls=tls)
        assert certificate_of(old) != certificate_of(new)
        for client in (old, new):
            client.send(b"x")
            assert client.receive() == b"x"
