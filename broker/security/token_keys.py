"""The keys that verify tokens of OAUTHBEARER: a JSON web key set of a file or an HTTP server.

Keys are fetched again on a thread of their own: every so often, sooner after a failure, and when a token has
an unknown key, but then at most once in a while. Until a fetch succeeds the former keys count. Only public
keys of RSA, elliptic curves and Ed25519 are used, each for the algorithms of its kind: a key cannot be taken
for the secret of a MAC. An answer is bounded, and redirects are not followed.

Source: RFC 7517; Kafka's `RefreshingHttpsJwks`.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import logging
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from barnabas.common.backoff import doubled
from barnabas.common.security.tls import TlsSettings, client_context
from barnabas.common.workers import Task
from barnabas.protocol.errors import InvalidConfiguration

logger = logging.getLogger(__name__)

MAX_KEYS_BYTES: Final = 1024 * 1024
MAX_KEYS: Final = 200
_PART_BYTES: Final = 64 * 1024
_MAX_ID_CHARACTERS: Final = 1_000
_TIMEOUT_S: Final = 10.0
_LONGEST_S: Final = 30.0
"""Of a whole answer, whose bytes may come one by one."""
_STOP_S: Final = 1.0
_NO_KEYS: Final = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    RecursionError,
    http.client.HTTPException,
    InvalidConfiguration,
)
"""The errors of a server or a file without usable keys."""
_SOONEST_S: Final = 10.0
"""Tokens with unknown keys make the broker fetch the keys at most so often."""

_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_ALGORITHMS: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("RSA", ""): _RSA,
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
}
"""(Kind, curve) → algorithms; all are asymmetric."""


class TokenKey(NamedTuple):
    """A public key; ``key`` is of the cryptography library."""

    key_id: str | None
    key: Any
    algorithms: tuple[str, ...]


def parse_keys(data: bytes) -> list[TokenKey]:
    """The usable keys of a key set. Raises ValueError if there are none."""
    import jwt

    listed = json.loads(data)["keys"]
    if not isinstance(listed, list) or len(listed) > MAX_KEYS:
        raise ValueError(f"expected a list of at most {MAX_KEYS} keys")
    keys = []
    for one in listed:
        if not isinstance(one, dict) or one.get("use", "sig") != "sig" or "d" in one:
            continue
        algorithms = _ALGORITHMS.get((str(one.get("kty")), str(one.get("crv", ""))), ())
        if (only := one.get("alg")) is not None:
            algorithms = tuple(name for name in algorithms if name == only)
        key_id = one.get("kid")
        if algorithms and (key_id is None or isinstance(key_id, str)):
            try:
                keys.append(TokenKey(key_id, jwt.PyJWK(one, algorithms[0]).key, algorithms))
            except (jwt.PyJWTError, LookupError, TypeError, ValueError) as error:
                logger.warning("a key of a key set is not usable: %s", type(error).__name__)
    if not keys:
        raise ValueError("it has no public key that can verify tokens")
    return keys


class KeySource(NamedTuple):
    """Where keys are, and how often they are fetched."""

    url: str
    refresh_ms: int
    retry_ms: int
    max_retry_ms: int
    tls: TlsSettings | None = None
    """The certificates that are trusted, for HTTPS; None for the system's."""


class TokenKeys:
    """`find` is for any thread; `start` and `stop` once each.

    Raises InvalidConfiguration, also for a file without usable keys.
    """

    def __init__(
        self,
        source: KeySource,
        *,
        on_fatal: Callable[[BaseException], None],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._now_s = now_s
        self._keys: list[TokenKey] = []
        self._failures = 0
        self._lock = threading.Lock()
        # When an unknown key may cause a fetch again.
        self._next_s = 0.0
        for package in ("jwt", "cryptography"):
            if importlib.util.find_spec(package) is None:
                raise InvalidConfiguration(
                    f"OAUTHBEARER needs the package {package}: pip install 'barnabas[secure]'"
                )
        parts = urlsplit(source.url)
        scheme = parts.scheme
        # Without the parts that may be secret.
        self._name = f"{scheme}://{parts.hostname or ''}{parts.path}"
        if scheme not in ("file", "http", "https"):
            raise InvalidConfiguration(
                "sasl.oauthbearer.jwks.endpoint.url: expected a URL of file, http or https"
            )
        if scheme == "file":
            try:
                self._keys = parse_keys(_fetch(source))
            except _NO_KEYS as error:
                raise InvalidConfiguration(f"the keys of {self._name} cannot be read: {error}") from error
        elif source.tls is not None:
            client_context(source.tls)
        self._task = Task("token-keys", self.refresh, on_fatal=on_fatal)

    def start(self) -> None:
        self._task.start()
        self._task.wake()

    def stop(self) -> None:
        self._task.stop(_STOP_S)

    def find(self, key_id: str | None, algorithm: str) -> TokenKey | None:
        """The key of a token's header. A token without an id has the only key of its algorithm."""
        fitting = [key for key in self._keys if algorithm in key.algorithms]
        if key_id is None:
            return fitting[0] if len(fitting) == 1 else None
        for key in fitting:
            if key.key_id == key_id:
                return key
        if len(key_id) <= _MAX_ID_CHARACTERS:
            self._miss()
        return None

    def _miss(self) -> None:
        with self._lock:
            now_s = self._now_s()
            if now_s < self._next_s:
                return
            self._next_s = now_s + _SOONEST_S
        self._task.wake()

    def refresh(self) -> float:
        """Fetch the keys; returns after how many seconds to do so again."""
        source = self._source
        try:
            self._keys = parse_keys(_fetch(source))
        except _NO_KEYS as error:
            wait_ms = doubled(max(1, source.retry_ms), self._failures, max(1, source.max_retry_ms))
            self._failures += 1
            logger.warning("the keys of %s are not fetched (retry in %d ms): %s", self._name, wait_ms, error)
            return wait_ms / 1000
        self._failures = 0
        logger.debug("fetched %d keys of %s", len(self._keys), self._name)
        return source.refresh_ms / 1000


def _fetch(source: KeySource) -> bytes:
    """Raises OSError, ValueError, HTTPException, or InvalidConfiguration for certificates."""
    parts = urlsplit(source.url)
    if parts.scheme == "file":
        with open(unquote(parts.path), "rb") as file:
            data = file.read(MAX_KEYS_BYTES + 1)
    else:
        context = None if source.tls is None else client_context(source.tls)
        # Without the handlers of redirects, proxies and other schemes.
        opener = urllib.request.OpenerDirector()
        for handler in (
            urllib.request.HTTPHandler(),
            urllib.request.HTTPSHandler(context=context),
            urllib.request.HTTPErrorProcessor(),
            urllib.request.HTTPDefaultErrorHandler(),
        ):
            opener.add_handler(handler)
        answer = opener.open(urllib.request.Request(source.url), timeout=_TIMEOUT_S)
        if answer is None:
            raise urllib.error.URLError("no answer")
        data, deadline_s = b"", time.monotonic() + _LONGEST_S
        with answer:
            while len(data) <= MAX_KEYS_BYTES and (part := answer.read1(_PART_BYTES)):
                data += part
                if time.monotonic() > deadline_s:
                    raise TimeoutError(f"the answer takes longer than {_LONGEST_S:g} s")
    if len(data) > MAX_KEYS_BYTES:
        raise ValueError(f"more than {MAX_KEYS_BYTES} bytes")
    return data
