"""Where a client gets its bearer tokens from (OAUTHBEARER): a text, a file, a function, a token endpoint.

A token is kept until four fifths of its life are over, as in Kafka (`sasl.login.refresh.window.factor`), and
asked for at the next authentication after that. No error shows a token or a secret. A source may be used on
any event loop; two loops may ask at the same time.

Sources: KIP-768 (token endpoint), KIP-255 (unsecured tokens, for tests), RFC 6749 section 4.4.
"""

from __future__ import annotations

import asyncio
import http.client
import inspect
import json
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from abc import ABC, abstractmethod
from base64 import b64encode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from barnabas.common.security.tls import client_context, settings_in
from barnabas.protocol.errors import ConnectionClosed, InvalidConfiguration, SaslAuthenticationFailed

_REFRESH_FACTOR: Final = 0.8
_TIMEOUT_MS: Final = 10_000
_MAX_BYTES: Final = 1_000_000
"""Of the answer of a token endpoint, or of a file with a token."""
_UNSECURED: Final = "unsecuredLogin"
_CLAIM_KINDS: Final[Mapping[str, Callable[[str], Any]]] = {
    "StringClaim_": str,
    "NumberClaim_": float,
    "ListClaim_": lambda text: text[1:].split(text[:1]),
}
"""The options of Kafka's unsecured login: `unsecuredLoginStringClaim_sub="alice"` and the like."""

GivenToken = str | tuple[str, float]
"""A token, or a token with the end of its life in seconds since 1970."""
TokenFunction = Callable[[], GivenToken | Awaitable[GivenToken]]


class TokenProvider(Protocol):
    """An object of the user, as kafka-python's and aiokafka's."""

    def token(self) -> Any: ...


class TokenSource(ABC):
    """Keeps the last token for a while."""

    def __init__(self) -> None:
        self._kept: tuple[str, float] | None = None

    async def token(self) -> str:
        """A token that is valid now. Raises SaslAuthenticationFailed, or ConnectionClosed to try again."""
        kept = self._kept
        if kept is not None and time.time() < kept[1]:
            return kept[0]
        now_s = time.time()
        given = await self._get()
        token, end_s = given if isinstance(given, tuple) else (given, _end_of(given))
        if end_s is not None:
            self._kept = token, now_s + (end_s - now_s) * _REFRESH_FACTOR
        return token

    @abstractmethod
    async def _get(self) -> GivenToken: ...


def claim_in(token: str, name: str) -> Any:
    """A claim of a JWT, unverified; None for a token without the claim, or of another kind."""
    try:
        payload = token.split(".")[1]
        return json.loads(urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))[name]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


def _end_of(token: str) -> float | None:
    """The claim ``exp``; None without it: such a token is not kept."""
    try:
        return float(claim_in(token, "exp"))
    except (ValueError, TypeError, OverflowError):
        return None


class StaticToken(TokenSource):
    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token

    async def _get(self) -> GivenToken:
        return self._token


class TokenFile(TokenSource):
    """A file with a token, read for each authentication, because another program renews it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    async def token(self) -> str:
        return str(await self._get())

    async def _get(self) -> GivenToken:
        try:
            with self._path.open("rb") as file:
                return file.read(_MAX_BYTES).decode("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SaslAuthenticationFailed(
                f"the file {self._path} has no token: {type(error).__name__}"
            ) from None


class TokenFromProgram(TokenSource):
    """A function of the user, plain or asynchronous, or an object with a method ``token``.

    A plain one runs on a thread, because it may ask over the network.
    """

    def __init__(self, provider: TokenFunction | TokenProvider) -> None:
        super().__init__()
        self._function: Callable[[], Any] = provider if callable(provider) else provider.token

    async def _get(self) -> GivenToken:
        try:
            if inspect.iscoroutinefunction(self._function):
                given = await self._function()
            else:
                given = await asyncio.to_thread(self._function)
                if inspect.isawaitable(given):
                    given = await given
        except Exception as error:
            # Its text may have a secret; the cause has all of it.
            raise SaslAuthenticationFailed(
                f"sasl_oauth_token_provider raised {type(error).__name__}"
            ) from error
        token, end_s = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
        is_end = isinstance(end_s, int | float) or token is given
        if not isinstance(token, str) or not token or not is_end:
            raise SaslAuthenticationFailed(
                "sasl_oauth_token_provider: expected a token as text, or a pair of it and the end of its life"
            )
        return token if end_s is None else (token, end_s)


class UnsecuredTokens(TokenSource):
    """Tokens without a signature, which Kafka's brokers take in tests; from the options of the JAAS text.

    Raises InvalidConfiguration.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__()
        try:
            self._claims = {
                option.removeprefix(_UNSECURED + kind): read(text)
                for option, text in options.items()
                for kind, read in _CLAIM_KINDS.items()
                if option.startswith(_UNSECURED + kind)
            }
            self._life_s = float(options.get(f"{_UNSECURED}LifetimeSeconds", 3600))
        except ValueError:
            raise InvalidConfiguration("a number in the options of the unsecured login is none") from None
        if options.get(f"{_UNSECURED}PrincipalClaimName", "sub") not in self._claims:
            raise InvalidConfiguration(
                "the JAAS text has no credentials for OAUTHBEARER: expected clientId and clientSecret with "
                "sasl.oauthbearer.token.endpoint.url, or unsecuredLoginStringClaim_sub for tests"
            )

    async def _get(self) -> GivenToken:
        now_s = time.time()
        claims = {"iat": now_s, "exp": now_s + self._life_s, **self._claims}
        return f"{_part({'alg': 'none'})}.{_part(claims)}.", now_s + self._life_s


