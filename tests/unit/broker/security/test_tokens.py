"""OAUTHBEARER: signed tokens and the keys that verify them, unsecured tokens, and the exchange."""

import base64
import contextlib
import functools
import hashlib
import hmac
import json
import ssl
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from barnabas.broker.security import token_keys
from barnabas.broker.security.authentication import AuthenticationFailed, Identity, InvalidCredentials
from barnabas.broker.security.token_keys import MAX_KEYS_BYTES, KeySource, TokenKeys, parse_keys
from barnabas.broker.security.token_server import (
    Claims,
    SignedTokens,
    TokenRefused,
    TokenServer,
    UnsecuredTokens,
)
from barnabas.common.security.jaas import LoginModule
from barnabas.common.security.tls import settings_in
from barnabas.protocol.errors import InvalidConfiguration
from tests.support.building import fatal
from tests.support.cases import each
from tests.support.certificates import LOCAL, Certificates

RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
STRANGER = ec.generate_private_key(ec.SECP256R1())
KEYS: list[dict[str, Any]] = [
    {**RSAAlgorithm.to_jwk(RSA.public_key(), as_dict=True), "kid": "rsa", "use": "sig", "alg": "RS256"},
    {**ECAlgorithm.to_jwk(EC.public_key(), as_dict=True), "kid": "ec"},
    {**OKPAlgorithm.to_jwk(ED.public_key(), as_dict=True), "kid": "ed"},
]
NOW_S = int(time.time())
LONG_S = 1_000_000
"""More than passes between the import of this file and its last test."""


def source(url: str) -> KeySource:
    return KeySource(url, refresh_ms=3_600_000, retry_ms=100, max_retry_ms=1_000)


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    path = tmp_path / "a set.json"
    path.write_text(json.dumps({"keys": KEYS}))
    return path


@pytest.fixture
def keys(keys_file: Path) -> TokenKeys:
    return TokenKeys(source(keys_file.as_uri()), on_fatal=fatal)


def signed(key: Any = EC, algorithm: str = "ES256", key_id: str | None = "ec", **claims: Any) -> str:
    content = {"sub": "alice", "iat": NOW_S, "exp": NOW_S + LONG_S, **claims}
    content = {name: value for name, value in content.items() if value is not None}
    return jwt.encode(content, key, algorithm, {} if key_id is None else {"kid": key_id})


def message(token: str, name: str = "", extensions: str = "") -> bytes:
    return f"n,{name},\x01auth=Bearer {token}\x01{extensions}\x01".encode()


def extensions(count: int) -> str:
    return "".join(f"{'x' * length}=v\x01" for length in range(1, count + 1))


@each([(RSA, "RS256", "rsa"), (EC, "ES256", "ec"), (EC, "ES256", None), (ED, "EdDSA", "ed")], name=repr)
def test_a_token_of_a_known_key_names_its_principal(case: tuple[Any, str, str | None]) -> None:
    made = parse_keys(json.dumps({"keys": KEYS}).encode())
    tokens = SignedTokens(_Fixed(made), Claims())
    assert tokens.verify(signed(*case)) == Identity("alice", (NOW_S + LONG_S) * 1000)


class _Fixed(TokenKeys):
    """Keys that nobody fetches."""

    def __init__(self, keys: Any) -> None:
        self._keys = keys
        self.misses = 0

    def _miss(self) -> None:
        self.misses += 1


def _hmac_of_public_key() -> str:
    """The attack on verifiers that let the token choose its algorithm: the public key as a MAC's secret."""
    pem = RSA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    head, body = (
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=")
        for part in (
            {"alg": "HS256", "kid": "rsa", "typ": "JWT"},
            {"sub": "alice", "iat": NOW_S, "exp": NOW_S + LONG_S},
        )
    )
    mac = base64.urlsafe_b64encode(hmac.digest(pem, head + b"." + body, hashlib.sha256)).rstrip(b"=")
    return b".".join((head, body, mac)).decode()


def _unsigned(**claims: Any) -> str:
    content = {"sub": "alice", "iat": NOW_S, "exp": NOW_S + LONG_S, **claims}
    return jwt.encode(content, None, "none", {"kid": "ec"})


