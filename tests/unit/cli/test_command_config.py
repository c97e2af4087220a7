"""The file with client settings that commands connect with: which file counts, and which of its settings."""

import argparse
from pathlib import Path
from typing import Any

import pytest

from barnabas.cli.arguments import COMMAND_CONFIG_VARIABLE, cluster_options, command_settings
from barnabas.cli.exit_codes import CommandError
from barnabas.client.config import AdminConfig, ProducerConfig
from barnabas.deploy.client_settings import COMMAND_CONFIG_FILE
from barnabas.deploy.security import ADMIN

SETTINGS = """
bootstrap.servers=elsewhere:1
security.protocol=SASL_PLAINTEXT
sasl.mechanism=PLAIN
sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\
  username="admin" password="hunter2";
linger.ms=7
key.serializer=org.example.Bytes
ssl.provider=SunJSSE
"""


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for argument in cluster_options():
        argument(parser)
    return parser.parse_args(words)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "some.properties"
    path.write_text(SETTINGS)
    return path


@pytest.fixture(autouse=True)
def no_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BARNABAS_DIR", str(tmp_path / "nothing"))
    monkeypatch.delenv(COMMAND_CONFIG_VARIABLE, raising=False)


def test_a_client_takes_what_it_has_of_the_file(file: Path) -> None:
    options = parsed("-b", "localhost:1", "--command-config", str(file))
    of_admin = command_settings(options, AdminConfig)
    assert set(of_admin) == {"security_protocol", "sasl_mechanism", "sasl_jaas_config"}
    assert 'password="hunter2"' in of_admin["sasl_jaas_config"].value
    assert command_settings(options, ProducerConfig)["linger_ms"] == 7
    assert command_settings(parsed("-b", "localhost:1"), AdminConfig) == {}


def test_the_environment_counts_unless_an_option_names_a_file_or_a_cluster(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(COMMAND_CONFIG_VARIABLE, str(file))
    other = tmp_path / "other.properties"
    other.write_text("client.id=other\n")
    named = parsed("-b", "localhost:1", "--command-config", str(other))
    assert command_settings(named, AdminConfig) == {"client_id": "other"}
    assert "sasl_mechanism" in command_settings(parsed("-b", "localhost:1"), AdminConfig)
    assert command_settings(parsed("--dir", str(tmp_path / "open")), AdminConfig) == {}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("sasl.mechanisms=PLAIN", "did you mean sasl_mechanism?"),
        ("sasl.pasword=hunter2", "did you mean sasl_password?"),
        ("security.protocol=TLS", "expected one of PLAINTEXT"),
        ("sasl.password=hunter2", "security_protocol=PLAINTEXT does not use it"),
    ],
)
def test_settings_that_would_not_secure_are_refused_with_the_files_name(
    file: Path, line: str, message: str
) -> None:
    file.write_text(line)
    with pytest.raises(CommandError) as refusal:
        command_settings(parsed("-b", "localhost:1", "--command-config", str(file)), AdminConfig)
    assert message in str(refusal.value)
    assert str(file) in str(refusal.value)
    assert "hunter2" not in str(refusal.value)


def test_a_local_cluster_has_its_own_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "clients" / ADMIN
    folder.mkdir(parents=True)
    file = folder / COMMAND_CONFIG_FILE
    file.write_text("client.id=own\n")

    class Cluster:
        command_config = file

    def local_cluster(options: Any, bootstrap: str | None) -> Cluster:
        return Cluster()

    monkeypatch.setattr("barnabas.cli.arguments.local_cluster", local_cluster)
    assert command_settings(parsed("--dir", str(tmp_path)), AdminConfig) == {"client_id": "own"}
