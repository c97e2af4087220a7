"""A local cluster's processes, with stand-ins for the brokers and for ZooKeeper."""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from barnabas.broker.config.load import load_config
from barnabas.broker.config.settings import BrokerConfig
from barnabas.common.security.scram import ScramMechanism
from barnabas.deploy.local import LocalCluster
from barnabas.deploy.local_broker import LocalBroker
from barnabas.deploy.ports import ReservedPort, is_free
from barnabas.deploy.process import DeployError, ProcessId, wait_until
from barnabas.deploy.running_cluster import RunningCluster
from barnabas.deploy.state import SecurityConfiguration, read_record, write_record
from barnabas.deploy.zookeeper import ZooKeeper
from barnabas.protocol.errors import InvalidConfiguration
from tests.support.waiting import DEADLINE_S, wait_for

_STAND_IN = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("up with", sys.argv[1], flush=True)
while True:
    time.sleep(60)
"""

Make = Callable[..., LocalCluster]


def _stand_in(settings_file: Path) -> list[str]:
    return [sys.executable, "-c", _STAND_IN, str(settings_file)]


def _ready_when_all_printed(
    endpoints: Mapping[object, object], timeout_s: float, check: Callable[[], None], security: object
) -> None:
    check()


@pytest.fixture
def srvr_answerer() -> Iterator[str]:
    """host:port of a server that answers every connection as ZooKeeper answers ``srvr``."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                # The client may have closed the connection before the answer.
                with connection, suppress(ConnectionError):
                    connection.recv(16)
                    connection.sendall(b"Zookeeper version: stand-in")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        host, port = server.getsockname()
        yield f"{host}:{port}"
        server.shutdown(socket.SHUT_RDWR)
    thread.join(DEADLINE_S)


