"""SCRAM: the examples of the RFCs, messages that are read back, and messages that are refused."""

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.common.security import scram
from barnabas.common.security.scram import (
    ClientFinal,
    ClientFirst,
    ScramCredential,
    ScramError,
    ScramMechanism,
    ServerFinal,
    ServerFirst,
)
from tests.support.cases import each

_SHA_256_AND_512 = [
    # The example of RFC 7677, section 3.
    (
        ScramMechanism.SHA_256,
        "rOprNGfwEbeRWgbNEkqO",
        "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
        "W22ZaJ0SNY7soEsUEjb6gQ==",
        "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
        "6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
    ),
    # The same names in SHA-512, as computed by Apache Kafka's ScramFormatter.
    (
        ScramMechanism.SHA_512,
        "rOprNGfwEbeRWgbNEkqO",
        "02ae38e3-0f1b-4a2a-b4a2",
        "Yin2FuHTt/M0kJWb0t9OI32n2VmOGi3m+JfjOvuDF88=",
        "FS6DmTv0+0ZL6Ww8+M5qDedHr7VVhTpptSG5gCFCD4FALXCRUrxD8Ix5ACkcMJMREY7fRgWQ44W9CVEc16RG6Q==",
        "x0Amr6qDhOUcxE+UP/REvbLXJ46OgVlifWsa4Z7tvHsRL+G22pDUrGLOxicHvML3Hssnjmn0tnVg1ee1f/yiWA==",
    ),
]


@each(_SHA_256_AND_512, name=lambda case: str(case[0].value))
def test_the_published_exchange(case: tuple[ScramMechanism, str, str, str, str, str]) -> None:
    mechanism, client_nonce, server_nonce, salt, proof, signature = case
    first = ClientFirst.make("user", client_nonce)
    assert first.encoded == f"n,,n=user,r={client_nonce}".encode()
    nonce = client_nonce + server_nonce
    asked = ServerFirst.parse(f"r={nonce},s={salt},i=4096".encode(), client_nonce)
    salted = scram.salted_password(mechanism, "pencil", asked.salt, asked.iterations)
    final = ClientFinal.make(first.header, asked.nonce)
    messages = scram.auth_message(first, asked, final)
    sent = final.encoded(scram.client_proof(mechanism, salted, messages))
    assert sent == f"c=biws,r={nonce},p={proof}".encode()
    answer = ServerFinal.parse(f"v={signature}".encode())
    assert scram.is_signature(mechanism, salted, messages, answer.signature)


def _proves(credential: ScramCredential, password: str, tampered: Callable[[bytes], bytes] = bytes) -> bool:
    """Whether a server with this credential accepts a client with this password."""
    mechanism = ScramMechanism.SHA_256
    first = ClientFirst.parse(ClientFirst.make("a=b,c", "nonce").encoded + b",tokenauth=true")
    answer = ServerFirst.make(first.nonce + "server", credential.salt, credential.iterations)
    asked = ServerFirst.parse(answer.encoded, first.nonce)
    salted = scram.salted_password(mechanism, password, asked.salt, asked.iterations)
    unproved = ClientFinal.make(first.header, asked.nonce)
    proof = scram.client_proof(mechanism, salted, scram.auth_message(first, asked, unproved))
    final = ClientFinal.parse(tampered(unproved.encoded(proof)))
    messages = scram.auth_message(first, asked, final)
    return scram.is_proof(mechanism, credential, messages, final.proof)


def test_a_proof_is_of_the_password_and_of_every_message() -> None:
    credential = scram.make_credential(ScramMechanism.SHA_256, "pässword", 4096)
    assert _proves(credential, "pässword")
    assert not _proves(credential, "password")
    for old, new in ((b"c=biws", b"c=eSws"), (b"r=nonces", b"r=noncet"), (b",p=", b",x=y,p=")):
        assert not _proves(credential, "pässword", lambda sent, old=old, new=new: sent.replace(old, new))
    assert not _proves(credential, "pässword", lambda sent: sent.rpartition(b",")[0] + b",p=AAAA")
    another = scram.make_credential(ScramMechanism.SHA_256, "pässword", 4096)
    assert another.salt != credential.salt


def test_only_a_server_with_the_credential_makes_the_signature() -> None:
    mechanism = ScramMechanism.SHA_512
    salted = scram.salted_password(mechanism, "pencil", b"salt", 4096)
    credential = scram.credential_of(mechanism, salted, b"salt", 4096)
    good = scram.server_signature(mechanism, credential.server_key, b"messages")
    assert scram.is_signature(mechanism, salted, b"messages", good)
    for other in (
        good[:-1],
        bytes(64),
        scram.server_signature(mechanism, credential.stored_key, b"messages"),
    ):
        assert not scram.is_signature(mechanism, salted, b"messages", other)


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1))
def test_any_name_comes_through_escaped(name: str) -> None:
    sent = ClientFirst.make(name, "nonce")
    assert sent.bare.count(",") == 1
    assert ClientFirst.parse(sent.encoded) == sent


@each(
    [
        (b"n,,n=user,r=abc", ("user", "", "n,,", ())),
        (b"n,a=user,n=user,r=abc", ("user", "user", "n,a=user,", ())),
        (
            b"n,,n=a=3Db=2Cc,r=abc,tokenauth=true,x=1",
            ("a=b,c", "", "n,,", (("tokenauth", "true"), ("x", "1"))),
        ),
    ]
)
def test_a_first_message_is_read(case: tuple[bytes, tuple[object, ...]]) -> None:
    message, expected = case
    read = ClientFirst.parse(message)
    ClientFirst.parse(message + (100 - len(message.split(b","))) * b",a=x")
    assert (read.username, read.authorization_id, read.header, read.extensions) == expected
    assert read.encoded == message