def _part(value: Mapping[str, Any]) -> str:
    return urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect is an error: the request has the client's secret, which no other server may see."""

    def redirect_request(self, *request: Any) -> None:
        return None


class TokenEndpoint(TokenSource):
    """The client credentials grant over HTTP; the request runs on a thread.

    `is_urlencoded` is `sasl.oauthbearer.header.urlencode`: as RFC 6749 has it; many servers want it as it is.
    """

    def __init__(
        self,
        url: str,
        client_id: str,
        client_secret: str,
        *,
        scope: str | None = None,
        is_urlencoded: bool = False,
        timeout_ms: int = _TIMEOUT_MS,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        super().__init__()
        self._url = url
        parts = [client_id, client_secret]
        if is_urlencoded:
            parts = [urllib.parse.quote_plus(part) for part in parts]
        self._authorization = "Basic " + b64encode(":".join(parts).encode()).decode()
        self._form = {"grant_type": "client_credentials"} | ({"scope": scope} if scope else {})
        self._timeout_s = timeout_ms / 1000
        self._tls = tls

    async def _get(self) -> GivenToken:
        return await asyncio.to_thread(self._ask)

    def _ask(self) -> str:
        url = self._url
        headers = {"Authorization": self._authorization, "Accept": "application/json"}
        request = urllib.request.Request(url, urllib.parse.urlencode(self._form).encode(), headers)
        context = self._tls() if self._tls is not None and url.lower().startswith("https:") else None
        opener = urllib.request.build_opener(_NoRedirects, urllib.request.HTTPSHandler(context=context))
        try:
            with opener.open(request, timeout=self._timeout_s) as answer:
                return _token_in(answer.read(_MAX_BYTES), url)
        except urllib.error.HTTPError as error:
            with error:
                if error.code >= 500:
                    raise ConnectionClosed(f"the token endpoint {url} answers {error.code}") from None
                raise SaslAuthenticationFailed(
                    f"the token endpoint {url} refuses the client: {error.code}"
                ) from None
        except (OSError, http.client.HTTPException) as error:
            # URLError and time-outs are such; the others are of a peer that does not speak HTTP, or stops.
            raise ConnectionClosed(f"the token endpoint {url} cannot be asked: {error}") from None


def _token_in(body: bytes, url: str) -> str:
    try:
        token = json.loads(body)["access_token"]
    except (ValueError, LookupError, TypeError, RecursionError):
        token = None
    if not isinstance(token, str) or not token:
        raise SaslAuthenticationFailed(f"the token endpoint {url} sent no access_token")
    return token


def make_token_source(
    url: str | None,
    options: Mapping[str, str],
    *,
    client_id: str | None,
    client_secret: str | None,
    scope: str | None = None,
    is_urlencoded: bool = False,
    timeouts_ms: Iterable[int | None],
    tls: Callable[[], ssl.SSLContext] | None,
) -> TokenSource:
    """Kafka's sources: a file or an endpoint by its URL, else the unsecured login by the JAAS options.

    Of `timeouts_ms`, for the connection and for the answer, the longest counts. Options ``ssl.…`` count for
    the endpoint, and not ``tls``, if there are any. Raises InvalidConfiguration.
    """
    if url is None:
        return UnsecuredTokens(options)
    if url.startswith("file:"):
        return TokenFile(Path(urllib.parse.unquote(urllib.parse.urlsplit(url).path)))
    if client_id is None or client_secret is None:
        raise InvalidConfiguration(
            "sasl.oauthbearer.token.endpoint.url needs the name and the secret of the client: expected "
            "clientId and clientSecret in the JAAS text"
        )
    if (settings := settings_in(options)) is not None:
        tls = partial(client_context, settings)
    return TokenEndpoint(
        url,
        client_id,
        client_secret,
        scope=scope,
        is_urlencoded=is_urlencoded,
        timeout_ms=max(each or _TIMEOUT_MS for each in timeouts_ms),
        tls=tls,
    )


def extensions_of(options: Mapping[str, str]) -> dict[str, str]:
    """The SASL extensions in the options of a JAAS text (KIP-342)."""
    return {
        name.removeprefix(prefix): value
        for name, value in options.items()
        for prefix in (f"{_UNSECURED}Extension_", "extension_")
        if name.startswith(prefix)
    }