@pytest.fixture
def make(tmp_path: Path, srvr_answerer: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    made: list[LocalCluster] = []

    def make_cluster(**arguments: object) -> LocalCluster:
        defaults = {
            "zookeeper": srvr_answerer,
            "command": _stand_in,
        }
        is_ready = arguments.pop("ready", _ready_when_all_printed)
        monkeypatch.setattr("barnabas.deploy.running_cluster.wait_ready", is_ready)
        made.append(LocalCluster(tmp_path / "cluster", **(defaults | arguments)))
        return made[-1]

    yield make_cluster
    for cluster in made:
        cluster.kill_all()
        cluster.close()


@pytest.fixture
def cluster(make: Make) -> LocalCluster:
    """Three brokers that run."""
    made = make()
    made.start()
    return made


def test_every_broker_runs_with_settings_that_a_broker_accepts(make: Make) -> None:
    cluster = make(settings={"num.io.threads": "4"}, broker_settings={2: {"num.network.threads": "2"}})
    cluster.start()

    assert [broker.state for broker in cluster.brokers] == ["running"] * 3
    config = load_config(file=cluster.broker(2).settings_file)
    assert config.broker_id == 2
    assert config.listeners[0].port == cluster.broker(2).port
    assert (config.num_io_threads, config.num_network_threads) == (4, 2)
    assert config.zookeeper_connect == cluster.zookeeper_connect
    assert config.log_dirs == (str(cluster.directory / "broker-2" / "data"),)
    assert load_config(file=cluster.broker(1).settings_file).zookeeper_session_timeout_ms == 4000


def test_the_description_has_the_ports_and_the_running_processes(make: Make) -> None:
    cluster = make(brokers=2)
    cluster.start()
    described = cluster.describe()
    assert described["bootstrap"] == ",".join(
        f"127.0.0.1:{broker['port']}" for broker in described["brokers"]
    )
    assert [broker["id"] for broker in described["brokers"]] == [1, 2]
    for broker in described["brokers"]:
        assert ProcessId.of(broker["pid"]) is not None
    cluster.kill(1)
    assert cluster.describe()["brokers"][0]["pid"] is None


def test_a_broker_is_started_once_and_signalled_while_it_runs(cluster: LocalCluster) -> None:
    with pytest.raises(DeployError, match=r"broker 1 is already running \(pid \d+\)"):
        cluster.launch_broker(1)
    cluster.kill(1)
    for act in (cluster.kill, cluster.pause, cluster.resume, cluster.stop_broker):
        with pytest.raises(DeployError, match="broker 1 is not running"):
            act(1)
    endpoint = cluster.broker(1).endpoint
    with (
        socket.create_server(endpoint),
        pytest.raises(DeployError, match=f"broker 1 cannot listen on {endpoint}: the port is in use"),
    ):
        cluster.launch_broker(1)


def test_kill_pause_resume_and_restart_reach_one_broker_alone(cluster: LocalCluster) -> None:
    before = cluster.describe()["brokers"]

    cluster.kill(1)
    cluster.pause(2)
    assert [broker.state for broker in cluster.brokers] == ["gone", "paused", "running"]

    cluster.resume(2)
    cluster.restart(1)
    wait_for(lambda: [broker.state for broker in cluster.brokers] == ["running"] * 3)
    after = cluster.describe()["brokers"]
    assert [broker["port"] for broker in after] == [broker["port"] for broker in before]
    assert [a["pid"] == b["pid"] for a, b in zip(after, before, strict=True)] == [False, True, True]


@pytest.mark.parametrize(
    ("brokers", "given", "replicas"), [(1, None, 1), (2, None, 2), (4, None, 3), (2, "1", 1)]
)
def test_a_small_cluster_has_at_most_one_replica_of_internal_topics_per_broker(
    make: Make, brokers: int, given: str | None, replicas: int
) -> None:
    settings = {} if given is None else {"offsets.topic.replication.factor": given}
    cluster = make(brokers=brokers, settings=settings)
    cluster.start()
    config = load_config(file=cluster.broker(1).settings_file)
    assert config.offsets_topic_replication_factor == replicas
    assert config.transaction_state_log_replication_factor == min(brokers, 3)
    assert config.transaction_state_log_min_isr == min(brokers, 2)
    assert config.group_initial_rebalance_delay_ms == 0


def test_changed_settings_of_a_broker_apply_from_its_next_start(cluster: LocalCluster) -> None:
    cluster.change_settings(3, {"num.io.threads": "2"})
    cluster.restart(3)
    assert load_config(file=cluster.broker(3).settings_file).num_io_threads == 2
    assert load_config(file=cluster.broker(2).settings_file).num_io_threads == 8


def test_a_broker_that_ends_at_start_fails_the_start_with_its_last_words(make: Make) -> None:
    command = [sys.executable, "-c", "raise SystemExit('bad luck')"]
    cluster = make(command=lambda file: command, ready=_never_ready)
    with pytest.raises(DeployError, match=r"broker \d ended with exit code 1(?s:.*)bad luck"):
        cluster.start()
    assert not cluster.is_running


def test_another_program_finds_signals_and_stops_the_cluster(cluster: LocalCluster) -> None:
    opened = RunningCluster.open(cluster.directory)
    assert opened.describe() == cluster.describe()
    opened.pause(2)
    assert cluster.broker(2).state == "paused"

    # The children are this process' own: a thread must reap them while `stop` waits.
    reaper = threading.Thread(
        target=lambda: wait_until(lambda: not any(broker.is_alive for broker in cluster.brokers), DEADLINE_S)
    )
    reaper.start()
    opened.stop()
    reaper.join()
    assert not cluster.is_running


def test_a_running_cluster_is_not_started_a_second_time(make: Make, cluster: LocalCluster) -> None:
    with pytest.raises(DeployError, match="already running"):
        cluster.start()
    with pytest.raises(DeployError, match="belongs to another running program"):
        make()
    cluster.close()  # as a detached cluster's starter does
    with pytest.raises(DeployError, match="a cluster is running in"):
        make()


def test_the_next_run_in_a_directory_keeps_the_ports(make: Make, cluster: LocalCluster) -> None:
    bootstrap = cluster.bootstrap
    cluster.stop()
    cluster.close()
    assert make().bootstrap == bootstrap


def _never_ready(
    endpoints: Mapping[object, object], timeout_s: float, check: Callable[[], None], security: object
) -> None:
    """Waits for a broker to end."""

    def has_ended() -> bool:
        check()
        return False

    wait_until(has_ended, timeout_s)


def _stop(cluster: LocalCluster) -> None:
    cluster.stop()
    cluster.close()


def test_the_next_run_continues_with_everything_that_the_last_one_was_given(make: Make) -> None:
    first = make(brokers=4, settings={"num.io.threads": "4"}, racks=["a", "b"], metrics=True, log_dirs=2)
    first.start()
    _stop(first)
    second = make(settings={"num.network.threads": "2"})
    second.start()
    assert second.broker_ids == [1, 2, 3, 4]
    for broker, rack in zip(second.brokers, "abab", strict=True):
        config = _config(broker)
        assert (config.num_io_threads, config.num_network_threads, config.broker_rack) == (4, 2, rack)
        assert (broker.metrics_url is not None, len(config.log_dirs)) == (True, 2)
    _stop(second)
    third = make(dropped_settings=["num.io.threads"], racks=["c"], metrics=False)
    third.start()
    config = _config(third.broker(4))
    assert (config.num_io_threads, config.num_network_threads, config.broker_rack) == (8, 2, "c")
    assert third.broker(4).metrics_url is None


def test_the_next_run_uses_the_zookeeper_of_the_last_one(make: Make, srvr_answerer: str) -> None:
    first = make()
    first.start()
    _stop(first)
    assert make(zookeeper=None).zookeeper_connect == srvr_answerer


def test_a_start_that_fails_changes_nothing_for_the_next_one(make: Make) -> None:
    def end(file: Path) -> list[str]:
        return [sys.executable, "-c", "raise SystemExit('bad luck')"]

    first = make(brokers=5, settings={"num.io.threads": "0"}, command=end, ready=_never_ready)
    with pytest.raises(DeployError):
        first.start()
    first.close()
    second = make()
    second.start()
    assert (second.broker_ids, dict(second.settings)) == ([1, 2, 3], {})
    _stop(second)
    third = make(brokers=4, settings={"num.io.threads": "0"}, command=end, ready=_never_ready)
    with pytest.raises(DeployError):
        third.start()
    third.close()
    assert (make().broker_ids, _kept_settings(third.directory)) == ([1, 2, 3], {})


def _kept_settings(directory: Path) -> dict[str, str]:
    record = read_record(directory)
    assert record is not None
    assert record.configuration is not None
    return record.configuration.settings


def test_fewer_brokers_are_refused_while_one_of_the_others_has_replicas(make: Make) -> None:
    first = make(brokers=4)
    first.start()
    (first.broker(4).log_dirs[0] / "t-0").mkdir(parents=True)
    _stop(first)
    advice = f"`barnabas drain 4 --wait --dir {first.directory}`"
    with pytest.raises(DeployError, match=rf"broker 4 has 1 replica; .*{advice}"):
        make(brokers=3)
    (first.broker(4).log_dirs[0] / "t-0").rename(first.directory / "moved")
    assert make(brokers=3).broker_ids == [1, 2, 3]


@pytest.mark.parametrize(
    ("brokers", "given", "expected"),
    [
        (1, {}, (1, 1, 1)),
        (2, {}, (2, 1, 2)),
        (3, {}, (3, 2, 3)),
        (4, {}, (3, 2, 3)),
        (3, {"min.insync.replicas": "1", "num.partitions": "7"}, (3, 1, 7)),
    ],
)
def test_topics_of_a_replicating_cluster_survive_the_death_of_a_broker(
    make: Make, brokers: int, given: dict[str, str], expected: tuple[int, int, int]
) -> None:
    cluster = make(brokers=brokers, replicates=True, settings=given)
    cluster.start()
    config = _config(cluster.broker(1))
    found = (config.default_replication_factor, config.topics.min_insync_replicas, config.num_partitions)
    assert found == expected


def test_a_directory_of_an_earlier_version_keeps_the_defaults_of_its_topics(make: Make) -> None:
    def defaults(cluster: LocalCluster) -> tuple[int, int, int]:
        cluster.start()
        config = _config(cluster.broker(1))
        _stop(cluster)
        return config.default_replication_factor, config.topics.min_insync_replicas, config.num_partitions

    first = make(replicates=True)
    assert defaults(first) == (3, 2, 3)
    path = first.directory / "cluster.json"
    earlier = json.loads(path.read_text())
    earlier["settings"] = earlier.pop("configuration")["settings"]
    path.write_text(json.dumps(earlier))
    assert defaults(make(replicates=True)) == (1, 1, 1)
    assert defaults(make(replicates=True)) == (1, 1, 1), "it is recorded now"
    given = make(replicates=True, settings={"min.insync.replicas": "2"})
    assert defaults(given) == (1, 2, 1)


def test_a_given_setting_beats_the_environment_and_a_restart_keeps_both(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BARNABAS_NUM_PARTITIONS", "9")
    monkeypatch.setenv("BARNABAS_NUM_IO_THREADS", "5")
    monkeypatch.setenv("BARNABAS_NUM_IO_THREDS", "5")
    cluster = make(replicates=True, settings={"num.partitions": "4"})
    cluster.start()

    def settings() -> tuple[int, int, bool]:
        broker = cluster.broker(1)
        environment = Path(f"/proc/{broker.running_process.pid}/environ").read_bytes()
        names = [name for name in (b"NUM_PARTITIONS", b"NUM_IO_THREADS") if name in environment]
        assert names == [], "they would beat the file"
        assert b"NUM_IO_THREDS" in environment, "the broker refuses it by name"
        config = _config(broker)
        return config.num_partitions, config.num_io_threads, broker.is_alive

    assert settings() == (4, 5, True)
    monkeypatch.setenv("BARNABAS_NUM_IO_THREADS", "6")
    opened = RunningCluster.open(cluster.directory)
    cluster.kill(1)
    opened.broker(1)._command = _stand_in
    opened.launch_broker(1)
    cluster.broker(1).process = opened.broker(1).process
    assert settings() == (4, 5, True)


def test_a_given_setting_beats_an_earlier_value_in_a_finer_unit(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BARNABAS_LOG_RETENTION_MS", "5")
    first = make(settings={"log.retention.minutes": "1", "log.roll.ms": "9"})
    first.start()
    assert _config(first.broker(1)).topics.retention_ms == 60_000
    first.change_settings(1, {"log.retention.hours": "1"})
    first.change_settings(1, {"log.retention.minutes": "3"})
    first.change_settings(1, {"log.retention.hours": "2"})
    first.kill(1)
    first.restart(1)
    assert _config(first.broker(1)).topics.retention_ms == 7_200_000
    _stop(first)
    second = make(settings={"log.roll.hours": "2", "log.retention.hours": "1"})
    assert second.settings == {"log.roll.hours": "2", "log.retention.hours": "1"}
    second.start()
    config = _config(second.broker(1))
    assert (config.topics.segment_ms, config.topics.retention_ms) == (7_200_000, 3_600_000)


def test_an_error_quotes_the_output_of_the_present_start_alone(make: Make) -> None:
    for word in ("former", "present"):
        command = [sys.executable, "-c", f"exit('{word}')"]
        cluster = make(brokers=1, command=lambda file, command=command: command, ready=_never_ready)
        with pytest.raises(DeployError, match=word) as caught:
            cluster.start()
        cluster.close()
    assert "former" not in str(caught.value)


def test_a_stop_needs_no_room_on_the_disk(
    make: Make, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str) -> None:
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(DeployError, match=r"cluster\.json cannot be written: No space left on device"):
        cluster.write_record()
    assert not list(cluster.directory.glob("*.new"))
    cluster.stop()
    assert not cluster.is_running


def test_the_error_for_a_running_cluster_names_a_dead_zookeeper(make: Make, cluster: LocalCluster) -> None:
    record = read_record(cluster.directory)
    assert record is not None
    record.zookeeper_process = ProcessId(2**22 + 1, "boot:1")
    write_record(record)
    cluster.close()
    with pytest.raises(DeployError, match=r"its ZooKeeper is down .*barnabas restart zookeeper"):
        make()


def test_a_port_that_was_taken_meanwhile_is_replaced(make: Make, cluster: LocalCluster) -> None:
    ports = [broker.port for broker in cluster.brokers]
    cluster.stop()
    cluster.close()
    with socket.create_server(("127.0.0.1", ports[0])):
        again = make()
        assert [broker.port for broker in again.brokers][1:] == ports[1:]
        assert again.broker(1).port != ports[0]
        assert again.port_notes == [
            f"port {ports[0]} is in use or reserved by another cluster, so broker 1 listens on "
            f"{again.broker(1).port}"
        ]


def _pick_low() -> ReservedPort:
    """A port with room for blocks above it."""
    while (reserved := ReservedPort.pick()).port > 30_000:
        reserved.close()
    return reserved


def test_a_new_cluster_takes_the_preferred_ports_only_if_all_are_free(make: Make) -> None:
    reserved = [_pick_low() for _ in range(3)]
    ports = [port.port for port in reserved]
    reserved.pop().close()
    some = make(preferred_ports=ports)
    above = {broker.port - port for broker, port in zip(some.brokers, ports, strict=True)}
    assert [distance % 100 for distance in above] == [0], "the next block"
    (note,) = some.port_notes
    assert note.startswith(f"port {ports[0]} is in use")
    assert note.endswith(f"listen on {', '.join(str(broker.port) for broker in some.brokers)}")
    some.close()
    for port in reserved:
        port.close()
    every = make(preferred_ports=ports)
    assert [broker.port for broker in every.brokers] == ports


def test_a_cluster_that_continues_keeps_its_ports_although_the_preferred_are_free(make: Make) -> None:
    first = make()
    first.start()
    bootstrap = first.bootstrap
    first.stop()
    first.close()
    preferred = ReservedPort.pick()
    preferred.close()
    assert make(preferred_ports=[preferred.port] * 3).bootstrap == bootstrap


def test_a_first_port_and_the_following_ones_are_taken_or_refused(make: Make) -> None:
    make(brokers=2).close()
    first_port = _first_of_free_ports(2)
    with socket.create_server(("127.0.0.1", first_port + 1)):
        with pytest.raises(DeployError, match=f"port {first_port + 1} is in use"):
            make(brokers=2, first_port=first_port)
    cluster = make(brokers=2, first_port=first_port)
    assert [broker.port for broker in cluster.brokers] == [first_port, first_port + 1]


def _first_of_free_ports(count: int) -> int:
    while True:
        first_port = ReservedPort.pick()
        first_port.close()
        if all(is_free(first_port.port + index) for index in range(count)):
            return first_port.port


def test_brokers_with_metrics_have_a_port_each_for_them_and_keep_it(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BARNABAS_METRICS_PORT", "1")
    cluster = make(metrics=True, brokers=2)
    cluster.start()
    urls = [broker.metrics_url for broker in cluster.brokers]
    for broker in cluster.brokers:
        config = load_config(file=broker.settings_file)
        assert broker.metrics_url == f"http://{config.metrics_host}:{config.metrics_port}/metrics"
        assert broker.process is not None
        environment = Path(f"/proc/{broker.process.pid}/environ").read_bytes()
        assert b"BARNABAS_METRICS_PORT" not in environment
    ports = {config.metrics_port for config in map(_config, cluster.brokers)}
    assert len(ports) == 2
    # The well-known ones are for the clusters of `up`, where another cluster could take them meanwhile.
    assert not ports & {9404, 9405}
    opened = RunningCluster.open(cluster.directory)
    assert [broker["metrics"] for broker in opened.describe()["brokers"]] == urls
    cluster.stop()
    cluster.close()
    again = make(metrics=True, brokers=2)
    assert [broker.metrics_url for broker in again.brokers] == urls
    again.close()
    assert [broker.metrics_url for broker in make(brokers=2, metrics=False).brokers] == [None, None]


def _config(broker: LocalBroker) -> BrokerConfig:
    return load_config(file=broker.settings_file)


@pytest.mark.parametrize(
    "name",
    ["broker.id", "listeners", "log.dirs", "log.dir", "zookeeper.connect", "metrics.port", "metrics.host"],
)
def test_a_setting_that_the_cluster_sets_is_refused_by_name(make: Make, name: str) -> None:
    with pytest.raises(InvalidConfiguration, match=name):
        make(metrics=True, settings={name: "1"})


def test_without_metrics_ports_their_settings_are_the_users(make: Make) -> None:
    make(settings={"metrics.port": "1", "metrics.host": "h"})


@pytest.mark.parametrize("connect", ["nowhere", "host:port", ":"])
def test_a_malformed_zookeeper_address_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, connect: str
) -> None:
    monkeypatch.setenv("BARNABAS_ZOOKEEPER", connect)
    with pytest.raises(DeployError, match=f"'{connect}' .BARNABAS_ZOOKEEPER.: expected host:port"):
        LocalCluster(tmp_path)
    # The directory is free again.
    monkeypatch.delenv("BARNABAS_ZOOKEEPER")
    LocalCluster(tmp_path).close()


def test_a_cluster_without_brokers_is_refused(make: Make) -> None:
    with pytest.raises(ValueError, match="brokers=0: expected at least 1"):
        make(brokers=0)


def test_the_error_for_an_unknown_broker_names_the_existing_ones(make: Make) -> None:
    with pytest.raises(DeployError, match=r"no broker 7 in .*; there are 1, 2"):
        make(brokers=2).kill(7)


_OWNER = """
import pathlib, sys
from barnabas.deploy import running_cluster
from barnabas.deploy.local import LocalCluster
stand_in = sys.argv[3]
running_cluster.wait_ready = lambda endpoints, timeout_s, check, security: check()
cluster = LocalCluster(
    sys.argv[1],
    zookeeper=sys.argv[2],
    command=lambda file: [sys.executable, "-c", stand_in, str(file)],
)
cluster.start()
cluster.pause(2)
print("started", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM, None], ids=["SIGKILL", "SIGTERM", "exit"])
def test_no_broker_outlives_the_program_that_runs_the_cluster(
    tmp_path: Path, srvr_answerer: str, ending: signal.Signals | None
) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(tmp_path), srvr_answerer, _STAND_IN],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "started\n"
        record = read_record(tmp_path)
        assert record is not None
        assert len(record.processes()) == 3
        assert record.owner == ProcessId.of(owner.pid)
        assert record.owner.pid != os.getpid()
        if ending is not None:
            owner.send_signal(ending)
    finally:
        owner.communicate(timeout=DEADLINE_S)
    wait_for(lambda: not record.is_running)


SECURE = SecurityConfiguration(tls=True, mechanism="SCRAM-SHA-256", acl=True)


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """The passwords that were written to ZooKeeper, at each start."""
    written: list[dict[str, str]] = []

    def store_users(
        connect: str, mechanism: ScramMechanism, passwords: Mapping[str, str], jaas_file: Path | None
    ) -> None:
        named = {"jaas_file": str(jaas_file)} if jaas_file else {}
        written.append({"mechanism": mechanism.value, **passwords, **named})

    monkeypatch.setattr("barnabas.deploy.local.store_users", store_users)
    return written


def test_a_broker_accepts_the_settings_of_a_secured_cluster(make: Make, stored: list[dict[str, str]]) -> None:
    cluster = make(security=SECURE, users={"alice": None}, settings={"super.users": "User:root"})
    cluster.start()
    broker = cluster.broker(2)
    config = load_config(file=broker.settings_file)
    assert str(config.listeners[0]) == f"SASL_SSL://127.0.0.1:{broker.port}"
    assert [principal.name for principal in config.super_users] == ["admin", "broker", "root"]
    assert broker.settings_file.stat().st_mode & 0o777 == 0o600
    assert cluster.security is not None
    assert stored == [{"mechanism": "SCRAM-SHA-256", **cluster.security.users}]


def test_the_next_start_is_secured_too_and_writes_only_what_it_must(
    make: Make, stored: list[dict[str, str]]
) -> None:
    first = make(brokers=1, security=SECURE, users={"alice": None, "bob": None})
    first.start()
    first.kill_all()
    first.close()
    second = make(users={"bob": "changed"})
    second.start()
    assert second.security is not None
    assert second.security.configuration == SECURE
    assert sorted(stored[1]) == ["admin", "bob", "broker", "mechanism"]
    assert stored[1]["bob"] == "changed"
    assert second.security.users["alice"] == stored[0]["alice"]
    opened = RunningCluster.open(second.directory)
    assert opened.security is not None
    assert opened.security.users == second.security.users
    secrets = [*second.security.users.values()]
    shown = (second.directory / "cluster.json").read_text() + json.dumps(second.describe())
    assert not [secret for secret in secrets if secret in shown]
    second.kill_all()
    second.close()

    third = make(security=SecurityConfiguration(mechanism="SCRAM-SHA-512"))
    third.start()
    assert stored[2] == {"mechanism": "SCRAM-SHA-512", **third.security.users}
    assert "alice" in stored[2]
    third.kill_all()
    third.close()

    fourth = make(security=SecurityConfiguration())
    fourth.start()
    assert fourth.security is None
    assert load_config(file=fourth.broker(1).settings_file).listeners[0].security_protocol == "PLAINTEXT"
    assert len(stored) == 3


def test_an_external_zookeeper_gets_the_login_that_the_brokers_are_given(
    make: Make, stored: list[dict[str, str]], tmp_path: Path
) -> None:
    make(brokers=1, security=SECURE, settings={"java.security.auth.login.config": "/etc/jaas"}).start()
    assert stored[0]["jaas_file"] == "/etc/jaas"


def test_the_clusters_own_zookeeper_gets_the_login_that_was_made(
    make: Make, stored: list[dict[str, str]]
) -> None:
    cluster = make(brokers=1, zookeeper=None, security=SECURE)
    assert isinstance(cluster.zookeeper, ZooKeeper)
    assert cluster.security is not None
    assert cluster.zookeeper.jaas_file == cluster.security.jaas_file
    cluster.check_settings()
    given = cluster._settings_of(1)["java.security.auth.login.config"]
    assert given == str(cluster.security.jaas_file)


def test_what_does_not_fit_together_is_refused_before_anything_is_made(make: Make) -> None:
    with pytest.raises(InvalidConfiguration, match="--user needs users"):
        make(users={"alice": None})
