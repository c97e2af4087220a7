"""Encrypts the passwords in dynamic settings, in the format in which Apache Kafka keeps them in ZooKeeper.

The key is derived from ``password.encoder.secret`` by PBKDF2, with a new salt for each one. The text names
the algorithms, so passwords remain readable when the settings of the encoder change. Pure but for random
numbers, for any thread. The library of ciphers is loaded when the first password is encoded or decoded.

Source: ``EncryptingPasswordEncoder`` of Apache Kafka 3.9, KIP-226.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from barnabas.common.security.secret import Secret
from barnabas.protocol.errors import InvalidConfiguration

if TYPE_CHECKING:
    from barnabas.broker.config.settings import BrokerConfig

GCM: Final = "AES/GCM/NoPadding"
CIPHERS: Final = ("AES/CBC/PKCS5Padding", GCM)
KEY_BITS: Final = (128, 192, 256)
_HASHES: Final = {f"PBKDF2WithHmac{name.upper()}": name for name in ("sha512", "sha256", "sha1")}
KEY_FACTORIES: Final = tuple(_HASHES)
_SALT_BYTES: Final = 256
_BLOCK_BYTES: Final = 16
_GCM_NONCE_BYTES: Final = 12
_GCM_TAG_BITS: Final = 128
_MOST_ITERATIONS: Final = 10_000_000
"""A text with more would keep a broker busy for minutes."""
_MOST_DECODED: Final = 256
_NO_LIBRARY: Final = "dynamic passwords need the package cryptography: pip install 'barnabas[secure]'"


class PasswordEncoder:
    """With the settings ``password.encoder.*``; they count for encoding alone."""

    def __init__(
        self, secret: Secret, *, key_factory: str, cipher: str, key_bits: int, iterations: int
    ) -> None:
        self._secret = secret
        self._key_factory = key_factory
        self._cipher = cipher
        self._key_bits = key_bits
        self._iterations = iterations

    @classmethod
    def of(cls, config: BrokerConfig, secret: Secret | None) -> PasswordEncoder | None:
        """With this secret and the algorithms of the broker; None without a secret."""
        if secret is None:
            return None
        return cls(
            secret,
            key_factory=config.password_encoder_keyfactory_algorithm or KEY_FACTORIES[0],
            cipher=config.password_encoder_cipher_algorithm,
            key_bits=config.password_encoder_key_length,
            iterations=config.password_encoder_iterations,
        )

    def encode(self, password: Secret) -> str:
        """The text to keep. Raises InvalidConfiguration without the library of ciphers."""
        salt, plain = os.urandom(_SALT_BYTES), password.value.encode()
        is_gcm = self._cipher == GCM
        vector = os.urandom(_GCM_NONCE_BYTES if is_gcm else _BLOCK_BYTES)
        key = _key(self._secret, self._key_factory, salt, self._iterations, self._key_bits)
        encrypted = _encrypt(plain, key, vector, is_gcm=is_gcm)
        parts = {
            "keyFactoryAlgorithm": self._key_factory,
            "cipherAlgorithm": self._cipher,
            "keyLength": str(self._key_bits),
            "salt": _base64(salt),
            "iterations": str(self._iterations),
            "encryptedPassword": _base64(encrypted),
            "passwordLength": str(_java_length(password.value)),
            "initializationVector": _base64(vector),
        }
        if is_gcm:
            parts["authenticationTagLength"] = str(_GCM_TAG_BITS)
        return ",".join(f"{name}:{value}" for name, value in parts.items())

    def decode(self, text: str) -> Secret:
        """The password of a text. Raises ValueError, also if another secret encrypted it."""
        return _decoded(self._secret, text)


# Every request that describes or alters settings decodes all passwords of the broker.
@functools.lru_cache(maxsize=_MOST_DECODED)
def _decoded(secret: Secret, text: str) -> Secret:
    try:
        return Secret(_password(secret, dict(_parts(text))))
    except (KeyError, ValueError):
        # Neither the text nor the cause goes on: they tell about the password.
        raise ValueError("the password cannot be decoded") from None


def _password(secret: Secret, parts: Mapping[str, str]) -> str:
    salt, vector, encrypted = (
        base64.b64decode(parts[name], validate=True)
        for name in ("salt", "initializationVector", "encryptedPassword")
    )
    cipher = parts["cipherAlgorithm"]
    iterations, key_bits = int(parts["iterations"]), int(parts["keyLength"])
    if cipher not in CIPHERS or not 1 <= iterations <= _MOST_ITERATIONS or key_bits not in KEY_BITS:
        raise ValueError
    key = _key(secret, parts["keyFactoryAlgorithm"], salt, iterations, key_bits)
    password = _decrypt(encrypted, key, vector, is_gcm=cipher == GCM).decode()
    if _java_length(password) != int(parts["passwordLength"]):
        raise ValueError
    return password


def _key(secret: Secret, key_factory: str, salt: bytes, iterations: int, bits: int) -> bytes:
    return hashlib.pbkdf2_hmac(_HASHES[key_factory], secret.value.encode(), salt, iterations, bits // 8)


def _encrypt(plain: bytes, key: bytes, vector: bytes, *, is_gcm: bool) -> bytes:
    try:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise InvalidConfiguration(_NO_LIBRARY) from None
    if is_gcm:
        return AESGCM(key).encrypt(vector, plain, None)
    encryptor = Cipher(algorithms.AES(key), modes.CBC(vector)).encryptor()
    missing = _BLOCK_BYTES - len(plain) % _BLOCK_BYTES
    return encryptor.update(plain + bytes([missing]) * missing) + encryptor.finalize()


def _decrypt(encrypted: bytes, key: bytes, vector: bytes, *, is_gcm: bool) -> bytes:
    try:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise InvalidConfiguration(_NO_LIBRARY) from None
    if is_gcm:
        try:
            return AESGCM(key).decrypt(vector, encrypted, None)
        except InvalidTag as error:
            raise ValueError from error
    decryptor = Cipher(algorithms.AES(key), modes.CBC(vector)).decryptor()
    padded = decryptor.update(encrypted) + decryptor.finalize()
    missing = padded[-1] if padded else 0
    if not 1 <= missing <= _BLOCK_BYTES or padded[-missing:] != bytes([missing]) * missing:
        raise ValueError
    return padded[:-missing]


def _parts(text: str) -> list[tuple[str, str]]:
    parts = []
    for part in text.split(","):
        name, colon, value = part.strip().rpartition(":")
        if not colon:
            raise ValueError
        parts.append((name.strip(), value.strip()))
    return parts


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _java_length(text: str) -> int:
    """The length of a String in Java, which counts UTF-16 units."""
    return len(text.encode("utf-16-le")) // 2