@each(
    [
        ("expired", lambda: signed(exp=NOW_S - 60)),
        ("not valid yet", lambda: signed(nbf=NOW_S + LONG_S)),
        ("issued in the future", lambda: signed(iat=NOW_S + LONG_S)),
        ("without an end", lambda: signed(exp=None)),
        ("without a beginning", lambda: signed(iat=None)),
        ("without a subject", lambda: signed(sub=None)),
        ("blank subject", lambda: signed(sub="  ")),
        ("a number as subject", lambda: signed(sub=5)),
        ("no time", lambda: signed(exp="soon")),
        ("another issuer", lambda: signed(iss="https://other")),
        ("no issuer", lambda: signed(iss=None)),
        ("another audience", lambda: signed(aud=["others"])),
        ("no audience", lambda: signed(aud=None)),
        ("repeated scope", lambda: signed(scope=["a", "a"])),
        ("blank scope", lambda: signed(scope=" ")),
        ("scopes that are no texts", lambda: signed(scope=[1])),
        ("a stranger's key", lambda: signed(STRANGER)),
        ("an unknown key", lambda: signed(STRANGER, key_id="stranger")),
        ("a key for another algorithm", lambda: signed(EC, key_id="rsa")),
        ("an algorithm that the key does not allow", lambda: signed(RSA, "RS512", "rsa")),
        ("no signature", _unsigned),
        ("the public key as a secret", _hmac_of_public_key),
        ("a byte too few", lambda: signed()[:-1]),
        ("no token", lambda: "a.b.c"),
        ("two parts", lambda: "a.b"),
        ("more after the signature", lambda: signed() + "xxxx"),
    ],
    name=lambda case: case[0],
)
def test_every_other_token_is_refused_and_not_shown(case: tuple[str, Callable[[], str]]) -> None:
    made = parse_keys(json.dumps({"keys": KEYS}).encode())
    good = {"iss": "https://issuer", "aud": "kafka"}
    tokens = SignedTokens(_Fixed(made), Claims(audience=("kafka", "logs"), issuer="https://issuer"))
    assert tokens.verify(signed(**good)).name == "alice"
    _, make = case
    token = functools.partial(make)()
    if case[0] not in ("another issuer", "no issuer", "another audience", "no audience"):
        tokens = SignedTokens(_Fixed(made), Claims())
    with pytest.raises(TokenRefused) as refused:
        tokens.verify(token)
    assert not any(len(part) > 3 and part in str(refused.value) for part in token.split("."))


def test_a_long_header_is_not_parsed_before_the_signature_is_verified() -> None:
    tokens = SignedTokens(_Fixed(parse_keys(json.dumps({"keys": KEYS}).encode())), Claims())
    payload = {"sub": "alice", "iat": NOW_S, "exp": NOW_S + LONG_S}
    usual, long = (
        jwt.encode(payload, EC, "ES256", headers={"kid": "ec", "x5c": ["x" * size]})
        for size in (12_000, 13_000)
    )
    assert tokens.verify(usual).name == "alice"
    with pytest.raises(TokenRefused, match="the header of the token is too long"):
        tokens.verify(long)


def test_a_refusal_names_the_claim_that_is_missing() -> None:
    tokens = SignedTokens(_Fixed(parse_keys(json.dumps({"keys": KEYS}).encode())), Claims())
    with pytest.raises(TokenRefused, match=r"^claim iat is missing$"):
        tokens.verify(signed(iat=None))


