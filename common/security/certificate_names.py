"""The names in an X.509 certificate: the subject as Java writes it, and the alternative names. Pure.

The subject is the text of `X500Principal.getName()` (RFC 2253), because ACLs and mapping rules are written
for it. OpenSSL has accepted the certificate: this reads just the parts that the names need, and raises
ValueError for anything that is not DER.
"""

from __future__ import annotations

import ssl
from typing import Final, NamedTuple

_SEQUENCE: Final = 0x30
_SUBJECT_ALT_NAME: Final = bytes((0x55, 0x1D, 0x11))
_EXTENSIONS: Final = 0xA3
_VERSION: Final = 0xA0
_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
"""RFC 2253 names these attributes; others appear as their number and their DER."""
_TEXT_TAGS: Final = frozenset({0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E})
_ESCAPED: Final = frozenset(',=+<>#;"\\')


class CertificateNames(NamedTuple):
    subject: str
    """As ``CN=alice,OU=tests,O=Barnabas``."""
    alternatives: frozenset[bytes]
    """The subject's alternative names, each as DER."""


def names_of(certificate: bytes) -> CertificateNames:
    """The names of a certificate in DER. Raises ValueError."""
    try:
        _, start, _ = _element(certificate, 0)
        _, start, end = _element(certificate, start)
        fields = list(_elements(certificate, start, end))
        if fields[0][0] == _VERSION:
            fields.pop(0)
        # serialNumber, signature, issuer, validity, subject
        _, start, end = fields[4]
        return CertificateNames(
            _distinguished_name(certificate, start, end), _alternatives(certificate, fields[5:])
        )
    except IndexError as error:
        raise ValueError(f"no certificate in DER: {error}") from error


def names_of_pem(chain: str) -> CertificateNames:
    """The names of the first certificate of a PEM chain. Raises ValueError."""
    mark = "-----END CERTIFICATE-----"
    return names_of(ssl.PEM_cert_to_DER_cert(chain[: chain.index(mark) + len(mark)]))


def _element(data: bytes, at: int) -> tuple[int, int, int]:
    """The tag of the element at a position, and where its content starts and ends."""
    tag, size, start = data[at], data[at + 1], at + 2
    if size & 0x80:
        count = size & 0x7F
        size, start = int.from_bytes(data[start : start + count]), start + count
    if start + size > len(data):
        raise ValueError(f"an element of {size} bytes in {len(data)} bytes of DER")
    return tag, start, start + size


def _elements(data: bytes, start: int, end: int) -> list[tuple[int, int, int]]:
    found = []
    while start < end:
        found.append(_element(data, start))
        start = found[-1][2]
    return found


def _distinguished_name(data: bytes, start: int, end: int) -> str:
    return ",".join(
        "+".join(_attribute(data, *attribute[1:]) for attribute in _elements(data, *several[1:]))
        for several in reversed(_elements(data, start, end))
    )


def _attribute(data: bytes, start: int, end: int) -> str:
    (_, first, last), (tag, value_start, value_end) = _elements(data, start, end)
    identifier = _object_identifier(data[first:last])
    keyword = _KEYWORDS.get(identifier)
    if keyword is None or tag not in _TEXT_TAGS:
        return f"{keyword or identifier}=#{data[last:value_end].hex()}"
    text = data[value_start:value_end].decode("utf-8", "replace")
    escaped = "".join(f"\\{each}" if each in _ESCAPED else "\\00" if each == "\0" else each for each in text)
    # As in Java, each space and carriage return at either end is escaped.
    lead = len(escaped) - len(escaped.lstrip(" \r"))
    trail = max(lead, len(escaped.rstrip(" \r")))
    return f"{keyword}={_backslashed(escaped[:lead])}{escaped[lead:trail]}{_backslashed(escaped[trail:])}"


def _backslashed(text: str) -> str:
    return "".join(f"\\{each}" for each in text)


def _object_identifier(content: bytes) -> str:
    numbers: list[int] = []
    number = 0
    for byte in content:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _alternatives(data: bytes, fields: list[tuple[int, int, int]]) -> frozenset[bytes]:
    for tag, start, _ in fields:
        if tag != _EXTENSIONS:
            continue
        _, start, end = _element(data, start)
        for _, first, last in _elements(data, start, end):
            parts = _elements(data, first, last)
            if data[parts[0][1] : parts[0][2]] == _SUBJECT_ALT_NAME:
                _, start, end = _element(data, parts[-1][1])
                ends = [last for _, _, last in _elements(data, start, end)]
                return frozenset(data[a:b] for a, b in zip([start, *ends[:-1]], ends, strict=True))
    return frozenset()
