"""The security of a local cluster: its certificates, users and passwords, and the settings of its brokers.

    DIR/security/                        certificates (certificates.py)
    DIR/security/passwords.json          0600: of admin, of the brokers' own user, and of each user
    DIR/security/zookeeper.jaas          0600: the logins of the cluster's own ZooKeeper
    DIR/clients/<user>/                  ready settings (client_settings.py)

`SecurityConfiguration` (state.py) names the parts that are switched on; it has no secret. Passwords are
random unless they were given, and are kept: the next start has the same. Nothing here prints or logs a
password.

Any one thread at a time; calls block.
"""

from __future__ import annotations

import datetime
import hmac
import importlib.util
import re
import secrets
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

from msgspec import Struct, json

from barnabas.common.security.channel_security import ChannelSecurity
from barnabas.common.security.jaas import LoginModule, jaas_text, parse_jaas_file
from barnabas.common.security.scram import (
    ScramCredential,
    ScramError,
    ScramMechanism,
    credential_of,
    make_credential,
    salted_password,
)
from barnabas.deploy import certificates
from barnabas.deploy.client_settings import (
    KEYSTORE_FILE,
    ClientAccess,
    client_settings,
    login_text,
    write_client_files,
)
from barnabas.deploy.private_files import exclusively, make_private_folder, write_private
from barnabas.deploy.process import DeployError
from barnabas.deploy.state import SecurityConfiguration
from barnabas.protocol.errors import BarnabasError, InvalidConfiguration

ADMIN: Final = "admin"
"""The super user, whose settings the `barnabas` command uses."""
BROKER: Final = "broker"
"""The user as which the brokers connect to each other; a super user too."""
_ZOOKEEPER_USER: Final = "kafka"
_ZOOKEEPER_CLIENT: Final = "Client"
JAAS_SETTING: Final = "java.security.auth.login.config"
_ZOOKEEPER_MODULE: Final = "org.apache.zookeeper.server.auth.DigestLoginModule"
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
DEFAULT_MECHANISM: Final = "SCRAM-SHA-256"
JWKS_SETTING: Final = "sasl.oauthbearer.jwks.endpoint.url"
_ZOOKEEPER_TIMEOUT_MS: Final = 10_000
_SUPER_USERS: Final = "super.users"
_PASSWORD_BYTES: Final = 24
_PACKAGES: Final = ("trustme", "cryptography", "puresasl")
"""Packages of the extra ``secure``."""
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9._$-]+")

_PRINCIPALS: Final = f"RULE:^CN=broker-[0-9]+,.*$/{BROKER}/,RULE:^CN=([^,]+),.*$/$1/,DEFAULT"
"""Where certificates tell users apart: a user's principal is its name, and all brokers are one user."""

UserPasswords = Mapping[str, str | None]
"""User → password; None to keep the former one, or to make one."""


def folder_of(directory: Path) -> Path:
    return directory / "security"


def check_user(name: str, mechanism: str) -> None:
    """Raise InvalidConfiguration for a name that cannot be a user's."""
    if name in (ADMIN, BROKER):
        raise InvalidConfiguration(f"user {name!r}: the cluster makes this user itself")
    if not name.strip() or name in (".", "..") or not name.isprintable():
        raise InvalidConfiguration(f"user {name!r}: expected a printable name")
    if mechanism == "PLAIN" and not _PLAIN_NAME.fullmatch(name):
        raise InvalidConfiguration(
            f"user {name!r}: with PLAIN expected letters, digits, '.', '_', '$' and '-' alone"
        )


def check_configuration(
    configuration: SecurityConfiguration | None, users: UserPasswords, settings: Mapping[str, str]
) -> None:
    """Raise InvalidConfiguration for parts that do not fit together, with the missing part."""
    chosen = configuration or SecurityConfiguration()
    mechanism = chosen.mechanism
    if mechanism is None:
        for is_named, option in ((users, "--user"), (chosen.acl, "--acl")):
            if is_named and not chosen.tls:
                raise InvalidConfiguration(
                    f"{option} needs users who can be told apart: add --sasl {DEFAULT_MECHANISM}, or --tls"
                )
        for name, password in users.items():
            if password is not None:
                raise InvalidConfiguration(f"user {name!r}: a password needs --sasl {DEFAULT_MECHANISM}")
            if name == ADMIN or not certificates.is_client_name(name):
                raise InvalidConfiguration(
                    f"user {name!r}: in a certificate expected at most 64 letters, digits, '.', '_', '$', "
                    f"'@' and '-', and neither {ADMIN} nor the name of a broker"
                )
        return
    if mechanism not in MECHANISMS:
        raise InvalidConfiguration(f"--sasl {mechanism}: expected one of {', '.join(MECHANISMS)}")
    if mechanism == "OAUTHBEARER" and JWKS_SETTING not in settings:
        raise InvalidConfiguration(
            f"--sasl OAUTHBEARER needs the keys that sign your tokens: --set {JWKS_SETTING}=URL (https:// or "
            "file://); and usually sasl.oauthbearer.expected.issuer and sasl.oauthbearer.expected.audience"
        )
    for name in users:
        check_user(name, mechanism)