@pytest.mark.parametrize("error", [OverflowError, TypeError])
def test_an_error_that_the_library_lets_through_is_a_refusal(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def fail(token: str) -> None:
        raise error(token)

    monkeypatch.setattr(jwt, "get_unverified_header", fail)
    tokens = SignedTokens(_Fixed(parse_keys(json.dumps({"keys": KEYS}).encode())), Claims())
    with pytest.raises(TokenRefused, match=f"^{error.__name__}$"):
        tokens.verify(signed())


def test_an_audience_that_nobody_expects_is_refused_as_by_kafka() -> None:
    tokens = SignedTokens(_Fixed(parse_keys(json.dumps({"keys": KEYS}).encode())), Claims())
    with pytest.raises(TokenRefused):
        tokens.verify(signed(aud="kafka"))


def test_the_names_of_claims_and_the_skew_of_clocks_are_settings() -> None:
    keys = _Fixed(parse_keys(json.dumps({"keys": KEYS}).encode()))
    tokens = SignedTokens(keys, Claims(subject_claim="name", scope_claim="roles", clock_skew_s=LONG_S))
    # The skew is longer than any pause of this process.
    identity = tokens.verify(signed(name=" bob ", roles=["a", "b"], exp=NOW_S - 5, iat=NOW_S - 60))
    assert identity == Identity("bob", (NOW_S - 5) * 1000)
    with pytest.raises(TokenRefused):
        tokens.verify(signed(name="bob", roles=["a", "a"]))


def test_only_public_keys_that_verify_are_used() -> None:
    usable = parse_keys(
        json.dumps(
            {
                "keys": [
                    *KEYS,
                    {"kty": "oct", "k": "c2VjcmV0", "kid": "shared", "alg": "HS256"},
                    {**KEYS[1], "kid": "encrypts", "use": "enc"},
                    {**ECAlgorithm.to_jwk(EC, as_dict=True), "kid": "private"},
                    {**KEYS[1], "kid": "odd", "alg": "HS256"},
                    {**KEYS[1], "kid": "broken", "x": "AA"},
                    {"kty": ["RSA"], "kid": "odd"},
                    5,
                ]
            }
        ).encode()
    )
    assert [key.key_id for key in usable] == ["rsa", "ec", "ed"]
    for broken in (b"", b"[]", b"{}", b'{"keys": []}', b'{"keys": 5}', b'{"keys": [{}]}', b"\xff"):
        with pytest.raises((ValueError, KeyError, TypeError)):
            parse_keys(broken)


def test_a_key_that_the_library_cannot_read_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyJWT 2.10 passes on the errors of the library of ciphers."""

    def read(key: dict[str, Any], algorithm: str) -> Any:
        if key["kid"] == "broken":
            raise ValueError("Point is not on the curve")
        return make(key, algorithm)

    make = jwt.PyJWK
    monkeypatch.setattr(jwt, "PyJWK", read)
    usable = parse_keys(json.dumps({"keys": [{**KEYS[1], "kid": "broken"}, *KEYS]}).encode())
    assert [key.key_id for key in usable] == ["rsa", "ec", "ed"]


def test_a_file_is_read_again_and_a_broken_one_keeps_the_former_keys(
    keys_file: Path, keys: TokenKeys
) -> None:
    assert keys.find("ec", "ES256") is not None
    assert keys.find("ec", "RS256") is None
    keys_file.write_text("{")
    assert keys.refresh() == pytest.approx(0.1)
    assert keys.refresh() == pytest.approx(0.2)
    assert keys.find("ec", "ES256") is not None
    keys_file.write_text(json.dumps({"keys": [{**KEYS[1], "kid": "new"}]}))
    assert keys.refresh() == 3600
    assert keys.find("new", "ES256") is not None
    assert keys.find("ec", "ES256") is None
    keys_file.write_text(" " * MAX_KEYS_BYTES + json.dumps({"keys": KEYS}))
    assert keys.refresh() == pytest.approx(0.1)


def test_a_broken_file_or_url_stops_the_broker_at_its_start(tmp_path: Path) -> None:
    for url in ((tmp_path / "missing").as_uri(), "ftp://host/keys", "keys.json"):
        with pytest.raises(InvalidConfiguration):
            TokenKeys(source(url), on_fatal=fatal)


class _Issuer(ThreadingHTTPServer):
    """Answers with the entries of `answers`, else with the keys. Code 0 is for a raw answer."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests = 0
        self.answers: list[tuple[int, bytes]] = []


class _Handler(BaseHTTPRequestHandler):
    server: _Issuer

    def do_GET(self) -> None:
        self.server.requests += 1
        default = (200, json.dumps({"keys": KEYS}).encode())
        code, body = self.server.answers.pop(0) if self.server.answers else default
        if not code:
            self.wfile.write(body)
            return
        self.send_response(code)
        if code == 302:
            self.send_header("Location", body.decode())
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def issuer() -> Iterator[_Issuer]:
    with _Issuer() as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_keys_come_from_a_server_that_may_be_away_at_first(issuer: _Issuer, keys_file: Path) -> None:
    url = f"http://127.0.0.1:{issuer.server_port}/keys"
    keys = TokenKeys(source(url), on_fatal=fatal)
    assert keys.find("ec", "ES256") is None
    issuer.answers += [(503, b""), (302, keys_file.as_uri().encode()), (200, b" " * (MAX_KEYS_BYTES + 1))]
    for wait_s in (0.1, 0.2, 0.4):
        assert keys.refresh() == pytest.approx(wait_s)
        assert keys.find("ec", "ES256") is None
    assert keys.refresh() == 3600
    assert keys.find("ec", "ES256") is not None


@pytest.mark.parametrize("hosts", [LOCAL, ("elsewhere",)])
def test_a_key_server_is_trusted_by_the_options_of_the_login_module(
    issuer: _Issuer, certificates: Certificates, hosts: tuple[str, ...]
) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates.key_store("server", *hosts))
    issuer.socket = context.wrap_socket(issuer.socket, server_side=True)
    found = source(f"https://127.0.0.1:{issuer.server_port}/")
    tls = settings_in(
        {"ssl.truststore.location": str(certificates.trusted), "ssl.endpoint.identification.algorithm": ""}
    )
    trusting = TokenKeys(found._replace(tls=tls), on_fatal=fatal)
    assert trusting.refresh() == pytest.approx(3600 if hosts is LOCAL else 0.1), "its name counts as well"
    assert TokenKeys(found, on_fatal=fatal).refresh() == pytest.approx(0.1)


