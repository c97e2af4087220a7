"""The broker's side of OAUTHBEARER: a peer shows a token that an issuer has signed for it.

`SignedTokens` verifies tokens by the issuer's public keys. `UnsecuredTokens` believes tokens without a
signature, as Apache Kafka does for tests; a listener uses it only if its callback handler is named. Why a
token is refused goes into the log, and no part of the token does.

Source: RFC 7628, RFC 7519, KIP-255, KIP-768; Kafka's `OAuthBearerSaslServer`.
"""

from __future__ import annotations

import json
import logging
import re
from base64 import urlsafe_b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from barnabas.broker.base.clocks import wall_clock_ms
from barnabas.broker.base.limited_log import LimitedLog
from barnabas.broker.security.authentication import AuthenticationFailed, Identity, InvalidCredentials
from barnabas.broker.security.token_keys import TokenKeys
from barnabas.common.security.jaas import LoginModule
from barnabas.protocol.errors import InvalidConfiguration

logger = logging.getLogger(__name__)
_report: Final = LimitedLog(logger, logging.WARNING)

_SEPARATOR: Final = "\x01"
_NAME: Final = re.compile(r"a=((?:[^\x00=,]|=2C|=3D)+)")
_PAIR: Final = re.compile(r"([A-Za-z]+)=([\x21-\x7e \t\r\n]+)")
_BEARER: Final = re.compile(r"bearer +([-_~+/.a-zA-Z0-9]+=*)", re.IGNORECASE | re.ASCII)
_MOST_PAIRS: Final = 100
"""Of a message, most of them extensions: a stranger may send thousands, which take milliseconds."""
_MAX_HEADER_CHARACTERS: Final = 16 * 1024
"""Of a signed token: it is parsed before the signature is verified, and may have certificates."""
_MAX_SECONDS: Final = 2**40
_PARTS: Final = 3