class _Passwords(Struct, kw_only=True, forbid_unknown_fields=True):
    """`zookeeper`: with which the brokers connect to the cluster's own ZooKeeper."""

    users: dict[str, str] = {}
    zookeeper: str | None = None

    def __repr__(self) -> str:
        return f"_Passwords of {len(self.users)} users"


class ClusterSecurity:
    def __init__(self, directory: Path, configuration: SecurityConfiguration) -> None:
        """The security of the cluster in a directory; its files are those of the last `prepare`."""
        self.configuration = configuration
        self.folder = folder_of(directory)
        self.clients_folder = directory / "clients"
        self._password_file = self.folder / "passwords.json"

    @property
    def jaas_file(self) -> Path:
        """The logins of the cluster's own ZooKeeper: for the server and, in another section, for brokers."""
        return self.folder / "zookeeper.jaas"

    @property
    def login_mechanism(self) -> str | None:
        """The mechanism of admin and of the brokers among themselves."""
        mechanism = self.configuration.mechanism
        # Tokens are an identity provider's, which knows neither of them.
        return DEFAULT_MECHANISM if mechanism == "OAUTHBEARER" else mechanism

    @property
    def scram_mechanism(self) -> ScramMechanism | None:
        """The mechanism whose credentials are in ZooKeeper, if it is one."""
        login = self.login_mechanism
        return ScramMechanism(login) if login is not None and login.startswith("SCRAM-") else None

    # -- files ---------------------------------------------------------------------------------------------

    def prepare(self, broker_ids: Sequence[int], users: UserPasswords, now: datetime.datetime) -> None:
        """Make certificates and passwords that are missing. Raises DeployError."""
        _check_packages()
        make_private_folder(self.folder)
        if self.configuration.tls:
            names = certificates.server_names(self.configuration.hosts)
            certificates.prepare(self.folder, broker_ids, names, now)
        kept = self._passwords()
        passwords = dict(kept.users)
        if self.configuration.mechanism is not None:
            for name, password in {ADMIN: None, BROKER: None, **users}.items():
                passwords[name] = password or passwords.get(name) or make_password()
        made = _Passwords(users=passwords, zookeeper=kept.zookeeper or make_password())
        self._write_passwords(made)
        write_private(self.jaas_file, _zookeeper_jaas(made.zookeeper or ""))
        for name in {*self.client_users, *users}:
            self._prepare_certificate(name, now)

    def _prepare_certificate(self, user: str, now: datetime.datetime) -> None:
        if self.configuration.tls and certificates.is_client_name(user):
            make_private_folder(self.clients_folder)
            make_private_folder(self.clients_of(user))
            certificates.prepare_client(self.folder, self._keystore_of(user), user, now)

    @property
    def users(self) -> dict[str, str]:
        """The passwords that are known here, those of admin and of the brokers' own user among them."""
        return self._passwords().users

    @property
    def client_users(self) -> list[str]:
        """Admin and the users: those with a password, or without SASL those with a certificate."""
        if self.login_mechanism is None:
            found = self.clients_folder.glob(f"*/{KEYSTORE_FILE}") if self.configuration.tls else ()
            names = sorted(unquote(path.parent.name) for path in found)
        else:
            names = list(self.users)
        return [ADMIN, *(name for name in names if name not in (ADMIN, BROKER))]

    def keep_user(self, name: str, password: str, bootstrap: str) -> Path:
        """Remember a user, and write the settings of its clients; returns their folder."""
        with exclusively(self.folder):
            kept = self._passwords()
            kept.users[name] = password
            self._write_passwords(kept)
            self._prepare_certificate(name, datetime.datetime.now(datetime.UTC))
        return self.write_clients(bootstrap, [name])[0]

    def forget_user(self, name: str) -> None:
        with exclusively(self.folder):
            kept = self._passwords()
            if kept.users.pop(name, None) is not None:
                self._write_passwords(kept)
        shutil.rmtree(self.clients_of(name), ignore_errors=True)

    def clients_of(self, user: str) -> Path:
        """The folder with the settings of a user's clients."""
        return self.clients_folder / quote(user, safe="")

    def _keystore_of(self, user: str) -> Path:
        return self.clients_of(user) / KEYSTORE_FILE

    def access(self, bootstrap: str, user: str = ADMIN) -> ClientAccess:
        """How this user reaches the brokers; raises DeployError if the user is not known here."""
        ca_file = self.folder / certificates.CA_FILE if self.configuration.tls else None
        # Not in the directory of an earlier version.
        has_certificate = ca_file is not None and self._keystore_of(user).exists()
        keystore_file = self._keystore_of(user) if has_certificate else None
        if self.login_mechanism is None:
            if user not in self.client_users:
                raise DeployError(f"user {user!r} has no certificate in {self.clients_folder}")
            return ClientAccess(bootstrap=bootstrap, ca_file=ca_file, keystore_file=keystore_file)
        password = self.users.get(user)
        if password is None:
            raise DeployError(f"the password of {user!r} is not known in {self.folder}")
        return ClientAccess(
            bootstrap=bootstrap,
            ca_file=ca_file,
            keystore_file=keystore_file,
            mechanism=self.login_mechanism,
            user=user,
            password=password,
        )

    def channel_security(self, bootstrap: str, user: str = ADMIN) -> ChannelSecurity:
        """The security of a connection of a user to a broker."""
        # Imported here: commands on open clusters need no client.
        from barnabas.client.config import ClientConfig

        return ClientConfig.of(client_settings("barnabas", self.access(bootstrap, user))).make_security()

    def write_clients(self, bootstrap: str, users: Sequence[str] | None = None) -> list[Path]:
        """Write the settings of these users' clients, by default of all but the brokers' own."""
        chosen = self.client_users if users is None else users
        make_private_folder(self.clients_folder)
        folders = []
        for name in chosen:
            folders.append(self.clients_of(name))
            write_client_files(folders[-1], self.access(bootstrap, name))
        return folders

    def _passwords(self) -> _Passwords:
        try:
            return json.decode(self._password_file.read_bytes(), type=_Passwords)
        except FileNotFoundError:
            return _Passwords()
        except (OSError, ValueError):
            # The error itself may show a part of the file.
            raise DeployError(f"{self._password_file} cannot be read") from None

    def _write_passwords(self, passwords: _Passwords) -> None:
        write_private(self._password_file, json.format(json.encode(passwords)).decode() + "\n")

    @property
    def zookeeper_settings(self) -> dict[str, str]:
        """The settings of brokers for the cluster's own ZooKeeper, which lets nobody in without a login."""
        return {JAAS_SETTING: str(self.jaas_file)}

    def describe(self) -> dict[str, Any]:
        """As plain data, without secrets."""
        return {
            "protocol": self.configuration.protocol,
            "mechanism": self.configuration.mechanism,
            "acl": self.configuration.acl,
            "users": self.client_users if self.login_mechanism or self.configuration.acl else [],
            "clients": str(self.clients_folder),
        }

    # -- brokers -------------------------------------------------------------------------------------------

    def broker_settings(self, broker_id: int, listeners: Sequence[str] = ()) -> dict[str, str]:
        """The settings of a broker, of which some are secrets, without its listeners themselves.

        `listeners`: their names, if they are not those of the protocol; then one of them is chosen for the
        brokers among themselves by `inter.broker.listener.name`.
        """
        protocol = self.configuration.protocol
        settings = {} if listeners else {"security.inter.broker.protocol": protocol}
        if self.configuration.tls:
            settings |= {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(certificates.keystore_file(self.folder, broker_id)),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(self.folder / certificates.CA_FILE),
            }
        login, mechanism = self.login_mechanism, self.configuration.mechanism
        if login is not None and mechanism is not None:
            users = self.users
            text = login_text(login, BROKER, users[BROKER], users if login == "PLAIN" else {})
            names = [name.lower() for name in listeners or [protocol]]
            settings |= {
                "sasl.enabled.mechanisms": ",".join(dict.fromkeys([mechanism, login])),
                "sasl.mechanism.inter.broker.protocol": login,
                **{f"listener.name.{name}.{login.lower()}.sasl.jaas.config": text for name in names},
            }
        elif self.configuration.acl:
            settings |= {"ssl.client.auth": "required", "ssl.principal.mapping.rules": _PRINCIPALS}
        if self.configuration.acl:
            settings |= {
                "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
                _SUPER_USERS: ";".join(f"User:{name}" for name in (ADMIN, BROKER)),
            }
        return settings


