"""Certificates for tests: one authority, and files that it makes. The fixture is in tests/conftest.py."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme

from barnabas.common.security.tls import TlsSettings

LOCAL = ("localhost", "127.0.0.1")


class Certificates:
    """A certificate authority in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = trustme.CA(organization_name="Barnabas", organization_unit_name="tests")
        self.trusted = folder / "ca.pem"
        """The trust store: the authority's certificate."""
        self.authority.cert_pem.write_to_path(str(self.trusted))
        self._issued: dict[tuple[str, tuple[str, ...], bool], Path] = {}

    def key_store(self, name: str, *hosts: str, is_expired: bool = False) -> Path:
        """A PEM file with the key and chain of ``CN=<name>,OU=tests,O=Barnabas``; the same one each time.

        Without hosts it is for this machine.
        """
        wanted = name, hosts or LOCAL, is_expired
        if wanted not in self._issued:
            path = self.folder / f"{len(self._issued)}.pem"
            self.write_key_store(path, name, *hosts, is_expired=is_expired)
            self._issued[wanted] = path
        return self._issued[wanted]

    def write_key_store(self, path: Path, name: str, *hosts: str, is_expired: bool = False) -> None:
        """A new key and certificate, written to a file at once, as tools that renew certificates do."""
        now = datetime.now(UTC)
        issued = self.authority.issue_cert(
            *(hosts or LOCAL),
            common_name=name,
            organization_name="Barnabas",
            organization_unit_name="tests",
            not_before=now - timedelta(days=2),
            not_after=now + timedelta(days=-1 if is_expired else 1),
        )
        temporary = path.with_suffix(".new")
        temporary.write_bytes(issued.private_key_and_cert_chain_pem.bytes())
        temporary.replace(path)

    def settings(self, name: str = "server", **others: object) -> TlsSettings:
        """Settings of a side that presents the certificate of a name and trusts the authority."""
        return TlsSettings(
            keystore_type="PEM",
            keystore_location=str(self.key_store(name)),
            truststore_type="PEM",
            truststore_location=str(self.trusted),
            **others,  # type: ignore[arg-type]  # values are of any type
        )

    def listener_settings(self, name: str = "server", **others: object) -> dict[str, object]:
        """The same as settings of a broker, by Kafka's names with underscores."""
        return {
            "ssl_keystore_type": "PEM",
            "ssl_keystore_location": str(self.key_store(name)),
            "ssl_truststore_type": "PEM",
            "ssl_truststore_location": str(self.trusted),
            **others,
        }

    def client_context(self, name: str | None = None) -> ssl.SSLContext:
        """Python's context of a client that trusts the authority and may present a certificate."""
        context = ssl.create_default_context(cafile=str(self.trusted))
        if name is not None:
            context.load_cert_chain(self.key_store(name))
        return context