class TokenRefused(Exception):
    """A token is not accepted; the text says why and shows nothing of it."""

    def __init__(self, reason: str, *, status: str = "invalid_token", scope: str | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.scope = scope


class Tokens(Protocol):
    """A way to verify tokens."""

    def verify(self, token: str) -> Identity:
        """Raises TokenRefused."""
        ...


# ---- the exchange


class TokenServer:
    def __init__(self, tokens: Tokens) -> None:
        self.identity: Identity | None = None
        self._tokens = tokens
        # The error that the peer was told, until it has confirmed it.
        self._error = ""

    def evaluate(self, token: bytes) -> bytes:
        if self._error:
            # RFC 7628: the peer confirms an error by one byte. Anything else would be another try.
            raise AuthenticationFailed(self._error) if token == b"\x01" else InvalidCredentials
        acts_as, bearer = _parse(token)
        try:
            identity = self._tokens.verify(bearer)
        except TokenRefused as refusal:
            _report("a token of OAUTHBEARER is refused: %s", refusal)
            answer = {"status": refusal.status}
            if refusal.scope is not None:
                answer["scope"] = refusal.scope
            self._error = json.dumps(answer, separators=(",", ":"))
            return self._error.encode()
        if acts_as not in ("", identity.name):
            raise AuthenticationFailed(
                "Authentication failed: Client requested an authorization id that is different from the "
                "token's principal name"
            )
        self.identity = identity
        return b""


def _parse(message: bytes) -> tuple[str, str]:
    """The name that the peer wants to act as, and its token. Raises InvalidCredentials.

    Other pairs are the extensions of KIP-342: they are checked, and nothing here uses them.
    """
    try:
        flag, name, rest = message.decode().split(",", 2)
    except ValueError:
        raise InvalidCredentials from None
    matched = _NAME.fullmatch(name)
    if flag != "n" or (name and matched is None):
        raise InvalidCredentials
    is_possible = 1 < rest.count(_SEPARATOR) <= _MOST_PAIRS + 2
    before, *pairs, last, end = rest.split(_SEPARATOR) if is_possible else ("x", "", "")
    if before or last or end:
        raise InvalidCredentials
    values: dict[str, str] = {}
    for pair in pairs:
        found = _PAIR.fullmatch(pair)
        if found is None or found[1] in values:
            raise InvalidCredentials
        values[found[1]] = found[2]
    bearer = _BEARER.fullmatch(values.get("auth", ""))
    if bearer is None:
        raise InvalidCredentials
    acts_as = matched[1].replace("=2C", ",").replace("=3D", "=") if matched else ""
    return acts_as, bearer[1]


# ---- signed tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """The claims that a token must have."""

    audience: tuple[str, ...] | None = None
    """It names one of them. Without any, a token that names its audience is refused, as by Kafka."""
    issuer: str | None = None
    subject_claim: str = "sub"
    scope_claim: str = "scope"
    clock_skew_s: int = 0


class SignedTokens:
    def __init__(self, keys: TokenKeys, claims: Claims) -> None:
        # Loaded by brokers that use it alone; without it there are no keys.
        import jwt

        self._jwt = jwt
        self._keys = keys
        self._claims = claims

    def verify(self, token: str) -> Identity:
        jwt, claims = self._jwt, self._claims
        if token.find(".") > _MAX_HEADER_CHARACTERS:
            raise TokenRefused("the header of the token is too long")
        try:
            header = jwt.get_unverified_header(token)
            algorithm, key_id = header.get("alg"), header.get("kid")
            if not isinstance(algorithm, str) or not isinstance(key_id, str | None):
                raise TokenRefused("the header of the token is malformed")
            key = self._keys.find(key_id, algorithm)
            if key is None:
                raise TokenRefused("no known key has the id and the algorithm of the token")
            content = jwt.decode(
                token,
                key.key,
                algorithms=[algorithm],
                audience=claims.audience,
                issuer=claims.issuer,
                leeway=claims.clock_skew_s,
                options={"require": ["exp", "iat"], "verify_sub": False, "verify_jti": False},
            )
        except jwt.MissingRequiredClaimError as error:
            raise TokenRefused(f"claim {error.claim} is missing") from None
        except (jwt.PyJWTError, ArithmeticError, RecursionError, TypeError, ValueError) as error:
            # Before 2.15 PyJWT passes on errors of deeply nested JSON and absurd times. The texts of some
            # errors show parts of the token.
            raise TokenRefused(f"{type(error).__name__}") from None
        _check_scopes(content.get(claims.scope_claim))
        return Identity(_subject(content, claims.subject_claim), _end_ms(content))


def _subject(content: Mapping[str, Any], claim: str) -> str:
    subject = content.get(claim)
    if not isinstance(subject, str) or not subject.strip():
        raise TokenRefused(f"claim {claim} is not a text")
    return subject.strip()


def _end_ms(content: Mapping[str, Any]) -> int:
    return int(_seconds(content, "exp") * 1000)


def _seconds(content: Mapping[str, Any], claim: str) -> float:
    value = content.get(claim)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MAX_SECONDS:
        raise TokenRefused(f"claim {claim} is not a time")
    return value


def _check_scopes(value: Any) -> None:
    if value is None or isinstance(value, str):
        scopes = [] if value is None else [value]
    elif isinstance(value, list) and all(isinstance(scope, str) for scope in value):
        scopes = [scope.strip() for scope in value]
    else:
        raise TokenRefused("the claim of scopes is neither a text nor a list of texts")
    if not all(map(str.strip, scopes)) or len(set(scopes)) < len(scopes):
        raise TokenRefused("a scope is empty or repeated")


# ---- tokens without a signature


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsecuredTokens:
    """Believes a peer, by the options of Kafka's validator; for tests alone."""

    subject_claim: str = "sub"
    scope_claim: str = "scope"
    required_scopes: tuple[str, ...] = ()
    clock_skew_ms: int = 0
    now_ms: Callable[[], int] = field(default=wall_clock_ms)

    @classmethod
    def of(cls, module: LoginModule) -> UnsecuredTokens:
        """By the options ``unsecuredValidator…``. Raises InvalidConfiguration."""

        def option(name: str) -> str:
            return module.options.get(f"unsecuredValidator{name}", "").strip()

        skew = option("AllowableClockSkewMs") or "0"
        if not (skew.isascii() and skew.isdecimal()):
            raise InvalidConfiguration("unsecuredValidatorAllowableClockSkewMs: expected a number from 0")
        return cls(
            subject_claim=option("PrincipalClaimName") or "sub",
            scope_claim=option("ScopeClaimName") or "scope",
            required_scopes=tuple(option("RequiredScope").split()),
            clock_skew_ms=int(skew),
        )

    def verify(self, token: str) -> Identity:
        parts = token.split(".")
        if len(parts) != _PARTS or parts[2]:
            raise TokenRefused("it is not an unsecured token of three parts, the last of them empty")
        if _json(parts[0]).get("alg") != "none":
            raise TokenRefused("the algorithm of an unsecured token is none")
        content = _json(parts[1])
        name, now_ms = _subject(content, self.subject_claim), self.now_ms()
        if now_ms - self.clock_skew_ms >= _end_ms(content):
            raise TokenRefused("the token has expired")
        if "iat" in content:
            issued_ms = _seconds(content, "iat") * 1000
            if issued_ms > now_ms + self.clock_skew_ms or issued_ms >= _end_ms(content):
                raise TokenRefused("the token is not valid yet, or never")
        self._check_scope(content.get(self.scope_claim))
        return Identity(name, _end_ms(content))

    def _check_scope(self, value: Any) -> None:
        scopes = value.split() if isinstance(value, str) else value if isinstance(value, list) else []
        if not set(self.required_scopes) <= {scope for scope in scopes if isinstance(scope, str)}:
            required = f"[{', '.join(self.required_scopes)}]"
            raise TokenRefused("a required scope is missing", status="insufficient_scope", scope=required)


def _json(part: str) -> dict[str, Any]:
    try:
        value = json.loads(urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise TokenRefused("a part of the token is not a JSON object in base64")
    return value