def _check_packages() -> None:
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise DeployError(
            f"a secured cluster needs packages that are not installed, {', '.join(missing)}: "
            "pip install 'barnabas[secure]', in a checkout pip install '.[secure]'"
        )


def _zookeeper_jaas(password: str) -> str:
    sections = {
        "Server": {f"user_{_ZOOKEEPER_USER}": password},
        _ZOOKEEPER_CLIENT: {"username": _ZOOKEEPER_USER, "password": password},
    }
    texts = {name: jaas_text(LoginModule(_ZOOKEEPER_MODULE, options)) for name, options in sections.items()}
    return "".join(f"{name} {{\n  {text}\n}};\n" for name, text in texts.items())


def with_super_users(secured: Mapping[str, str], chosen: Mapping[str, str]) -> dict[str, str]:
    """The super users of `secured` and of `chosen` together, if `secured` has some."""
    if _SUPER_USERS not in secured:
        return {}
    named = [name for name in chosen.get(_SUPER_USERS, "").split(";") if name]
    return {_SUPER_USERS: ";".join(dict.fromkeys([*secured[_SUPER_USERS].split(";"), *named]))}


def make_password() -> str:
    return secrets.token_urlsafe(_PASSWORD_BYTES)


def store_users(
    connect: str, mechanism: ScramMechanism, passwords: Mapping[str, str], jaas_file: Path | None
) -> None:
    """Write SCRAM credentials to ZooKeeper, before the brokers start: the brokers log in to each other.

    A credential of the same password is left as it is; a user's other settings stay. `jaas_file`: its section
    Client has the login, if ZooKeeper wants one. Raises DeployError.
    """
    # Imported here: most programs that know a cluster need no session of ZooKeeper.
    from barnabas.zookeeper import paths
    from barnabas.zookeeper.configs import ConfigStore, Entity, EntityKind
    from barnabas.zookeeper.requests import ensure
    from barnabas.zookeeper.security import SessionSecurity
    from barnabas.zookeeper.session import ZooKeeperSession

    login = _login_of(jaas_file) if jaas_file else None
    session = ZooKeeperSession(
        connect,
        session_timeout_ms=_ZOOKEEPER_TIMEOUT_MS,
        connection_timeout_ms=_ZOOKEEPER_TIMEOUT_MS,
        on_fatal=lambda error: None,
        make_client=SessionSecurity(login=login).make_client,
    )
    try:
        session.start()
        folders = (f"{paths.CONFIG}/{EntityKind.USER.value}", paths.CONFIG_CHANGES)
        for outcome in session.run_all([ensure(path) for path in folders]):
            outcome.get()
        store = ConfigStore(session)
        entities = {name: Entity.user(name) for name in passwords}
        present = store.values(entities.values())
        for name, entity in entities.items():
            edit = partial(with_password, mechanism=mechanism, password=passwords[name])
            if edit(present[entity]) != present[entity]:
                store.change(entity, edit)
    except BarnabasError as error:
        raise DeployError(f"the users cannot be written to ZooKeeper at {connect}: {error}") from error
    finally:
        session.close()


def _login_of(jaas_file: Path) -> LoginModule | None:
    try:
        sections = parse_jaas_file(jaas_file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DeployError(f"{jaas_file} cannot be read: {error}") from error
    return next(iter(sections.get(_ZOOKEEPER_CLIENT, ())), None)


def with_password(former: Mapping[str, str], mechanism: ScramMechanism, password: str) -> Mapping[str, str]:
    """The settings of a user with a credential of this password; the former ones if they have one."""
    try:
        credential = ScramCredential.parse(former.get(mechanism.value, ""))
    except ScramError:
        pass
    else:
        salted = salted_password(mechanism, password, credential.salt, credential.iterations)
        same = credential_of(mechanism, salted, credential.salt, credential.iterations)
        if hmac.compare_digest(same.stored_key, credential.stored_key):
            return former
    return {**former, mechanism.value: make_credential(mechanism, password).text}
