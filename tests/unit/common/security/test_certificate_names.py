"""Names in certificates. Java 17's X500Principal.getName() returned the expected subjects."""

from datetime import UTC, datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID, ObjectIdentifier

from barnabas.common.security.certificate_names import names_of, names_of_pem
from tests.support.certificates import Certificates

KEY = ec.generate_private_key(ec.SECP256R1())
CN, ORGANIZATION, UNIT = (
    NameOID.COMMON_NAME,
    NameOID.ORGANIZATION_NAME,
    NameOID.ORGANIZATIONAL_UNIT_NAME,
)


def certificate(*parts: list[tuple[ObjectIdentifier, str]], alternatives: tuple[str, ...] = ()) -> bytes:
    """A certificate in DER with a subject of these parts, of one attribute or more each."""
    subject = x509.Name(
        x509.RelativeDistinguishedName(x509.NameAttribute(kind, text) for kind, text in part)
        for part in parts
    )
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(x509.Name([x509.NameAttribute(CN, "issuer")]))
        .public_key(KEY.public_key())
        .serial_number(1)
        .not_valid_before(datetime(2020, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(2040, 1, 1, tzinfo=UTC))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    )
    if alternatives:
        names = x509.SubjectAlternativeName([x509.DNSName(name) for name in alternatives])
        made = made.add_extension(names, critical=False)
    return made.sign(KEY, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([[(ORGANIZATION, "Barnabas")], [(UNIT, "tests")], [(CN, "alice")]], "CN=alice,OU=tests,O=Barnabas"),
        (
            [[(UNIT, 'tests, = + < > # ; " \\ x')], [(NameOID.COUNTRY_NAME, "DE")]],
            'C=DE,OU=tests\\, \\= \\+ \\< \\> \\# \\; \\" \\\\ x',
        ),
        ([[(CN, " \r both \r ")]], "CN=\\ \\\r\\ both\\ \\\r\\ "),
        ([[(CN, "   ")]], "CN=\\ \\ \\ "),
        ([[(CN, "Zoë ∞"), (NameOID.USER_ID, "u+1")]], "CN=Zoë ∞+UID=u\\+1"),
        ([[(NameOID.EMAIL_ADDRESS, "a@b.c")]], "1.2.840.113549.1.9.1=#16056140622e63"),
        ([[(NameOID.SERIAL_NUMBER, "12")], [(CN, "nul\0")]], "CN=nul\\00,2.5.4.5=#13023132"),
        ([[(NameOID.STREET_ADDRESS, "s")], [(NameOID.DOMAIN_COMPONENT, "org")]], "DC=org,STREET=s"),
        ([], ""),
    ],
)
def test_the_subject_as_java_writes_it(
    parts: list[list[tuple[ObjectIdentifier, str]]], expected: str
) -> None:
    # The order of the attributes in one part is that of DER, which sorts them.
    assert names_of(certificate(*parts)).subject == expected


def test_alternative_names() -> None:
    few, more = (names_of(certificate(alternatives=names)) for names in (("a",), ("b" * 200, "a")))
    assert few.alternatives == {b"\x82\x01a"}
    assert few.alternatives < more.alternatives
    assert names_of(certificate()).alternatives == frozenset()


def test_the_first_certificate_of_a_chain(certificates: Certificates) -> None:
    chain = certificates.key_store("bob").read_text() + certificates.trusted.read_text()
    assert names_of_pem(chain[chain.index("-----BEGIN CERT") :]).subject == "CN=bob,OU=tests,O=Barnabas"


def test_a_truncated_certificate() -> None:
    whole = certificate([(CN, "alice")], alternatives=("a",))
    for size in range(0, len(whole), 7):
        with pytest.raises(ValueError, match="DER"):
            names_of(whole[:size])
