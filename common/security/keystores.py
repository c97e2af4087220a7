"""Key stores and trust stores: PEM texts and files, PKCS12 files; read into PEM, the form that OpenSSL takes.

The content of a file decides how it is read, because a .jks file that Java 9 or later made is PKCS12. The
older JKS format is refused with the command that converts it. PKCS12 needs the package `cryptography`.
Errors name the file and the setting and never contain a password or a key. Pure except for reading files.

Source: KIP-651 (PEM), KIP-119; `DefaultSslEngineFactory` of Apache Kafka 3.9.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from barnabas.protocol.errors import InvalidConfiguration

_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_JKS_MAGICS: Final = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
_DER_SEQUENCE: Final = 0x30


class Keys(NamedTuple):
    """A private key with its certificate chain as PEM; the password, if any, is that of the key."""

    key: str
    chain: str
    password: str | None

    def __repr__(self) -> str:
        return "Keys(…)"


def read_keys(location: str, store_password: str | None, key_password: str | None) -> Keys:
    """The key and the certificates of a key store file. Raises InvalidConfiguration."""
    name = "ssl.keystore.location"
    data = _read(name, location)
    if (text := _pem_text(data)) is not None:
        if store_password is not None:
            raise InvalidConfiguration(
                f"ssl.keystore.password: {location} is PEM, which has no password of its own; expected none, "
                "and the password of an encrypted key in ssl.key.password"
            )
        return keys_of(text, text, key_password, f"{name}={location}")
    store = _load_pkcs12(name, location, data, store_password if store_password is not None else key_password)
    if store.key is None or store.cert is None:
        raise InvalidConfiguration(f"{name}={location}: expected a private key with its certificate in it")
    return _keys_of_pkcs12(store)


def keys_of(key_text: str, chain_text: str, key_password: str | None, origin: str) -> Keys:
    """The key and the certificates of PEM texts, which may be the same. Raises InvalidConfiguration."""
    keys = [block for label, block in _blocks(key_text) if label.endswith("PRIVATE KEY")]
    if len(keys) != 1:
        raise InvalidConfiguration(f"{origin}: expected one PEM private key, found {len(keys)}")
    is_encrypted = "ENCRYPTED" in keys[0]
    if is_encrypted and key_password is None:
        raise InvalidConfiguration(f"{origin}: the private key is encrypted; expected ssl.key.password")
    return Keys(keys[0], certificates_of(chain_text, origin), key_password if is_encrypted else None)


def read_certificates(location: str, store_password: str | None) -> str:
    """The certificates of a trust store file, as PEM. Raises InvalidConfiguration."""
    name = "ssl.truststore.location"
    data = _read(name, location)
    if (text := _pem_text(data)) is not None:
        if store_password is not None:
            raise InvalidConfiguration(
                f"ssl.truststore.password: {location} is PEM, which has no password; expected none"
            )
        return certificates_of(text, f"{name}={location}")
    store = _load_pkcs12(name, location, data, store_password)
    certificates = [each.certificate for each in store.additional_certs]
    if store.cert is not None:
        certificates.append(store.cert.certificate)
    if not certificates:
        raise InvalidConfiguration(f"{name}={location}: expected at least one certificate, found none")
    return "".join(_certificate_pem(each) for each in certificates)


def certificates_of(text: str, origin: str) -> str:
    """The certificates in a PEM text, without the rest of it. Raises InvalidConfiguration."""
    found = [block for label, block in _blocks(text) if label in ("CERTIFICATE", "X509 CERTIFICATE")]
    if not found:
        raise InvalidConfiguration(f"{origin}: expected at least one PEM certificate, found none")
    return "".join(found)


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """The label and the block of each PEM entry.

    A text from a properties file may have spaces for line ends: the base64 lines are made again. A block with
    headers, as those of the older encrypted keys, stays as it is.
    """
    for match in _BLOCK.finditer(text):
        label, body = match.groups()
        if ":" not in body:
            digits = "".join(body.split())
            body = "".join(f"\n{digits[start : start + 64]}" for start in range(0, len(digits), 64)) + "\n"
        yield label, f"-----BEGIN {label}-----{body}-----END {label}-----\n"


def _read(name: str, location: str) -> bytes:
    try:
        return Path(location).read_bytes()
    except OSError as error:
        raise InvalidConfiguration(f"{name}={location}: cannot be read: {error.strerror or error}") from error


def _pem_text(data: bytes) -> str | None:
    """The text of a PEM file; None if it is another kind of file."""
    if data[:1] == bytes((_DER_SEQUENCE,)) or data.startswith(_JKS_MAGICS):
        return None
    return data.decode("utf-8", "replace")


def _load_pkcs12(name: str, location: str, data: bytes, password: str | None) -> Any:
    if data.startswith(_JKS_MAGICS):
        raise InvalidConfiguration(
            f"{name}={location}: JKS is not supported; expected PKCS12 or PEM. Convert it with: keytool "
            f"-importkeystore -srckeystore {location} -destkeystore {location}.p12 -deststoretype PKCS12"
        )
    try:
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ModuleNotFoundError as error:
        raise InvalidConfiguration(
            f"{name}={location}: PKCS12 needs the package cryptography; "
            "expected a PEM file, or the extra: pip install 'barnabas[secure]'"
        ) from error
    try:
        return pkcs12.load_pkcs12(data, password.encode() if password is not None else None)
    except ValueError as error:
        # Its text is about the format and the password's correctness, not the password.
        raise InvalidConfiguration(f"{name}={location}: no PKCS12 for this password: {error}") from error


def _keys_of_pkcs12(store: Any) -> Keys:
    from cryptography.hazmat.primitives import serialization

    key = store.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    chain = [store.cert.certificate, *(each.certificate for each in store.additional_certs)]
    return Keys(key, "".join(_certificate_pem(each) for each in chain), None)


def _certificate_pem(certificate: Any) -> str:
    from cryptography.hazmat.primitives import serialization

    return str(certificate.public_bytes(serialization.Encoding.PEM).decode())
