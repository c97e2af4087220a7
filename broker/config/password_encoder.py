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
from typing import TYPE_CHECKING, Any, Final

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


def encode(config: BrokerConfig, secret: Secret, password: Secret) -> str:
    """The text to keep, by the algorithms of the broker. Raises InvalidConfiguration without the library."""
    key_factory = config.password_encoder_keyfactory_algorithm or KEY_FACTORIES[0]
    iterations, key_bits = config.password_encoder_iterations, config.password_encoder_key_length
    cipher, salt = config.password_encoder_cipher_algorithm, os.urandom(_SALT_BYTES)
    vector = os.urandom(_GCM_NONCE_BYTES if cipher == GCM else _BLOCK_BYTES)
    key = _key(secret, key_factory, salt, iterations, key_bits)
    parts = {
        "keyFactoryAlgorithm": key_factory,
        "cipherAlgorithm": cipher,
        "keyLength": str(key_bits),
        "salt": _base64(salt),
        "iterations": str(iterations),
        "encryptedPassword": _base64(_encrypt(password.value.encode(), key, vector, cipher)),
        "passwordLength": str(_java_length(password.value)),
        "initializationVector": _base64(vector),
    }
    if cipher == GCM:
        parts["authenticationTagLength"] = str(_GCM_TAG_BITS)
    return ",".join(f"{name}:{value}" for name, value in parts.items())


# Every request that describes or alters settings decodes all passwords of the broker.
@functools.lru_cache(maxsize=_MOST_DECODED)
def decode(secret: Secret, text: str) -> Secret:
    """The password of a text. Raises ValueError, also if another secret encrypted it."""
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
    password = _decrypt(encrypted, key, vector, cipher).decode()
    if _java_length(password) != int(parts["passwordLength"]):
        raise ValueError
    return password


def _key(secret: Secret, key_factory: str, salt: bytes, iterations: int, bits: int) -> bytes:
    return hashlib.pbkdf2_hmac(_HASHES[key_factory], secret.value.encode(), salt, iterations, bits // 8)


def _library() -> Any:
    try:
        from cryptography.hazmat.primitives import ciphers, padding
        from cryptography.hazmat.primitives.ciphers import aead
    except ImportError:
        raise InvalidConfiguration(
            "dynamic passwords need the package cryptography: pip install 'barnabas[secure]'"
        ) from None
    return ciphers, aead, padding.PKCS7(_BLOCK_BYTES * 8)


def _encrypt(plain: bytes, key: bytes, vector: bytes, cipher: str) -> bytes:
    ciphers, aead, padding = _library()
    if cipher == GCM:
        return bytes(aead.AESGCM(key).encrypt(vector, plain, None))
    encryptor = ciphers.Cipher(ciphers.algorithms.AES(key), ciphers.modes.CBC(vector)).encryptor()
    padder = padding.padder()
    return bytes(encryptor.update(padder.update(plain) + padder.finalize()) + encryptor.finalize())


def _decrypt(encrypted: bytes, key: bytes, vector: bytes, cipher: str) -> bytes:
    ciphers, aead, padding = _library()
    if cipher == GCM:
        from cryptography.exceptions import InvalidTag

        try:
            return bytes(aead.AESGCM(key).decrypt(vector, encrypted, None))
        except InvalidTag as error:
            raise ValueError from error
    decryptor = ciphers.Cipher(ciphers.algorithms.AES(key), ciphers.modes.CBC(vector)).decryptor()
    unpadder = padding.unpadder()
    padded = decryptor.update(encrypted) + decryptor.finalize()
    return bytes(unpadder.update(padded) + unpadder.finalize())


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
