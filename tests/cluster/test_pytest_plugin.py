"""The pytest plugin, in runs of pytest of its own: example suites, settings by marker, faults, leftovers.

Most runs are in this process, which has all imports and the process that forks brokers.
"""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from barnabas.deploy.process import ProcessId
from barnabas.deploy.zookeeper import ExistingZooKeeper, ZooKeeper
from tests.support.names import fresh_name
from tests.support.waiting import wait_for

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
PLUGIN = "pytest_barnabas.plugin"
SRC = str(ROOT / "src")


RunSuite = Callable[..., subprocess.CompletedProcess[str]]


def command(folder: Path, *arguments: str) -> Sequence[str]:
    return [sys.executable, "-m", "pytest", "-p", PLUGIN, "--rootdir", str(folder), str(folder), *arguments]


def pytest_in(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a suite in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        command(folder, *arguments),
        cwd=folder,
        env=environment | {"PYTHONPATH": SRC},
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )


@pytest.fixture
def run_suite(
    pytester: pytest.Pytester, zookeeper: ZooKeeper | ExistingZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> RunSuite:
    """Runs a suite in this process; its cluster is in the ZooKeeper of this worker, or has one of its own."""
    # The variables of this run's own xdist would make the run inside a worker of it.
    for name in [name for name in os.environ if name.startswith("PYTEST_XDIST_")]:
        monkeypatch.delenv(name)

    def run(folder: Path, *, own_zookeeper: bool = False) -> subprocess.CompletedProcess[str]:
        if not own_zookeeper:
            monkeypatch.setenv("BARNABAS_ZOOKEEPER", fresh_name(f"{zookeeper.connect}/plugin"))
        monkeypatch.chdir(folder)
        words = command(folder)[3:]
        ran = pytester.runpytest_inprocess(*words)
        return subprocess.CompletedProcess(words, int(ran.ret), str(ran.stdout), str(ran.stderr))

    return run


def suite(folder: Path, code: str, ini: str = "") -> Path:
    scope = "asyncio_default_fixture_loop_scope = function"
    (folder / "pytest.ini").write_text(f"[pytest]\n{scope}\n{ini}\n")
    (folder / "test_it.py").write_text(code)
    return folder


def test_the_plugin_is_an_entry_point_of_pytest() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {PLUGIN: PLUGIN}


def test_the_example_suites_pass_in_two_workers() -> None:
    ran = pytest_in(ROOT / "examples" / "testing", "-n2", "--dist=loadfile", "-p", "no:cacheprovider")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.search(r"\b11 passed", ran.stdout), ran.stdout


def test_a_paused_broker_is_resumed_and_a_failure_shows_the_logs(tmp_path: Path, run_suite: RunSuite) -> None:
    code = """
def test_paused(barnabas_cluster, barnabas_topic):
    leader = barnabas_cluster.leader_of(barnabas_topic)
    with barnabas_cluster.paused(leader):
        pass
    barnabas_cluster.wait_until_whole(10)
    assert barnabas_cluster.controller() in barnabas_cluster.broker_ids
    assert leader == "the failure that this test wants"
"""
    ran = run_suite(suite(tmp_path, code))
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "the failure that this test wants" in ran.stdout
    ends = re.findall(r"- the end of (\S+) -+\n(.*)", ran.stdout)
    assert [Path(path).parts[-3:] for path, _ in ends] == [
        (f"broker-{id}", "logs", "server.log") for id in (1, 2, 3)
    ]
    assert all(re.match(r"\d{4}-\d\d-\d\d ", line) for _, line in ends), ends
    assert "error" not in ran.stdout.splitlines()[-1]


def test_a_failure_shows_nothing_of_an_empty_log(tmp_path: Path, run_suite: RunSuite) -> None:
    code = """
def test_it(barnabas_cluster):
    for path in barnabas_cluster.log_files.values():
        open(path, "w").close()
    assert not "the failure that this test wants"
"""
    ran = run_suite(suite(tmp_path, code, "barnabas_brokers = 1"))
    assert "the failure that this test wants" in ran.stdout
    assert "the end of" not in ran.stdout


def test_a_marker_overrides_the_settings_of_the_ini_file(tmp_path: Path, run_suite: RunSuite) -> None:
    """Transactions work in clusters of one and of two brokers too."""
    code = """
import pytest
from barnabas.client.blocking import Admin, Consumer, Producer
from barnabas.client import ConfigResource

def retention(cluster):
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        broker = ConfigResource.broker(cluster.broker_ids[0])
        return admin.describe_configs(broker)[broker]["log.retention.ms"].value

def committed(cluster, topic):
    with Producer(bootstrap_servers=cluster.bootstrap_servers, transactional_id="one") as producer:
        with producer.transaction():
            producer.send(topic, b"committed", partition=0)
        with pytest.raises(ZeroDivisionError), producer.transaction():
            producer.send_and_wait(topic, b"aborted", partition=0)
            1 / 0
        with producer.transaction():
            producer.send(topic, b"committed too", partition=0)
    settings = {"auto_offset_reset": "earliest", "isolation_level": "read_committed", "group_id": "readers"}
    with Consumer(bootstrap_servers=cluster.bootstrap_servers, **settings) as consumer:
        consumer.subscribe([topic])
        values = []
        while len(values) < 2:
            values += [record.value for record in consumer.poll(1_000)]
    return values

def test_ini(barnabas_cluster, barnabas_topic):
    assert committed(barnabas_cluster, barnabas_topic) == [b"committed", b"committed too"]
    assert (len(barnabas_cluster.broker_ids), retention(barnabas_cluster)) == (2, "1000000")

@pytest.mark.barnabas(brokers=1, settings={"log.retention.ms": 2000000})
def test_marker(barnabas_cluster, barnabas_topic):
    assert committed(barnabas_cluster, barnabas_topic) == [b"committed", b"committed too"]
    assert (len(barnabas_cluster.broker_ids), retention(barnabas_cluster)) == (1, "2000000")
"""
    ini = "barnabas_brokers = 2\nbarnabas_settings =\n    log.retention.ms=1000000"
    ran = run_suite(suite(tmp_path, code, ini), own_zookeeper=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_secured_cluster_has_settings_for_clients_and_users_of_a_test(
    tmp_path: Path, run_suite: RunSuite
) -> None:
    code = """
import pytest
from confluent_kafka import Producer
from barnabas.client.blocking import Admin
from barnabas.deploy.process import DeployError

made = []

def test_rights(barnabas_cluster, barnabas_topic, barnabas_user):
    owner = barnabas_user(f"write,describe topic:{barnabas_topic}")
    stranger = barnabas_user()
    made.extend([owner, stranger])
    for user, is_written in (owner, True), (stranger, False):
        errors = []
        producer = Producer(barnabas_cluster.client_settings("confluent", user=user))
        producer.produce(barnabas_topic, b"order", callback=lambda error, _: errors.append(error))
        producer.flush(30)
        assert (errors[0] is None) == is_written, errors
    with pytest.raises(ValueError, match="expected operations and resources"):
        barnabas_cluster.create_user("bob", "write")
    with pytest.raises(ValueError, match="did you mean topic"):
        barnabas_cluster.create_user("bob", "write topics:t")

def test_users_are_gone(barnabas_cluster):
    with Admin(**barnabas_cluster.client_settings("barnabas")) as admin:
        assert not set(made) & set(admin.describe_user_scram_credentials())
        assert admin.describe_acls() == []
    with pytest.raises(DeployError):
        barnabas_cluster.client_settings("java", user=made[0])

def test_a_fault(barnabas_cluster):
    with barnabas_cluster.killed(1):
        pass
"""
    ran = run_suite(suite(tmp_path, code, "barnabas_security = tls + scram"))
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_setting_without_a_value_is_refused_by_name(tmp_path: Path, run_suite: RunSuite) -> None:
    ran = run_suite(suite(tmp_path, "def test(barnabas_cluster): ...", "barnabas_settings =\n    log.dirs"))
    assert ran.returncode != 0
    assert "expected NAME=VALUE, got 'log.dirs'" in ran.stdout + ran.stderr


def test_a_wrong_argument_of_a_marker_is_named_before_a_cluster_starts(
    tmp_path: Path, run_suite: RunSuite
) -> None:
    said_of = {
        "barnabas(borkers=1)": "borkers=1: unknown; did you mean brokers?",
        "barnabas(1)": "1 has no name; expected one of brokers, settings, security, links",
        "barnabas(links='no')": "links='no': expected True or False",
        "barnabas(brokers=0)": "brokers=0: expected a whole number, 1 or more",
        "barnabas(brokers='1')": "brokers='1': expected a whole number, 1 or more",
        "barnabas(settings=['a=1'])": "settings=['a=1']: expected a mapping",
        "barnabas(security='ssl')": (
            "security='ssl': expected one of off, tls, plain, plain+tls, scram, scram+tls"
        ),
        "barnabas_topic(partition=6)": "partition=6: unknown; did you mean partitions?",
        "barnabas_topic(6)": "6 has no name; expected one of partitions, replication_factor, configs",
        "barnabas_topic(partitions='6')": "partitions='6': expected a whole number, 1 or more",
        "barnabas_topic(replication_factor=0)": "replication_factor=0: expected a whole number, 1 or more",
        "barnabas_topic(configs='a=1')": "configs='a=1': expected a mapping",
    }
    for number, marker in enumerate(said_of):
        code = f"import pytest\n@pytest.mark.{marker}\ndef test(barnabas_cluster, barnabas_topic): ...\n"
        (tmp_path / f"test_{number}.py").write_text(code)
    ran = run_suite(suite(tmp_path, "def test(): ..."))
    assert f"{len(said_of)} errors" in ran.stdout.splitlines()[-1], ran.stdout + ran.stderr
    for number, (marker, said) in enumerate(said_of.items()):
        expected = f"test_{number}.py::test: @pytest.mark.{marker.partition('(')[0]}: {said}\n"
        assert expected in ran.stdout, ran.stdout
    assert "Traceback" not in ran.stdout
    assert "plugin.py" not in ran.stdout


def test_a_wrong_option_of_the_ini_file_is_named(tmp_path: Path, run_suite: RunSuite) -> None:
    ran = run_suite(suite(tmp_path, "def test(barnabas_cluster): ...", "barnabas_brokers = three"))
    assert "barnabas_brokers='three': expected a whole number, 1 or more" in ran.stdout + ran.stderr
    assert "Traceback" not in ran.stdout + ran.stderr


def test_no_process_outlives_a_run_that_is_killed_within_faults(tmp_path: Path) -> None:
    code = """
import time
def test_it(barnabas_cluster):
    with barnabas_cluster.paused(1), barnabas_cluster.severed(1, 2), barnabas_cluster.killed(2):
        servers = barnabas_cluster._local.servers
        pids = [server.process.pid for server in servers if server.is_alive]
        open("pids", "w").write(" ".join(map(str, pids)) + " end")
        time.sleep(600)
"""
    folder = suite(tmp_path, code, "barnabas_brokers = 2")
    pids = folder / "pids"
    with subprocess.Popen(
        command(folder), cwd=folder, env={**os.environ, "PYTHONPATH": SRC}, stdout=subprocess.DEVNULL
    ) as run:
        try:
            wait_for(lambda: pids.exists() and pids.read_text().endswith("end"), "the cluster")
        finally:
            run.kill()
    started = [int(pid) for pid in pids.read_text().split()[:-1]]
    # Broker 1, ZooKeeper and the proxies of the links.
    assert len(started) == 3
    wait_for(lambda: all(ProcessId.of(pid) is None for pid in started), "the end of all processes")
