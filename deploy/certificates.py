"""The certificate authority of a local cluster, and the certificates of its brokers, as PEM files.

    DIR/security/ca.pem                  what clients trust
    DIR/security/ca-key.pem              0600
    DIR/security/broker-<id>.pem         0600: private key, certificate

Guarantees. `prepare` keeps every file that is still good, so that clients need no new settings; it makes
those again that expire soon, that lack a name, or that another authority signed. Needs the extra ``secure``.
Any thread.
"""

from __future__ import annotations

import datetime
import ipaddress
import re
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from barnabas.deploy.private_files import make_private_folder, write_private

if TYPE_CHECKING:
    from cryptography.x509 import Certificate
    from trustme import CA

CA_FILE: Final = "ca.pem"
_CA_KEY_FILE: Final = "ca-key.pem"
_LIFETIME: Final = datetime.timedelta(days=397)
_RENEWED_BEFORE: Final = datetime.timedelta(days=30)
_ORGANIZATION: Final = "Barnabas"


def server_names(hosts: Sequence[str] = ()) -> list[str]:
    """The names and addresses under which clients may reach the brokers of this machine."""
    own = socket.gethostname()
    named = [own] if _is_name(own) else []
    return list(dict.fromkeys(["127.0.0.1", "localhost", "::1", *named, *hosts]))


def keystore_file(folder: Path, broker_id: int) -> Path:
    return folder / f"broker-{broker_id}.pem"


def prepare(folder: Path, broker_ids: Sequence[int], names: Sequence[str], now: datetime.datetime) -> None:
    """Make the certificates that are missing or no longer good. Raises DeployError."""
    make_private_folder(folder)
    authority = _load_authority(folder, now) or _new_authority(folder)
    from cryptography.x509 import load_pem_x509_certificate

    issuer = load_pem_x509_certificate(authority.cert_pem.bytes())
    for broker_id in broker_ids:
        path = keystore_file(folder, broker_id)
        certificate = _read_certificate(path)
        if certificate is None or not _is_good(certificate, issuer, names, now):
            _issue(authority, path, f"broker-{broker_id}", names, min(now + _LIFETIME, _end_of(issuer)))


def _load_authority(folder: Path, now: datetime.datetime) -> CA | None:
    """The authority of an earlier run; None if there is none, or it expires before a new certificate."""
    import trustme

    certificate = _read_certificate(folder / CA_FILE)
    if certificate is None or _end_of(certificate) - now < _LIFETIME:
        return None
    try:
        return trustme.CA.from_pem((folder / CA_FILE).read_bytes(), (folder / _CA_KEY_FILE).read_bytes())
    except (OSError, ValueError):
        # Without its key the authority can sign nothing.
        return None


def _new_authority(folder: Path) -> CA:
    import trustme

    authority = trustme.CA(organization_name=_ORGANIZATION, organization_unit_name="local cluster")
    write_private(folder / _CA_KEY_FILE, authority.private_key_pem.bytes().decode())
    write_private(folder / CA_FILE, authority.cert_pem.bytes().decode())
    return authority


def _issue(authority: CA, path: Path, name: str, names: Sequence[str], until: datetime.datetime) -> None:
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        load_pem_private_key,
    )

    issued = authority.issue_cert(
        *names,
        common_name=name,
        organization_name=_ORGANIZATION,
        organization_unit_name="local cluster",
        not_after=until,
    )
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    # Kafka reads keys in PKCS #8 alone.
    key_pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    chain = b"".join(part.bytes() for part in issued.cert_chain_pems)
    write_private(path, (key_pem + chain).decode())


def _read_certificate(path: Path) -> Certificate | None:
    """The first certificate of a PEM file; None if there is none that can be read."""
    from cryptography.x509 import load_pem_x509_certificate

    try:
        return load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError):
        return None


def _end_of(certificate: Certificate) -> datetime.datetime:
    return certificate.not_valid_after_utc


def _is_good(
    certificate: Certificate, issuer: Certificate, names: Sequence[str], now: datetime.datetime
) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        certificate.verify_directly_issued_by(issuer)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return _end_of(certificate) - now > _RENEWED_BEFORE and set(names) <= _names_in(certificate)


def _names_in(certificate: Certificate) -> set[str]:
    from cryptography.x509 import DNSName, ExtensionNotFound, IPAddress, SubjectAlternativeName

    try:
        listed = certificate.extensions.get_extension_for_class(SubjectAlternativeName).value
    except ExtensionNotFound:
        return set()
    addresses = listed.get_values_for_type(IPAddress)
    return {*listed.get_values_for_type(DNSName), *map(str, addresses)}


def check_name(name: str) -> str:
    """A name or an address of a host, as a certificate has it; raises ValueError for another text."""
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        if not _is_name(name):
            raise ValueError(f"{name!r}: expected the name or the address of a host") from None
        return name


def _is_name(name: str) -> bool:
    return re.fullmatch(r"(?!-)[A-Za-z0-9-]{1,63}(\.(?!-)[A-Za-z0-9-]{1,63})*", name) is not None
