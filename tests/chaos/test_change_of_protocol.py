"""A cluster that is open to all becomes a secured one, broker by broker, under load.

The steps are those of Kafka's manual, and of the page on security of ours: a second listener, the clients,
the brokers among themselves, the end of the first listener, ACLs, ZooKeeper. In each step brokers of two
states run side by side. Nothing is lost, every broker hands over before it stops, and nobody is refused.
"""

import subprocess
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from kazoo.client import KazooClient

from barnabas.chaos.checker import RECORDS, check
from barnabas.chaos.history import Log
from barnabas.chaos.load import Load, read_everything, replica_logs
from barnabas.client import AclBinding, AclEntry, Operation, ResourcePattern, ScramUpsertion
from barnabas.client.blocking import Admin
from barnabas.common.security.acl import Permission, ResourceType
from barnabas.common.security.jaas import parse_jaas_file
from barnabas.common.security.principal import Principal
from barnabas.common.security.scram import ScramMechanism
from barnabas.deploy.client_settings import client_settings
from barnabas.deploy.local_broker import broker_command
from barnabas.deploy.ports import ReservedPort
from barnabas.deploy.security import ADMIN, BROKER, ClusterSecurity
from barnabas.deploy.zookeeper import ZooKeeper

from ..cluster.tools import ClusterView, StartCluster, ZooKeeperClient
from ..compat.clients import Unavailable
from ..compat.java import java_command
from .runs import BROKER as QUICK
from .runs import SECURED, chaos_test, thorough

ALICE = "alice"
BROKERS = 1, 2, 3
TOPICS = "open", "secured"
PARTITIONS = 4
MECHANISM = ScramMechanism.SHA_256
Settings = dict[str, str]


class LenientZooKeeper(ZooKeeper):
    """With logins it still serves those who have none, as an ensemble does while brokers get theirs."""

    is_lenient = True

    def command(self) -> list[str]:
        command = super().command()
        file = Path(command[-1])
        lines = file.read_text().splitlines()
        if self.is_lenient:
            file.write_text("\n".join(line for line in lines if not line.startswith("enforce.auth")) + "\n")
        return command


class Change:
    """The cluster, and settings that are added to those of each broker at its next start."""

    def __init__(self, start_cluster: StartCluster, folder: Path) -> None:
        self.security = ClusterSecurity(folder / "secured", SECURED)
        self.security.prepare(BROKERS, {ALICE: None}, datetime.now(UTC))
        self.zookeeper = LenientZooKeeper(folder / "zookeeper")
        self.zookeeper.start()
        self._added: Settings = {}
        self._ports = {broker: ReservedPort.pick() for broker in BROKERS}
        self.cluster = start_cluster(zookeeper=self.zookeeper.connect, settings=QUICK, command=self._command)
        self.view = ClusterView(self.cluster)
        for topic in TOPICS:
            self.view.create_topic(topic, PARTITIONS, 3, min_insync_replicas="2")
        self.loads: list[Load] = []

    def _command(self, settings_file: Path) -> list[str]:
        broker = int(settings_file.parent.name.removeprefix("broker-"))
        if self._added:
            added = self.security.broker_settings(broker) | self._added
            plain, secured = self.cluster.broker(broker).endpoint, self._ports[broker].port
            added["listeners"] = added["listeners"].format(plain=plain, secured=f"127.0.0.1:{secured}")
            kept = [
                line for line in settings_file.read_text().splitlines() if line.split("=")[0] not in added
            ]
            # As in a properties file, where a backslash escapes.
            lines = [f"{name}={value}".replace("\\", "\\\\") for name, value in added.items()]
            settings_file.write_text("\n".join([*kept, *lines]) + "\n")
        return broker_command(settings_file)

    def secured_clients(self, user: str = ADMIN) -> dict[str, str]:
        bootstrap = ",".join(f"127.0.0.1:{port.port}" for port in self._ports.values())
        return client_settings("barnabas", self.security.access(bootstrap, user))

    def roll(self, *removed: str, **added: str) -> None:
        """Restart each broker with other settings, once the one before is in sync."""
        for name in removed:
            del self._added[name]
        self._added |= {name.replace("_", "."): value for name, value in added.items()}
        for broker in BROKERS:
            assert self.cluster.stop_broker(broker), f"broker {broker} had to be killed"
            self.cluster.launch_broker(broker)
            for topic in TOPICS:
                self.view.wait_isr(topic, 3)
            for load in self.loads:
                load.wait_progress(f"after the restart of broker {broker} with {added}, without {removed}")

    def judge(self, ended: Sequence[Load]) -> None:
        """Check the history of each load, with the files of all replicas."""
        for load in ended:
            final = read_everything(self.secured_clients(), load.partitions)
            load.history.add(*(Log("client", *log) for log in final.items()))
        self.cluster.stop()
        for load in ended:
            load.history.add(*replica_logs(self.cluster, load.partitions))
            verdict = check(load.history, RECORDS)
            print(f"{verdict}; longest pause {load.longest_pause_s:.1f} s", flush=True)
            assert verdict.is_good, str(verdict)
            assert verdict.acknowledged > 1_000
            assert load.problems == []

    def znodes(self) -> ZooKeeperClient:
        login = parse_jaas_file(self.security.jaas_file.read_text())["Client"][0]
        return ZooKeeperClient(self.zookeeper.connect, login)

    def refusals(self) -> list[str]:
        """The lines of brokers about peers that they refused."""
        return [
            line
            for broker in self.cluster.brokers
            for line in broker.server_log.read_text().splitlines()
            if any(word in line for word in (" is refused ", "and is none", "failed authentication"))
        ]


