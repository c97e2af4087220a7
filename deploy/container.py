"""The programs of the containers of docker-compose.yml, open or with its profile `secure`.

    python -m barnabas.deploy.container broker|zookeeper      becomes the server (``exec``)
    python -m barnabas.deploy.container security              makes certificates and users once, then ends
    python -m barnabas.deploy.container health                exit code 0 for a healthy broker

With the profile, the servers wait until `security` has written their settings to a volume that all share.
The profile reaches them as the variable ``PROFILES``: compose has no other way to change a service by it.
"""

from __future__ import annotations

import asyncio
import datetime
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from barnabas.common.properties import to_properties
from barnabas.common.security.channel_security import PLAINTEXT
from barnabas.common.security.scram import ScramMechanism
from barnabas.deploy.certificates import check_name
from barnabas.deploy.health import broker_problem
from barnabas.deploy.private_files import write_private
from barnabas.deploy.process import DeployError, wait_until
from barnabas.deploy.security import (
    ADMIN,
    BROKER,
    DEFAULT_MECHANISM,
    ClusterSecurity,
    check_user,
    store_users,
)
from barnabas.deploy.state import SecurityConfiguration
from barnabas.deploy.zookeeper import ExistingZooKeeper
from barnabas.protocol.ids import Endpoint

PROFILE: Final = "secure"
LISTENERS: Final = ("INTERNAL", "EXTERNAL")
_BROKERS: Final = (1, 2, 3)
_WAIT_S: Final = 120.0
_OWN: Final = Endpoint("localhost", 9092)


def secured(environment: Mapping[str, str]) -> ClusterSecurity | None:
    """The security on the volume that all share; None without the profile."""
    if PROFILE not in environment.get("PROFILES", "").split(","):
        return None
    hosts = [f"broker-{broker_id}" for broker_id in _BROKERS]
    hosts += filter(None, [environment.get("ADVERTISED_HOST")])
    configuration = SecurityConfiguration(
        tls=True, mechanism=DEFAULT_MECHANISM, acl=True, hosts=[check_name(host) for host in hosts]
    )
    return ClusterSecurity(Path(environment["SECURED_DIR"]), configuration)


def _settings_file(security: ClusterSecurity, broker_id: int) -> Path:
    return security.folder / f"broker-{broker_id}.properties"


def users_of(environment: Mapping[str, str]) -> dict[str, str | None]:
    """The users in ``USERS`` and in ``USERS_FILE``, in lines NAME or NAME:PASSWORD."""
    users: dict[str, str | None] = dict.fromkeys(environment.get("USERS", "").split())
    file = environment.get("USERS_FILE")
    lines = Path(file).read_text(encoding="utf-8").splitlines() if file else []
    for line in filter(None, map(str.strip, lines)):
        name, _, password = line.partition(":")
        users[name] = password or None
    for name in users:
        check_user(name, DEFAULT_MECHANISM)
    return users


def broker_command(environment: Mapping[str, str]) -> list[str]:
    """The command of a broker; with the profile once its settings are there. Raises DeployError."""
    command = ["barnabas", "broker", "--await-zookeeper"]
    security = secured(environment)
    if security is None:
        return command
    protocols = ",".join(f"{name}:{security.configuration.protocol}" for name in LISTENERS)
    file = _await(_settings_file(security, int(environment["BARNABAS_BROKER_ID"])))
    # The variables of the open cluster are above the file, and this is above them.
    return [*command, "--config", str(file), "--set", f"listener.security.protocol.map={protocols}"]


def zookeeper_command(environment: Mapping[str, str]) -> list[str]:
    """As `broker_command`."""
    command = [sys.executable, "-m", "barnabas.deploy.zookeeper", "--dir", "/data"]
    security = secured(environment)
    return command if security is None else [*command, "--jaas", str(_await(security.jaas_file))]


def _await(file: Path) -> Path:
    if not wait_until(file.exists, _WAIT_S, 0.2):
        raise DeployError(f"{file} is not there after {_WAIT_S:g} s: see the log of the service `security`")
    return file


def _become(command: list[str]) -> None:
    os.execvp(command[0], command)


def _make_security() -> None:
    security = secured(os.environ)
    if security is None:
        raise DeployError(
            f"set COMPOSE_PROFILES={PROFILE}: the option --profile alone does not reach brokers"
        )
    users = users_of(os.environ)
    known = security.users if _settings_file(security, _BROKERS[0]).exists() else {}
    security.prepare(_BROKERS, users, datetime.datetime.now(datetime.UTC))
    security.write_clients(os.environ["BOOTSTRAP"])
    connect = os.environ["BARNABAS_ZOOKEEPER_CONNECT"]
    ExistingZooKeeper(connect).wait_ready(_WAIT_S)
    # This runs at each `up`: users that were changed or deleted since the first complete one stay so.
    written = {ADMIN, BROKER, *(name for name, password in users.items() if password or name not in known)}
    passwords = {name: password for name, password in security.users.items() if name in written}
    store_users(connect, ScramMechanism(DEFAULT_MECHANISM), passwords, security.jaas_file)
    # The brokers wait for these.
    for broker_id in _BROKERS:
        settings = security.broker_settings(broker_id, LISTENERS) | security.zookeeper_settings
        write_private(_settings_file(security, broker_id), to_properties(settings))
    print("users:", ", ".join(security.client_users))


def _check_health() -> None:
    secure = secured(os.environ)
    security = PLAINTEXT if secure is None else secure.channel_security(str(_OWN))
    problem = asyncio.run(broker_problem(_OWN, security))
    if problem is not None:
        raise DeployError(f"broker at {_OWN}: {problem}")


_PROGRAMS: Final[Mapping[str, Callable[[], None]]] = {
    "broker": lambda: _become(broker_command(os.environ)),
    "zookeeper": lambda: _become(zookeeper_command(os.environ)),
    "security": _make_security,
    "health": _check_health,
}


def main() -> int:
    """Run the program that is named; returns its exit code."""
    name = sys.argv[1] if len(sys.argv) == 2 else ""
    if name not in _PROGRAMS:
        print(f"expected one of {', '.join(_PROGRAMS)}", file=sys.stderr)
        return 2
    try:
        _PROGRAMS[name]()
    except (DeployError, OSError, ValueError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