def test_a_server_that_answers_nonsense_does_not_end_the_broker(issuer: _Issuer) -> None:
    keys = TokenKeys(source(f"http://127.0.0.1:{issuer.server_port}/"), on_fatal=fatal)
    cut_off = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10\r\nabc"
    issuer.answers += [(0, b"SSH-2.0-x\r\n\r\n"), (0, cut_off), (200, b"[" * 100_000)]
    for wait_s in (0.1, 0.2, 0.4):
        assert keys.refresh() == pytest.approx(wait_s)
    assert keys.refresh() == 3600


def test_an_answer_that_does_not_end_is_given_up(issuer: _Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte is in time for the time-out of the socket; no fetch could follow meanwhile."""
    monkeypatch.setattr(token_keys, "_LONGEST_S", 0.0)
    keys = TokenKeys(source(f"http://127.0.0.1:{issuer.server_port}/"), on_fatal=fatal)
    issuer.answers.append((0, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n"))
    with pytest.raises(TimeoutError, match="takes longer"):
        token_keys._fetch(keys._source)


def test_an_unknown_key_has_the_keys_fetched_soon_but_not_for_each_token(issuer: _Issuer) -> None:
    now_s = 100.0
    keys = TokenKeys(source(f"http://127.0.0.1:{issuer.server_port}/"), on_fatal=fatal, now_s=lambda: now_s)
    woken: list[float] = []
    keys._task.wake = lambda: woken.append(now_s)  # type: ignore[method-assign] - no thread runs here
    for _ in range(3):
        keys.find("rotated", "ES256")
    keys.find("x" * 1_001, "ES256")
    assert woken == [100.0]
    now_s += 10
    keys.find("rotated", "ES256")
    assert woken == [100.0, 110.0]


# The exchange


def unsecured(now_s: float = NOW_S, **options: str) -> UnsecuredTokens:
    made = UnsecuredTokens.of(
        LoginModule("", {f"unsecuredValidator{name}": value for name, value in options.items()})
    )
    return UnsecuredTokens(
        subject_claim=made.subject_claim,
        scope_claim=made.scope_claim,
        required_scopes=made.required_scopes,
        clock_skew_ms=made.clock_skew_ms,
        now_ms=lambda: int(now_s * 1000),
    )


def test_unsecured_tokens_are_believed() -> None:
    for options, token in (
        ({}, _unsigned()),
        ({"PrincipalClaimName": "name"}, _unsigned(sub="x", name="alice")),
        ({"RequiredScope": "a b"}, _unsigned(scope="b a c")),
        ({"RequiredScope": "a", "ScopeClaimName": "roles"}, _unsigned(roles=["a"])),
        ({"AllowableClockSkewMs": "700000"}, _unsigned(exp=NOW_S - 600, iat=NOW_S - 601)),
    ):
        assert unsecured(**options).verify(token).name == "alice"


def test_other_unsecured_tokens_are_refused() -> None:
    for options, token in (
        ({}, signed()),
        ({}, _unsigned(exp=NOW_S)),
        ({}, _unsigned(iat=NOW_S + 1)),
        ({}, _unsigned(iat=NOW_S - 5, exp=NOW_S - 5)),
        ({}, _unsigned() + "x"),
        ({}, "a.b."),
        ({"PrincipalClaimName": "name"}, _unsigned()),
    ):
        with pytest.raises(TokenRefused):
            unsecured(**options).verify(token)
    with pytest.raises(TokenRefused) as refused:
        unsecured(RequiredScope="a b").verify(_unsigned(scope="a"))
    assert (refused.value.status, refused.value.scope) == ("insufficient_scope", "[a, b]")
    with pytest.raises(InvalidConfiguration):
        unsecured(AllowableClockSkewMs="-1")


def test_the_peer_is_the_one_of_its_token() -> None:
    for sent in (
        message(_unsigned()),
        message(_unsigned(), "a=alice"),
        message(_unsigned(), extensions="traceId=123 456\x01logicalCluster=x\x01"),
        message(_unsigned(), extensions=extensions(99)),
        f"n,,\x01traceId=1\x01auth=bEaReR   {_unsigned()}\x01\x01".encode(),
    ):
        server = TokenServer(unsecured())
        assert server.evaluate(sent) == b""
        assert server.identity == Identity("alice", (NOW_S + LONG_S) * 1000)


def test_a_refused_token_is_told_before_the_end() -> None:
    """RFC 7628: an error, which the peer confirms, and then the failure."""
    server = TokenServer(unsecured(RequiredScope="admin"))
    error = server.evaluate(message(_unsigned()))
    assert json.loads(error) == {"status": "insufficient_scope", "scope": "[admin]"}
    with pytest.raises(AuthenticationFailed) as refused:
        server.evaluate(b"\x01")
    assert str(refused.value) == error.decode()
    server = TokenServer(unsecured())
    assert server.evaluate(message(signed())) == b'{"status":"invalid_token"}'
    with pytest.raises(InvalidCredentials):
        server.evaluate(message(_unsigned()))
    assert server.identity is None


@each(
    [
        b"",
        b"n,,",
        b"n,,\x01",
        b"n,,\x01\x01",
        message("{token}")[:-1],
        message("{token}") + b"x",
        message("{token}").replace(b"n,,", b"y,,"),
        message("{token}").replace(b"n,,", b"p=tls,,"),
        message("{token}", "alice"),
        message("{token}", "a="),
        message("{token}", "a=x=y"),
        message("{token}").replace(b"Bearer", b"Basic"),
        message("{token}").replace(b"Bearer ", b"Bearer"),
        message("{token}", extensions="auth=Bearer x\x01"),
        message("{token}", extensions="bad_name=x\x01"),
        message("{token}", extensions="name=\x01"),
        message("{token}", extensions=extensions(100)),
        message("{token}", extensions="name=\x7f\x01"),
        message("{token}").replace(b"\x01auth", b"\xffauth"),
    ],
    name=repr,
)
def test_other_messages_are_refused(sent: bytes) -> None:
    server = TokenServer(unsecured())
    with pytest.raises(InvalidCredentials):
        server.evaluate(sent.replace(b"{token}", _unsigned().encode()))
    assert server.identity is None


def test_nobody_acts_as_another() -> None:
    with pytest.raises(AuthenticationFailed, match="different from the token's principal name"):
        TokenServer(unsecured()).evaluate(message(_unsigned(), "a=bob"))


@given(st.binary(max_size=80), st.integers(0, 60), st.integers(0, 60))
def test_any_message_is_refused_or_answered(noise: bytes, start: int, end: int) -> None:
    whole = message("aaaa.bbbb.")
    for sent in (noise, whole[:start] + noise + whole[end:]):
        server = TokenServer(unsecured())
        with contextlib.suppress(InvalidCredentials):
            assert server.evaluate(sent) == b'{"status":"invalid_token"}'
        assert server.identity is None
