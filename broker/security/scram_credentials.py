"""The SCRAM credentials of all users, in memory, as ``/config/users`` has them.

One thread at a time changes them: the one that reads changed settings. Any thread looks them up. A name
without a credential gets one that no password fits: it looks like the others, and is the same on all brokers
and at all times, because it is derived from the name by a key that the brokers share.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

from barnabas.common.security.scram import (
    MIN_ITERATIONS,
    ScramCredential,
    ScramError,
    ScramMechanism,
)

logger = logging.getLogger(__name__)

_BASE_36: Final = b"0123456789abcdefghijklmnopqrstuvwxyz"
_MAX_SALT_BYTES: Final = 64


class _Shape(NamedTuple):
    """The form of a credential, which a peer sees with the salt before it has proved anything."""

    iterations: int
    salt_bytes: int
    is_text: bool
    """Kafka's own tools make salts of lower case letters and digits."""

    @classmethod
    def of(cls, credential: ScramCredential) -> _Shape:
        salt = credential.salt
        return cls(credential.iterations, len(salt), not salt.translate(None, _BASE_36))


_USUAL: Final = _Shape(MIN_ITERATIONS, 24, is_text=False)
MECHANISMS: Final = {mechanism.value: mechanism for mechanism in ScramMechanism}


def _usable(text: str) -> ScramCredential:
    """Raises ScramError, also for fewer iterations than Kafka allows: a proof would tell the password."""
    credential = ScramCredential.parse(text)
    if credential.iterations < MIN_ITERATIONS:
        raise ScramError(f"it has {credential.iterations} iterations; expected at least {MIN_ITERATIONS}")
    return credential


class ScramCredentials:
    def __init__(self) -> None:
        self._secret = b""
        self._users: dict[ScramMechanism, dict[str, ScramCredential]] = {each: {} for each in ScramMechanism}
        # How many credentials of a mechanism have a shape.
        self._shapes: dict[ScramMechanism, Counter[_Shape]] = {each: Counter() for each in ScramMechanism}
        # The shapes in order, replaced as a whole.
        self._order: dict[ScramMechanism, tuple[_Shape, ...]] = dict.fromkeys(ScramMechanism, (_USUAL,))

    @property
    def has_secret(self) -> bool:
        return bool(self._secret)

    def set_secret(self, secret: bytes) -> None:
        """The key from which the credentials of unknown users are derived."""
        self._secret = secret

    def update(self, user: str, settings: Mapping[str, str]) -> None:
        """Take the settings of a user, which may have none any more."""
        for name, mechanism in MECHANISMS.items():
            credential = None
            if (text := settings.get(name)) is not None:
                try:
                    credential = _usable(text)
                except ScramError as error:
                    # A broken credential must not let anybody in, nor the one before it.
                    logger.error("the credential of user %r for %s is not usable: %s", user, name, error)
            self._set(mechanism, user, credential)

    def _set(self, mechanism: ScramMechanism, user: str, credential: ScramCredential | None) -> None:
        users, shapes = self._users[mechanism], self._shapes[mechanism].copy()
        former = users.get(user)
        if former is not None:
            shapes[_Shape.of(former)] -= 1
        if credential is not None:
            users[user] = credential
            shapes[_Shape.of(credential)] += 1
        else:
            users.pop(user, None)
        self._shapes[mechanism] = +shapes
        self._order[mechanism] = tuple(sorted(+shapes)) or (_USUAL,)

    def find(self, mechanism: ScramMechanism, user: str) -> tuple[ScramCredential, bool]:
        """The credential of a user, and True; for an unknown user one that looks alike, and False."""
        # Made for known users as well, so that both take the same time.
        imitation = self._imitate(mechanism, user)
        credential = self._users[mechanism].get(user)
        return (imitation, False) if credential is None else (credential, True)

    def _imitate(self, mechanism: ScramMechanism, user: str) -> ScramCredential:
        seed = hmac.digest(self._secret, f"{mechanism.value} {user}".encode(), "sha512")
        shapes = self._order[mechanism]
        shape = shapes[int.from_bytes(seed[:8], "big") % len(shapes)]
        salt = hashlib.shake_256(seed).digest(min(shape.salt_bytes, _MAX_SALT_BYTES))
        if shape.is_text:
            salt = bytes(_BASE_36[byte % len(_BASE_36)] for byte in salt)
        size = hashlib.new(mechanism.hash_name).digest_size
        return ScramCredential(salt, seed[:size], seed[:size], shape.iterations)
