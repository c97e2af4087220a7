"""`barnabas users create|alter|delete|list`: SCRAM users and their quotas, while the brokers run.

A password comes from a file, from a prompt, or is made; the words of a command are seen by every user of the
machine. Of a cluster in a directory its users' passwords and ready client settings are kept there, in files
of its owner; a password that was made for another cluster is printed once.
"""

from __future__ import annotations

import argparse
import getpass
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from barnabas.cli.action import Row, actions, answer, arg, flag, one_of, repeated, show
from barnabas.cli.arguments import STDIN, key_values, local_cluster, number, on_cluster
from barnabas.cli.exit_codes import FAILED, NOT_FOUND, USAGE, CommandError
from barnabas.client.admin.admin import Admin
from barnabas.client.admin.quotas import ClientQuotaEntity
from barnabas.client.admin.users import ScramDeletion, ScramUpsertion
from barnabas.common.security.scram import MAX_ITERATIONS, MIN_ITERATIONS, ScramMechanism
from barnabas.common.suggestions import did_you_mean
from barnabas.deploy.security import BROKER, ClusterSecurity, check_user, make_password

_MECHANISMS: Final = tuple(mechanism.value for mechanism in ScramMechanism)
_QUOTAS: Final = (
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
)


class _Password(NamedTuple):
    text: str
    is_made: bool

    def __repr__(self) -> str:
        return "_Password(…)"


class _Place(NamedTuple):
    """The directory of the cluster, if it is one of this machine with logins."""

    security: ClusterSecurity | None
    bootstrap: str

    @classmethod
    def of(cls, options: argparse.Namespace) -> _Place:
        cluster = local_cluster(options, options.connected_to)
        security = None if cluster is None else cluster.security
        if cluster is None or security is None or security.login_mechanism is None:
            return cls(None, options.connected_to)
        if security.scram_mechanism is None:
            raise CommandError(
                f"users of this cluster log in by {security.login_mechanism}, and brokers read their "
                "passwords when they start: `barnabas up --user NAME`",
                FAILED,
            )
        return cls(security, cluster.bootstrap)

    def mechanisms(self, named: list[str]) -> list[ScramMechanism]:
        """The cluster's, unless they are named; both where it cannot be known."""
        if named:
            return [ScramMechanism(name) for name in named]
        own = None if self.security is None else self.security.scram_mechanism
        return list(ScramMechanism) if own is None else [own]

    def check(self, user: str) -> None:
        """Raise InvalidConfiguration for the user of the brokers, who would no longer reach each other."""
        if self.security is not None and (user == BROKER or user not in self.security.users):
            check_user(user, "")


def _check_passwords(options: argparse.Namespace) -> None:
    """Set `options.quotas`."""
    options.quotas = {}
    for name, text in key_values(options.quotas_given, "--quota").items():
        if name not in _QUOTAS:
            raise CommandError(f"--quota {name}: there is no such quota{did_you_mean(name, _QUOTAS)}", USAGE)
        try:
            rate = float(text)
        except ValueError:
            rate = math.nan
        # Before the password is written: brokers would refuse it afterwards.
        if not 0 <= rate < math.inf:
            raise CommandError(f"--quota {name}={text}: expected a number of at least 0", USAGE)
        options.quotas[name] = rate
    options.quotas |= dict.fromkeys(options.quotas_dropped)


def _password(options: argparse.Namespace) -> _Password:
    """From the file, the option or the prompt; made without them, or if nothing is typed."""
    given: str | None = options.password
    if options.password_file is not None:
        is_stdin = options.password_file == STDIN
        given = sys.stdin.readline() if is_stdin else options.password_file.read_text(encoding="utf-8")
        given = given.rstrip("\r\n")
    elif given is None and not options.generate and not options.json and sys.stdin.isatty():
        given = getpass.getpass(f"password of {options.user} (empty: a random one): ")
        if given and getpass.getpass("again: ") != given:
            raise CommandError("the two passwords differ", USAGE)
        given = given or None
    if given == "":
        raise CommandError("the password is empty", USAGE)
    return _Password(make_password(), True) if given is None else _Password(given, False)


async def _create(options: argparse.Namespace, admin: Admin) -> None:
    place = _Place.of(options)
    place.check(options.user)
    if options.user in await admin.describe_user_scram_credentials():
        raise CommandError(f"user {options.user!r} exists already (see `barnabas users alter`)", FAILED)
    await _change(options, admin, place, _password(options), "created")


async def _alter(options: argparse.Namespace, admin: Admin) -> None:
    place = _Place.of(options)
    place.check(options.user)
    users = await admin.describe_user_scram_credentials()
    _check_exists(options.user, users)
    names_password = options.password is not None or options.password_file is not None or options.generate
    new_password = _password(options) if names_password or not options.quotas else None
    if new_password is not None and not options.mechanisms and place.security is None:
        options.mechanisms = [mechanism.value for mechanism in users[options.user]]
    await _change(options, admin, place, new_password, "changed")


