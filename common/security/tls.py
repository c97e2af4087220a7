"""TLS contexts of servers and clients, made from Kafka's `ssl.*` settings.

TLS 1.2 and 1.3, nothing older; no compression and no renegotiation. A client always verifies the server's
certificate, and its name unless `ssl.endpoint.identification.algorithm` is empty. Every error is an
InvalidConfiguration that names the setting, never a password or a key. A context may be used by any thread;
making one reads files and takes a few milliseconds.

Source: `SslConfigs` and `DefaultSslEngineFactory` of Apache Kafka 3.9.
"""

from __future__ import annotations

import logging
import os
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from barnabas.common.security.keystores import Keys, certificates_of, keys_of, read_certificates, read_keys
from barnabas.common.security.secret import Secret
from barnabas.protocol.errors import InvalidConfiguration

logger = logging.getLogger(__name__)

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_VERIFY_MODES: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
_TLS13_SUITES: Final = frozenset(
    {"TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256"}
)
"""The suites that OpenSSL offers by default. Python's ssl has no call that chooses among them before 3.15."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """Kafka's settings without the prefix ``ssl.``; the secret ones are not shown by repr()."""

    enabled_protocols: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    cipher_suites: tuple[str, ...] = ()
    """Java's names or OpenSSL's; empty: the defaults of Python."""
    client_auth: str = "none"
    endpoint_identification_algorithm: str = "https"
    keystore_type: str = "JKS"
    keystore_location: str | None = None
    keystore_password: str | None = field(default=None, repr=False)
    keystore_key: str | None = field(default=None, repr=False)
    keystore_certificate_chain: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    truststore_type: str = "JKS"
    truststore_location: str | None = None
    truststore_password: str | None = field(default=None, repr=False)
    truststore_certificates: str | None = field(default=None, repr=False)

    @property
    def files(self) -> tuple[str, ...]:
        """The files that the contexts are made from."""
        return tuple(each for each in (self.keystore_location, self.truststore_location) if each)

    def stamps(self) -> tuple[tuple[int, ...], ...]:
        """A stamp that changes with the content of the files; empty for a file that is missing."""
        return tuple(_stamp(path) for path in self.files)

    def keys(self) -> Keys | None:
        """The key and certificates of this side; None without a key store. Raises InvalidConfiguration."""
        if self.keystore_key is None and self.keystore_certificate_chain is None:
            if self.keystore_location is None:
                if self.keystore_password is not None:
                    raise InvalidConfiguration(
                        "ssl.keystore.password is set without ssl.keystore.location; expected both or neither"
                    )
                return None
            return read_keys(self.keystore_location, self.keystore_password, self.key_password)
        if self.keystore_key is None or self.keystore_certificate_chain is None:
            raise InvalidConfiguration(
                "ssl.keystore.key and ssl.keystore.certificate.chain: expected both or neither"
            )
        if self.keystore_type != "PEM":
            raise InvalidConfiguration(
                f"ssl.keystore.type={self.keystore_type}: expected PEM, because ssl.keystore.key is set"
            )
        if self.keystore_location is not None or self.keystore_password is not None:
            raise InvalidConfiguration(
                "ssl.keystore.key: expected no ssl.keystore.location and no ssl.keystore.password beside it"
            )
        return keys_of(
            self.keystore_key, self.keystore_certificate_chain, self.key_password, "ssl.keystore.key"
        )

    def trusted(self) -> str | None:
        """The trusted certificates as PEM; None for the system's own. Raises InvalidConfiguration."""
        if self.truststore_certificates is None:
            if self.truststore_location is not None:
                return read_certificates(self.truststore_location, self.truststore_password)
            if self.truststore_password is not None:
                raise InvalidConfiguration(
                    "ssl.truststore.password is set without ssl.truststore.location; expected both or neither"
                )
            return None
        if self.truststore_type != "PEM":
            raise InvalidConfiguration(
                f"ssl.truststore.type={self.truststore_type}: expected PEM, because "
                "ssl.truststore.certificates is set"
            )
        if self.truststore_location is not None or self.truststore_password is not None:
            raise InvalidConfiguration(
                "ssl.truststore.certificates: expected no ssl.truststore.location and no "
                "ssl.truststore.password beside it"
            )
        return certificates_of(self.truststore_certificates, "ssl.truststore.certificates")