@each(
    [
        b"",
        b"n",
        b"n,,",
        b"n,,n=user",
        b"n,,r=abc,n=user",
        b"n,,n=,r=abc",
        b"n,,n=user,r=",
        b"n,,n=user,r=a b",
        b"n,,n=us=er,r=abc",
        b"n,,n=us=2cer,r=abc",
        b"n,,n=us\0er,r=abc",
        b"n,,n=\xff,r=abc",
        b"n,user,n=user,r=abc",
        b"n,,m=must,n=user,r=abc",
        b"n,,n=user,r=abc,m=must",
        b"n,,n=user,r=abc,",
        b"n,,n=user,r=abc,1=x",
        b"n,,n=user,r=abc" + 97 * b",a=x",
        # Channel binding: demanded, and supported by the client.
        b"p=tls-unique,,n=user,r=abc",
        b"y,,n=user,r=abc",
        b"N,,n=user,r=abc",
    ],
    name=repr,
)
def test_other_first_messages_are_refused(message: bytes) -> None:
    with pytest.raises(ScramError):
        ClientFirst.parse(message)


@each(
    [
        b"",
        b"r=nonceserver",
        b"r=nonceserver,s=c2FsdA==",
        b"s=c2FsdA==,r=nonceserver,i=4096",
        b"r=nonce,s=c2FsdA==,i=4096",
        b"r=serveronly,s=c2FsdA==,i=4096",
        b"r=nonceserver,s=c2FsdA,i=4096",
        b"r=nonceserver,s=,i=4096",
        b"r=nonceserver,s=c2FsdA==,i=4095",
        b"r=nonceserver,s=c2FsdA==,i=1000001",
        b"r=nonceserver,s=c2FsdA==,i=99999999999999999999",
        b"r=nonceserver,s=c2FsdA==,i=-4096",
        b"r=nonceserver,s=c2FsdA==,i=4096,m=must",
        b"m=must,r=nonceserver,s=c2FsdA==,i=4096",
        b"e=other-error",
    ],
    name=repr,
)
def test_other_answers_of_a_server_are_refused(message: bytes) -> None:
    with pytest.raises(ScramError):
        ServerFirst.parse(message, "nonce")


@each(
    [
        b"",
        b"c=biws",
        b"c=biws,r=abc",
        b"c=biws,p=AAAA",
        b"r=abc,c=biws,p=AAAA",
        b"c=biws,r=abc,p=",
        b"c=biws,r=abc,p=AA",
        b"c=biws,r=abc,p=A*AA",
        b"c=biws,r=abc,m=must,p=AAAA",
        b"c=biws,r=abc,p=AAAA,x=y",
        b"c=biws,r=abc,p=\xff",
    ],
    name=repr,
)
def test_other_final_messages_are_refused(message: bytes) -> None:
    with pytest.raises(ScramError):
        ClientFinal.parse(message)


def test_the_server_answers_a_signature_or_an_error() -> None:
    assert ServerFinal.parse(ServerFinal(b"signed").encoded) == ServerFinal(b"signed")
    assert ServerFinal.parse(b"e=unknown-user,x=y") == ServerFinal(error="unknown-user")
    for message in (b"", b"v=", b"v=c", b"x=AAAA", b"e=", b"v=AAAA,m=must"):
        with pytest.raises(ScramError):
            ServerFinal.parse(message)


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(message: bytes) -> None:
    for whole in (message, b"n,," + message, b"n,,n=a,r=" + message, b"c=biws,r=" + message):
        for parse in (ClientFirst.parse, ClientFinal.parse, ServerFinal.parse):
            with contextlib.suppress(ScramError):
                parse(whole)


# A credential that Apache Kafka 3.9 wrote.
_KAFKA_TEXT = (
    "salt=MXExZjd1N3hqMW1ndnJ1ZHRtcmE2cGd5aGQ=,"
    "stored_key=4bcl7CNzAmgpj28BjG+YV7dG6BiahTmXJ25r/1RpSpI=,server_key=BB9rqDwEPGFNBmuVEQiFu4GwhXlvkoO4i848bbOPZNA=,iterations=4096"
)


def test_a_credential_is_written_as_kafka_writes_it() -> None:
    credential = ScramCredential.parse(_KAFKA_TEXT)
    assert credential.text == _KAFKA_TEXT
    assert credential.salt == b"1q1f7u7xj1mgvrudtmra6pgyhd"
    assert credential == scram.make_credential(ScramMechanism.SHA_256, "alice-secret", 4096, credential.salt)
    shown = repr(credential)
    assert shown == "ScramCredential(iterations=4096)"


@each(
    [
        "",
        "salt=AAAA",
        "salt=AAAA,stored_key=AAAA,server_key=AAAA",
        "salt=AAAA,stored_key=AAAA,server_key=AAAA,iterations=0",
        "salt=AAAA,stored_key=AAAA,server_key=AAAA,iterations=x",
        "salt=A,stored_key=AAAA,server_key=AAAA,iterations=4096",
        "salt=AAAA,stored_key=AAAA,server_key=AAAA,iterations=4096,x=y",
    ],
    name=repr,
)
def test_other_credentials_are_refused_and_not_shown(text: str) -> None:
    with pytest.raises(ScramError) as refused:
        ScramCredential.parse(text)
    assert "AAAA" not in str(refused.value)


def test_mechanisms_have_the_numbers_of_the_protocol() -> None:
    assert [ScramMechanism.of_number(number) for number in range(4)] == [
        None,
        ScramMechanism.SHA_256,
        ScramMechanism.SHA_512,
        None,
    ]