async def _change(
    options: argparse.Namespace, admin: Admin, place: _Place, password: _Password | None, done: str
) -> None:
    """Write the password and the quotas, and tell where the settings of clients are."""
    value: Row = {"user": options.user, done: True}
    lines = [f"user {options.user} {done}"]
    if password is not None:
        mechanisms = place.mechanisms(options.mechanisms)
        await admin.alter_user_scram_credentials(
            [
                ScramUpsertion(options.user, password.text, mechanism, options.iterations)
                for mechanism in mechanisms
            ]
        )
        value["mechanisms"] = [mechanism.value for mechanism in mechanisms]
        if place.security is not None and place.security.scram_mechanism in mechanisms:
            folder = place.security.keep_user(options.user, password.text, place.bootstrap)
            value["clients"] = str(folder)
            lines.append(f"  settings of its clients, with the password: {folder}")
        elif password.is_made:
            # There is no other place from which its user could learn it.
            value["password"] = password.text
            lines.append(f"  password  {password.text}")
    if options.quotas:
        await admin.alter_client_quotas({ClientQuotaEntity(user=options.user): options.quotas})
        value["quotas"] = options.quotas
        lines.append(
            "  quotas    " + " ".join(f"{name}={_number(rate)}" for name, rate in options.quotas.items())
        )
    answer(options, value, *lines)


async def _delete(options: argparse.Namespace, admin: Admin) -> None:
    place = _Place.of(options)
    if place.security is not None:
        check_user(options.user, "")
    users = await admin.describe_user_scram_credentials()
    _check_exists(options.user, users)
    await admin.alter_user_scram_credentials(
        [ScramDeletion(options.user, mechanism) for mechanism in users[options.user]]
    )
    if place.security is not None:
        place.security.forget_user(options.user)
    advice = f"  its ACLs and quotas, if it has any, stay: `barnabas acls revoke {options.user} --all`"
    answer(options, {"user": options.user, "deleted": True}, f"user {options.user} deleted", advice)


async def _list(options: argparse.Namespace, admin: Admin) -> None:
    users = await admin.describe_user_scram_credentials()
    quotas = {
        entity.user: rates
        for entity, rates in (await admin.describe_client_quotas()).items()
        if isinstance(entity.user, str) and entity.client_id is None
    }
    rows = [
        {
            "user": name,
            "mechanisms": [mechanism.value for mechanism in users.get(name, {})],
            "quotas": quotas.get(name, {}),
        }
        for name in sorted({*users, *quotas})
    ]
    show(
        options,
        rows,
        {
            "user": "user",
            "mechanisms": lambda row: ", ".join(row["mechanisms"]),
            "quotas": lambda row: " ".join(f"{name}={_number(rate)}" for name, rate in row["quotas"].items()),
        },
        "no users",
    )


def _check_exists(user: str, users: Mapping[str, object]) -> None:
    if user not in users:
        raise CommandError(f"there is no user {user!r}{did_you_mean(user, users, at_most=3)}", NOT_FOUND)


def _number(rate: float | None) -> str:
    return "none" if rate is None else repr(rate).removesuffix(".0")


_USER: Final = arg("user", "NAME")
_PASSWORD_OPTIONS: Final = (
    one_of(
        arg("--password-file", "FILE", "its first line is the password; - is the standard input", type=Path),
        arg("--password", "PASSWORD", "seen by every user of this machine; as Kafka's own tools take it"),
        flag("--generate", "make a random password, without a prompt"),
    ),
    repeated(
        "--mechanism",
        "MECHANISM",
        f"{', '.join(_MECHANISMS)}; default: the cluster's, else both",
        choices=_MECHANISMS,
        type=str.upper,
        dest="mechanisms",
    ),
    arg(
        "--iterations",
        "N",
        f"of SCRAM, default {MIN_ITERATIONS}",
        type=number(MIN_ITERATIONS, MAX_ITERATIONS),
        default=MIN_ITERATIONS,
    ),
    repeated("--quota", "KEY=NUMBER", f"one of {', '.join(_QUOTAS)}", dest="quotas_given"),
    repeated("--no-quota", "KEY", "remove a quota", choices=_QUOTAS, dest="quotas_dropped"),
)

add_arguments = actions(
    on_cluster(
        "create",
        "make a user, with a password that is typed, read or random",
        _create,
        _USER,
        *_PASSWORD_OPTIONS,
        check=_check_passwords,
        epilog="examples: `barnabas users create alice`, `barnabas users create bob --password-file FILE`, "
        "`barnabas users create carol --generate --quota producer_byte_rate=1000000`",
    ),
    on_cluster(
        "alter",
        "give a user another password, or quotas",
        _alter,
        _USER,
        *_PASSWORD_OPTIONS,
        check=_check_passwords,
        epilog="examples: `barnabas users alter alice`, `barnabas users alter alice --quota "
        "consumer_byte_rate=1000000 --no-quota producer_byte_rate`",
    ),
    on_cluster("delete", "remove a user; its ACLs and quotas stay", _delete, _USER),
    on_cluster("list", "list users, their mechanisms and quotas", _list),
)
