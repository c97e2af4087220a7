"""The containers of the compose file, open and with the profile `secure`, without an engine."""

import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from barnabas.broker.config.load import load_config
from barnabas.common.properties import parse_properties
from barnabas.common.security.jaas import parse_jaas
from barnabas.deploy import container
from barnabas.deploy.certificates import keystore_file
from barnabas.deploy.container import broker_command, main, secured, users_of, zookeeper_command
from barnabas.deploy.process import DeployError
from barnabas.protocol.errors import InvalidConfiguration

COMPOSE_FILE = Path(__file__).parents[3] / "deploy" / "docker-compose.yml"


def services(**variables: str) -> dict[str, Any]:
    """The services of the file with these variables of the shell."""

    def value(match: re.Match[str]) -> str:
        return variables.get(match[1]) or match[2] or ""

    text = re.sub(r"\$\{(\w+)(?::-([^}]*))?\}", value, COMPOSE_FILE.read_text())
    parsed: dict[str, Any] = yaml.safe_load(text)["services"]
    return parsed


@pytest.fixture
def shell(tmp_path: Path) -> dict[str, str]:
    return {
        "COMPOSE_PROFILES": "monitoring,secure",
        "SECURED_DIR": str(tmp_path / "secured"),
        "ADVERTISED_HOST": "kafka.example.com",
        "USERS": "alice bob",
    }


def test_without_the_profile_the_servers_are_started_as_ever() -> None:
    open_services = services(COMPOSE_PROFILES="monitoring")
    assert broker_command(open_services["broker-1"]["environment"]) == [
        "barnabas",
        "broker",
        "--await-zookeeper",
    ]
    assert zookeeper_command(open_services["zookeeper"]["environment"])[1:] == [
        "-m",
        "barnabas.deploy.zookeeper",
        "--dir",
        "/data",
    ]


def test_a_broker_accepts_the_settings_that_the_init_service_makes(
    shell: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored: dict[str, str] = {}
    monkeypatch.setattr(
        container, "store_users", lambda connect, mechanism, passwords, session: stored.update(passwords)
    )
    monkeypatch.setattr(container.ExistingZooKeeper, "wait_ready", lambda self, timeout_s: None)
    named = services(**shell)
    init = named["security"]
    assert init["profiles"] == ["secure"]
    environment = init["environment"] | {"USERS_FILE": ""}
    monkeypatch.setattr(container.os, "environ", environment)
    monkeypatch.setattr(container.sys, "argv", ["container", "security"])
    assert main() == 0
    assert sorted(stored) == ["admin", "alice", "bob", "broker"]
    first = dict(stored)
    stored.clear()
    environment["USERS"] = "alice carol"
    assert main() == 0
    assert sorted(stored) == ["admin", "broker", "carol"], "alice may have another password now"
    assert stored["broker"] == first["broker"]

    for number in (1, 2, 3):
        broker = named[f"broker-{number}"]
        command = broker_command(broker["environment"])
        config = load_config(
            file=Path(command[command.index("--config") + 1]),
            environment=broker["environment"],
            overrides=[command[command.index("--set") + 1]],
        )
        assert config.broker_id == number
        assert [listener.security_protocol for listener in config.listeners] == ["SASL_SSL"] * 2
        assert config.inter_broker_listener_name == "INTERNAL"
        folder = Path(shell["SECURED_DIR"]) / "security"
        for listener in ("INTERNAL", "EXTERNAL"):
            own = config.listener(listener)
            assert own.ssl_keystore_location == str(keystore_file(folder, number))
            login = parse_jaas(own.jaas("SCRAM-SHA-256") or "", "SCRAM-SHA-256")
            assert (login.username, login.password) == ("broker", stored["broker"])
        # The volume is where the settings say that it is, on this host too.
        assert f"{shell['SECURED_DIR']}:{shell['SECURED_DIR']}" in broker["volumes"]

    settings = Path(shell["SECURED_DIR"]) / "clients" / "alice" / "client.properties"
    bootstrap = parse_properties(settings.read_text())["bootstrap.servers"]
    assert bootstrap == ",".join(f"kafka.example.com:{port}" for port in (19092, 29092, 39092))
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*.properties")}
    assert modes == {0o600}


def test_a_server_waits_for_its_settings_and_names_what_is_missing(
    shell: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container, "_WAIT_S", 0.0)
    with pytest.raises(DeployError, match=r"broker-2.properties is not there.*service `security`"):
        broker_command(services(**shell)["broker-2"]["environment"])
    with pytest.raises(DeployError, match=r"zookeeper.jaas is not there"):
        zookeeper_command(services(**shell)["zookeeper"]["environment"])


def test_the_init_service_refuses_a_profile_that_the_brokers_do_not_see(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(container.os, "environ", services()["security"]["environment"])
    monkeypatch.setattr(container.sys, "argv", ["container", "security"])
    assert main() == 1
    assert "set COMPOSE_PROFILES=secure" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["nosuch"], ["broker", "more"]])
def test_an_unknown_program_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    monkeypatch.setattr(container.sys, "argv", ["container", *arguments])
    assert main() == 2
    assert "expected one of broker, zookeeper, security, health" in capsys.readouterr().err


def test_users_come_from_a_variable_and_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text("carol:a:secret\n\n alice \n")
    assert users_of({"USERS": "alice bob", "USERS_FILE": str(file)}) == {
        "alice": None,
        "bob": None,
        "carol": "a:secret",
    }
    with pytest.raises(InvalidConfiguration, match="the cluster makes this user itself"):
        users_of({"USERS": "admin"})


@pytest.mark.parametrize(
    ("profiles", "is_secured"), [("", False), ("secure", True), ("a,secure", True), ("insecure", False)]
)
def test_the_profile_is_one_of_several(tmp_path: Path, profiles: str, is_secured: bool) -> None:
    environment: Mapping[str, str] = {"PROFILES": profiles, "SECURED_DIR": str(tmp_path)}
    assert (secured(environment) is not None) == is_secured