def make_users(change: Change) -> None:
    """With any SCRAM tool, while everybody may."""
    with Admin(bootstrap_servers=change.cluster.bootstrap) as admin:
        users = [
            ScramUpsertion(name, change.security.users[name], MECHANISM) for name in (ADMIN, BROKER, ALICE)
        ]
        admin.alter_user_scram_credentials(users)


@chaos_test(0)
@thorough
def test_an_open_cluster_is_secured_under_load(start_cluster: StartCluster, tmp_path: Path) -> None:
    change = Change(start_cluster, tmp_path)
    try:
        secure(change)
    finally:
        change.cluster.kill_all()
        change.zookeeper.stop()


def secure(change: Change) -> None:
    make_users(change)
    plain = Load(change.cluster.bootstrap, "open", PARTITIONS, records_per_s=200)
    with plain:
        change.loads = [plain]
        print("a second listener", flush=True)
        change.roll(
            listeners="PLAINTEXT://{plain},SASL_SSL://{secured}",
            security_inter_broker_protocol="PLAINTEXT",
            authorizer_class_name="",
            super_users="User:admin;User:broker;User:ANONYMOUS",
        )
        with Load(change.secured_clients(ALICE), "secured", PARTITIONS, records_per_s=200) as secured:
            change.loads = [plain, secured]
            print("brokers among themselves", flush=True)
            change.roll(security_inter_broker_protocol="SASL_SSL")
            plain.stop()
            change.loads = [secured]
            change.view.clients = change.secured_clients()
            print("the end of the first listener", flush=True)
            change.roll(listeners="SASL_SSL://{secured}", super_users="User:admin;User:broker")
            print("ACLs", flush=True)
            change.roll("authorizer.class.name", **{"allow.everyone.if.no.acl.found": "true"})
            grant(change)
            change.roll("allow.everyone.if.no.acl.found")
            secure_zookeeper(change)
    assert change.refusals() == []
    change.judge([plain, secured])


def grant(change: Change) -> None:
    """The rights that Alice uses already. The first ACL of a topic closes it to others: all come at once."""
    topic = ResourcePattern(ResourceType.TOPIC, "secured")
    alice = Principal.user(ALICE)
    with change.view.admin() as admin:
        admin.create_acls(
            AclBinding(topic, AclEntry(alice, "*", operation, Permission.ALLOW))
            for operation in (Operation.READ, Operation.WRITE, Operation.DESCRIBE)
        )


def secure_zookeeper(change: Change) -> None:
    print("ZooKeeper", flush=True)
    change.zookeeper.jaas_file = change.security.jaas_file
    change.zookeeper.restart()
    change.roll(**change.security.zookeeper_settings)
    change.roll(zookeeper_set_acl="true")
    migrate(change)
    change.zookeeper.is_lenient = False
    change.zookeeper.restart()
    change.roll()


def migrate(change: Change) -> None:
    """Kafka's own tool gives the znodes that exist their owner."""
    login = f"-Djava.security.auth.login.config={change.security.jaas_file}"
    with change.znodes() as client:
        assert any(is_open(client, path) for path in walk(client, "/brokers"))
    try:
        java, *rest = java_command()
    except Unavailable as error:
        print(f"the znodes keep their ACLs: {error}", flush=True)
        return
    tool = ("kafka.admin.ZkSecurityMigrator", "--zookeeper.acl=secure")
    words = [java, login, *rest, *tool, f"--zookeeper.connect={change.zookeeper.connect}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    with change.znodes() as client:
        for top in ("/brokers", "/config", "/kafka-acl", "/controller_epoch"):
            assert [path for path in walk(client, top) if is_open(client, path)] == []


def is_open(client: KazooClient, path: str) -> bool:
    """Whether anybody may change the znode."""
    acls, _ = client.get_acls(path)
    return any(acl.id.scheme == "world" and acl.perms != 1 for acl in acls)


def walk(client: KazooClient, path: str) -> Iterator[str]:
    yield path
    for name in client.get_children(path):
        yield from walk(client, f"{path}/{name}")