def _stamp(path: str) -> tuple[int, ...]:
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_size, status.st_ino


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    """The context of a listener. Raises InvalidConfiguration."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    keys = settings.keys()
    if keys is None:
        raise InvalidConfiguration(
            "a TLS listener needs a certificate; expected ssl.keystore.location, or ssl.keystore.key with "
            "ssl.keystore.certificate.chain"
        )
    _set_up(context, settings, keys)
    try:
        context.verify_mode = _VERIFY_MODES[settings.client_auth]
    except KeyError:
        raise InvalidConfiguration(
            f"ssl.client.auth={settings.client_auth}: expected one of {', '.join(_VERIFY_MODES)}"
        ) from None
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    if context.verify_mode is not ssl.CERT_NONE:
        _trust(context, settings, ssl.Purpose.CLIENT_AUTH)
    # TLS 1.3 sends tickets after the handshake. A client that only writes, as a producer with acks=0 may,
    # does not read them; then its close resets the stream, and the data that it wrote last is lost.
    context.num_tickets = 0
    return context


def client_context(settings: TlsSettings) -> ssl.SSLContext:
    """The context of outgoing connections; its user gives the server's name. Raises InvalidConfiguration."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _set_up(context, settings, settings.keys())
    algorithm = settings.endpoint_identification_algorithm
    if algorithm.lower() not in ("", "https"):
        raise InvalidConfiguration(
            f"ssl.endpoint.identification.algorithm={algorithm}: expected https, or nothing to switch the "
            "check of host names off"
        )
    context.check_hostname = bool(algorithm)
    context.verify_mode = ssl.CERT_REQUIRED
    _trust(context, settings, ssl.Purpose.SERVER_AUTH)
    return context


def _set_up(context: ssl.SSLContext, settings: TlsSettings, keys: Keys | None) -> None:
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    _set_versions(context, settings)
    if keys is None:
        return
    # The key and the chain in one file: OpenSSL looks for both in it.
    with _file_of(keys.key + keys.chain) as path:
        try:
            # Without a password OpenSSL would ask for one on the terminal.
            context.load_cert_chain(path, password=keys.password or "")
        except (ssl.SSLError, ValueError) as error:
            origin = settings.keystore_location or "ssl.keystore.key"
            raise InvalidConfiguration(
                f"{origin}: the key and its certificates cannot be used: {reason_of(error)}"
            ) from None


def _set_versions(context: ssl.SSLContext, settings: TlsSettings) -> None:
    enabled = set(settings.enabled_protocols)
    if refused := [name for name in settings.enabled_protocols if name not in _VERSIONS]:
        raise InvalidConfiguration(
            f"ssl.enabled.protocols: {', '.join(refused)} not supported; expected TLSv1.2, TLSv1.3 or both"
        )
    if settings.cipher_suites:
        enabled &= _choose_suites(context, settings.cipher_suites)
    if not enabled:
        raise InvalidConfiguration(
            f"ssl.cipher.suites: expected at least one suite for {', '.join(settings.enabled_protocols)}"
        )
    context.minimum_version = min(_VERSIONS[name] for name in enabled)
    context.maximum_version = max(_VERSIONS[name] for name in enabled)


def _choose_suites(context: ssl.SSLContext, suites: tuple[str, ...]) -> set[str]:
    """Choose the cipher suites of TLS 1.2; returns the versions that the list has suites for."""
    modern = _TLS13_SUITES.intersection(suites)
    if modern and modern != _TLS13_SUITES:
        logger.warning(
            "ssl.cipher.suites: Python's ssl cannot choose among the suites of TLS 1.3: %s are used too",
            ", ".join(sorted(_TLS13_SUITES - modern)),
        )
    names = [openssl_name(suite) for suite in suites if suite not in _TLS13_SUITES]
    for suite, name in zip((each for each in suites if each not in _TLS13_SUITES), names, strict=True):
        try:
            # OpenSSL ignores a name that it does not know in a list, and refuses one that is alone.
            context.set_ciphers(name)
        except ssl.SSLError:
            raise InvalidConfiguration(
                f"ssl.cipher.suites: {suite} is unknown to {ssl.OPENSSL_VERSION}; expected the name of a "
                "cipher suite, as TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"
            ) from None
    if names:
        context.set_ciphers(":".join(names))
    return ({"TLSv1.3"} if modern else set()) | ({"TLSv1.2"} if names else set())


