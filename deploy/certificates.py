"""The certificate authority of a local cluster, and the certificates of its brokers and users, as PEM files.

    DIR/security/ca.pem                  the certificate that clients trust
    DIR/security/ca-key.pem              0600
    DIR/security/broker-<id>.pem         0600: private key, certificate
    DIR/clients/<user>/keystore.pem      0600: the same of a user

Guarantees. Every file that is still good is kept, so that clients need no new settings; files are made
again that expire soon, that lack a name, or that another authority signed. Needs the extra ``secure``. Any
thread.
"""

from __future__ import annotations

import datetime
import ipaddress
import re
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from barnabas.deploy.private_files import make_private_folder, write_private
from barnabas.deploy.process import DeployError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, Name
    from trustme import CA

CA_FILE: Final = "ca.pem"
_CA_KEY_FILE: Final = "ca-key.pem"
_LIFETIME: Final = datetime.timedelta(days=397)
_RENEWED_BEFORE: Final = datetime.timedelta(days=30)
_CLOCK_SKEW: Final = datetime.timedelta(hours=1)
_ORGANIZATION: Final = "Barnabas"
_UNIT: Final = "local cluster"
_CLIENT_NAME: Final = re.compile(r"[A-Za-z0-9._$@-]{1,64}")
_BROKER_NAME: Final = re.compile(r"broker(-[0-9]+)?")


def server_names(hosts: Sequence[str] = ()) -> list[str]:
    """The names and addresses under which clients may reach the brokers of this machine."""
    own = socket.gethostname()
    named = [own] if _is_name(own) else []
    return list(dict.fromkeys(["127.0.0.1", "localhost", "::1", *named, *hosts]))


def keystore_file(folder: Path, broker_id: int) -> Path:
    return folder / f"broker-{broker_id}.pem"


def prepare(folder: Path, broker_ids: Sequence[int], names: Sequence[str], now: datetime.datetime) -> None:
    """Make the certificates of brokers that are missing or no longer good. Raises DeployError."""
    make_private_folder(folder)
    authority = _load_authority(folder, now) or _new_authority(folder)
    from cryptography.x509 import load_pem_x509_certificate

    issuer = load_pem_x509_certificate(authority.cert_pem.bytes())
    for broker_id in broker_ids:
        path = keystore_file(folder, broker_id)
        certificate = _read_certificate(path)
        if certificate is None or not _is_good(certificate, issuer, names, now):
            _issue(authority, path, f"broker-{broker_id}", names, min(now + _LIFETIME, _end_of(issuer)))


def is_client_name(name: str) -> bool:
    """Whether a user of this name has a certificate: no text of a subject escapes it; no broker has it."""
    return _CLIENT_NAME.fullmatch(name) is not None and _BROKER_NAME.fullmatch(name) is None


def prepare_client(folder: Path, path: Path, name: str, now: datetime.datetime) -> None:
    """Make a user's certificate if it is missing or no longer good. Raises DeployError.

    It is for clients alone: a user of any name cannot pass as a broker.
    """
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
    from cryptography.x509 import (
        BasicConstraints,
        CertificateBuilder,
        ExtendedKeyUsage,
        load_pem_x509_certificate,
        random_serial_number,
    )
    from cryptography.x509.oid import ExtendedKeyUsageOID

    try:
        issuer = load_pem_x509_certificate((folder / CA_FILE).read_bytes())
        authority = cast(
            "EllipticCurvePrivateKey", load_pem_private_key((folder / _CA_KEY_FILE).read_bytes(), None)
        )
    except (OSError, ValueError):
        # The error may show a part of the key.
        raise DeployError(f"{folder} has no authority that could sign the certificate of {name!r}") from None
    subject = _subject_of(name)
    present = _read_certificate(path)
    if present is not None and present.subject == subject and _is_good(present, issuer, (), now):
        return
    key = generate_private_key(SECP256R1())
    certificate = (
        CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(min(now + _LIFETIME, _end_of(issuer)))
        .add_extension(BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=True)
        .sign(authority, SHA256())
    )
    write_private(path, _pem_of(key) + certificate.public_bytes(Encoding.PEM).decode())


def _subject_of(name: str) -> Name:
    """As the subjects of brokers, so that one rule maps both to principals."""
    from cryptography.x509 import Name, NameAttribute
    from cryptography.x509.oid import NameOID

    parts = {
        NameOID.ORGANIZATION_NAME: _ORGANIZATION,
        NameOID.ORGANIZATIONAL_UNIT_NAME: _UNIT,
        NameOID.COMMON_NAME: name,
    }
    return Name([NameAttribute(kind, value) for kind, value in parts.items()])


def _pem_of(key: EllipticCurvePrivateKey) -> str:
    """Kafka reads keys in PKCS #8 alone."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


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

    authority = trustme.CA(organization_name=_ORGANIZATION, organization_unit_name=_UNIT)
    write_private(folder / _CA_KEY_FILE, authority.private_key_pem.bytes().decode())
    write_private(folder / CA_FILE, authority.cert_pem.bytes().decode())
    return authority


def _issue(authority: CA, path: Path, name: str, names: Sequence[str], until: datetime.datetime) -> None:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    issued = authority.issue_cert(
        *names,
        common_name=name,
        organization_name=_ORGANIZATION,
        organization_unit_name=_UNIT,
        not_after=until,
    )
    key = cast("EllipticCurvePrivateKey", load_pem_private_key(issued.private_key_pem.bytes(), None))
    chain = b"".join(part.bytes() for part in issued.cert_chain_pems)
    write_private(path, _pem_of(key) + chain.decode())


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