def openssl_name(suite: str) -> str:
    """OpenSSL's name of a cipher suite of TLS 1.2; a name that is not Java's stays as it is.

    ``TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384`` is ``ECDHE-RSA-AES256-GCM-SHA384``: RSA alone as the exchange
    of keys is left out, and so are CBC and, where the suite fixes it, the hash.
    """
    exchange, separator, cipher = suite.partition("_WITH_")
    scheme, _, exchange = exchange.partition("_")
    if not separator or scheme not in ("TLS", "SSL"):
        return suite
    cipher = cipher.replace("AES_128", "AES128").replace("AES_256", "AES256").replace("_CBC", "")
    cipher = cipher.replace("CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305").replace("CCM_8", "CCM8")
    cipher = cipher.replace("CAMELLIA_128", "CAMELLIA128").replace("CAMELLIA_256", "CAMELLIA256")
    cipher = cipher.replace("ARIA_128", "ARIA128").replace("ARIA_256", "ARIA256")
    return (cipher if exchange == "RSA" else f"{exchange}_{cipher}").replace("_", "-")


def _trust(context: ssl.SSLContext, settings: TlsSettings, purpose: ssl.Purpose) -> None:
    trusted = settings.trusted()
    if trusted is None:
        context.load_default_certs(purpose)
        return
    try:
        context.load_verify_locations(cadata=trusted)
    except (ssl.SSLError, TypeError) as error:
        # A TypeError for letters that are not ASCII.
        origin = settings.truststore_location or "ssl.truststore.certificates"
        raise InvalidConfiguration(f"{origin}: the certificates cannot be used: {reason_of(error)}") from None
    # As in Java, every certificate of the trust store is an anchor, also one that another CA has signed.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN


def handshake(
    server: ssl.SSLContext, client: ssl.SSLContext, name: str | None = None
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Both sides after a handshake in memory. Raises the ssl.SSLError of the side that fails first."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    serving = server.wrap_bio(to_server, to_client, server_side=True)
    calling = client.wrap_bio(to_client, to_server, server_hostname=name)
    for _ in range(4):
        for side in (calling, serving):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    # With TLS 1.3 a client is done before the server has checked its certificate.
    serving.do_handshake()
    return serving, calling


def reason_of(error: Exception) -> str:
    """OpenSSL's reason in a few words; a failed verification with its cause."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.replace("_", " ").lower()
    return str(error)


@contextmanager
def _file_of(text: str) -> Iterator[str]:
    """A path of the text, because ssl loads keys from files alone: in memory, or readable by us alone."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("barnabas-tls", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, text.encode())
            path = f"/proc/self/fd/{descriptor}"
            if Path(path).exists():
                yield path
                return
        finally:
            os.close(descriptor)
    with tempfile.NamedTemporaryFile() as file:
        file.write(text.encode())
        file.flush()
        yield file.name


def settings_in(options: Mapping[str, str]) -> TlsSettings | None:
    """The settings ``ssl.…`` among the options of a JAAS text, for a server that has tokens or keys.

    None without any. As in Kafka, the name of that server is always verified.
    """
    given: dict[str, Any] = {
        name: text
        for name in TlsSettings.__dataclass_fields__
        if (text := options.get(f"ssl.{name.replace('_', '.')}")) is not None
    }
    given.pop("endpoint_identification_algorithm", None)
    for name in given.keys() & {"enabled_protocols", "cipher_suites"}:
        given[name] = tuple(part.strip() for part in given[name].split(","))
    return TlsSettings(**given) if given else None


def settings_from(source: Any) -> TlsSettings:
    """The settings of an object that has them as attributes with the prefix ``ssl_``."""
    values: dict[str, Any] = {}
    for name in TlsSettings.__dataclass_fields__:
        value = getattr(source, f"ssl_{name}", None)
        if value is not None:
            values[name] = value.value if isinstance(value, Secret) else value
    return TlsSettings(**values)
