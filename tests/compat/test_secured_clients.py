"""Every client over SASL_SSL, as a user with few rights; the table in docs/compatibility.md must show it.

``COMPAT_BOOTSTRAP`` with ``COMPAT_SECURITY=DIR``, the folder of its `ClusterSecurity`, names another cluster,
such as Apache Kafka, with the settings of `SETTINGS`.
"""

import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from barnabas.deploy.client_settings import (
    COMMAND_CONFIG_FILE,
    ClientAccess,
    client_settings,
    write_client_files,
)
from barnabas.deploy.security import ADMIN, ClusterSecurity
from barnabas.deploy.state import SecurityConfiguration
from tests.support.names import fresh_name
from tests.support.waiting import wait_for

from . import table
from .clients import NEWEST_JAVA, SECURED_CLIENTS, ClientError, Driver, Unsupported
from .conftest import EXTERNAL, Shared, StartDriver
from .extent import is_full
from .features import record, refused
from .java import ACL_COMMAND, CONFIG_COMMAND, CONSOLE_CONSUMER, GROUPS, TOPIC_COMMAND, Tool

pytestmark = pytest.mark.timeout(300)
SCRAM_256, SCRAM_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
USER, PASSWORD = "alice", "alice's own"
OPEN, CLOSED = fresh_name("open-"), fresh_name("closed-")
"""The prefix of the names that the user may use, and a topic that it may not."""
TOPIC_REFUSED, LOGIN_REFUSED = 29, 58
SESSION_MS: Final = 4_000
SECURITY: Final = SecurityConfiguration(tls=True, mechanism=SCRAM_256, acl=True)
SETTINGS: Final = {
    "sasl.enabled.mechanisms": f"{SCRAM_256},{SCRAM_512}",
    f"listener.name.sasl_ssl.{SCRAM_512.lower()}.connections.max.reauth.ms": str(SESSION_MS),
    "connection.failed.authentication.delay.ms": "10",
    "group.initial.rebalance.delay.ms": "0",
}
_EXPIRED: Final = re.compile(r":(\d+)#\d+ on SASL_SSL closed: its session has expired")


@dataclass(frozen=True)
class Secured:
    bootstrap: str
    ca_file: str
    command_config: str
    """The file with which Kafka's tools connect as admin."""
    logs: Sequence[Path]
    """Of our brokers."""

    def access(self, mechanism: str = SCRAM_256, **others: str) -> Mapping[str, str]:
        """The arguments of a driver's command."""
        login = {"mechanism": mechanism, "user": USER, "password": PASSWORD}
        return {"ca_file": self.ca_file, **login, **others}

    def expired_ports(self) -> set[str]:
        """The ports of clients whose connections were closed at the end of their sessions."""
        found = [number for log in self.logs for number in _EXPIRED.findall(log.read_text())]
        return {f"{int(number):04X}" for number in found}


@pytest.fixture(scope="module")
def secured(shared: Shared) -> Iterator[Secured]:
    logs = []
    with ExitStack() as stack:
        if EXTERNAL:
            if "COMPAT_SECURITY" not in os.environ:
                pytest.skip("needs COMPAT_SECURITY, the folder with the users of COMPAT_BOOTSTRAP")
            bootstrap = EXTERNAL
            security = ClusterSecurity(Path(os.environ["COMPAT_SECURITY"]), SECURITY)
        else:
            made = shared("secured", SETTINGS, brokers=2, security=SECURITY, users={USER: PASSWORD})
            cluster = stack.enter_context(made)
            cluster.start()
            assert cluster.security is not None
            bootstrap, security = cluster.bootstrap, cluster.security
            logs = [broker.server_log for broker in cluster.brokers]
        access = security.access(bootstrap)
        assert access.ca_file is not None
        prepare(AdminClient(client_settings("confluent", access)))
        command_config = security.write_clients(bootstrap, [ADMIN])[0] / COMMAND_CONFIG_FILE
        yield Secured(bootstrap, str(access.ca_file), str(command_config), logs)


def prepare(admin: AdminClient) -> None:
    """The topics, the rights of the user, and its password for the other mechanism."""
    topics = [NewTopic(topic, 2, 1) for topic in (CLOSED, *map(topic_of, SECURED_CLIENTS))]
    allowed = [
        AclBinding(
            kind, OPEN, ResourcePatternType.PREFIXED, f"User:{USER}", "*", operation, AclPermissionType.ALLOW
        )
        for kind, operation in (
            (ResourceType.TOPIC, AclOperation.READ),
            (ResourceType.TOPIC, AclOperation.WRITE),
            (ResourceType.GROUP, AclOperation.READ),
            (ResourceType.TRANSACTIONAL_ID, AclOperation.WRITE),
        )
    ]
    credentials = [
        UserScramCredentialUpsertion(USER, ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
    ]
    changes = admin.create_topics(topics) | admin.create_acls(allowed)
    for change in [*changes.values(), *admin.alter_user_scram_credentials(credentials).values()]:
        change.result(30)


def topic_of(client: str) -> str:
    return OPEN + client.replace(" ", "-")


@pytest.fixture(params=SECURED_CLIENTS)
def driver(request: pytest.FixtureRequest, secured: Secured, driver_of: StartDriver) -> Iterator[Driver]:
    """A client that uses the cluster as the user."""
    found = driver_of(request.param)
    found.ask("access", **secured.access())
    yield found
    if found.is_usable:
        found.ask("access")


Row = Callable[[Secured, Driver], str | None]
ROWS: dict[str, Row] = {}


def row(name: str) -> Callable[[Row], Row]:
    def register(tried: Row) -> Row:
        ROWS[name] = tried
        return tried

    return register


def written(driver: Driver, command: str, **arguments: Any) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = driver.ask(command, **arguments)
    for result in results:
        if "error" in result:
            raise ClientError(**result["error"])
    return results


@row("SCRAM-SHA-256: an idempotent producer, and a group")
def round_trip(secured: Secured, driver: Driver) -> None:
    topic = topic_of(driver.name)
    sent = [record(topic, f"{number}", number % 2) for number in range(20)]
    written(driver, "produce", bootstrap=secured.bootstrap, records=sent, idempotent=True)
    driver.ask(
        "member_start", bootstrap=secured.bootstrap, group=fresh_name(OPEN), topics=[topic], auto_commit=True
    )
    wait_for(
        lambda: len(driver.ask("member_status")["read"]) >= len(sent), lambda: driver.ask("member_status")
    )
    assert driver.ask("member_stop")["errors"] == []


@row("a topic without rights: the error for it")
def denied_topic(secured: Secured, driver: Driver) -> None:
    produce = {"bootstrap": secured.bootstrap, "records": [record(CLOSED, "no")], "timeout_s": 10}
    refused(lambda: written(driver, "produce", **produce), TOPIC_REFUSED, "opic authorization failed")


@row("a wrong password: the error for it")
def wrong_password(secured: Secured, driver: Driver) -> str | None:
    driver.ask("access", **secured.access(password="wrong"))
    with pytest.raises(ClientError) as caught:
        driver.ask("list_topics", bootstrap=secured.bootstrap)
    if caught.value.code == LOGIN_REFUSED or "uthentication" in str(caught.value):
        return None
    if "Timeout" in str(caught.value):
        return "a time-out"
    wait_for(lambda: "uthentication" in driver.said, lambda: f"{caught.value}\n{driver.said}", 10)
    return "in its log alone"


@row("transactions")
def transaction(secured: Secured, driver: Driver) -> None:
    topic = topic_of(driver.name)
    sent = [record(topic, f"transaction {number}", None, key=f"{number}") for number in range(6)]
    driver.ask("txn_start", bootstrap=secured.bootstrap, transactional_id=fresh_name(OPEN))
    driver.ask("txn_begin")
    if driver.name == "franz-go":
        sent = [one | {"partition": number % 2} for number, one in enumerate(sent)]
    written(driver, "txn_send", records=sent)
    driver.ask("txn_commit")
    driver.ask("txn_close")


def check(row: str, client: str, cell: str) -> None:
    if not EXTERNAL:
        table.check(table.SECURITY, row, client, cell)
    print(row, client, cell)


@pytest.mark.parametrize("name", ROWS)
def test_a_client_over_sasl_ssl(secured: Secured, driver: Driver, name: str) -> None:
    try:
        cell = ROWS[name](secured, driver) or "yes"
    except Unsupported:
        cell = table.NOT_THERE
    check(name, driver.name, cell)


@pytest.mark.skipif(not is_full(), reason="only with the full product of clients and features")
def test_clients_authenticate_again_on_their_connections(
    secured: Secured, driver_of: StartDriver, tmp_path: Path
) -> None:
    """KIP-368; librdkafka is in tests/cluster/test_sasl.py. Other clients connect again."""
    drivers = [driver_of(name) for name in ("kafkajs", NEWEST_JAVA, "franz-go")]
    for driver in drivers:
        driver.ask("access", **secured.access(SCRAM_512))
        load = {"topic": topic_of(driver.name), "partitions": 2, "interval_ms": 250}
        driver.ask("load_start", bootstrap=secured.bootstrap, **load)
    brokers = {f"{int(address.rpartition(':')[2]):04X}" for address in secured.bootstrap.split(",")}
    used: dict[str, set[str]] = {driver.name: set() for driver in drivers}
    end = time.monotonic() + 2.2 * SESSION_MS / 1000

    def have_lived() -> bool:
        for driver in drivers:
            used[driver.name] |= local_ports(driver.pid, brokers)
        return time.monotonic() > end

    wait_for(have_lived)
    for driver in drivers:
        done = driver.ask("load_stop", path=str(tmp_path / driver.name))
        driver.ask("access")
        assert done["failed"] == 0, (driver.name, done["errors"])
        assert done["acknowledged"] == done["sent"] > 0
        assert used[driver.name]
    expired = secured.expired_ports()
    for driver in drivers:
        # A stall of the machine may cost a client one turn.
        assert len(used[driver.name] & expired) < 2, driver.name


def local_ports(pid: int, remote_ports: Collection[str]) -> set[str]:
    """The ports of a process that are connected to one of the others, all in hexadecimal digits."""
    opened = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            opened.add(os.readlink(path))
    listed = [line.split() for name in ("tcp", "tcp6") for line in _lines(f"/proc/{pid}/net/{name}")]
    return {
        words[1].rpartition(":")[2]
        for words in listed
        if words[2].rpartition(":")[2] in remote_ports and f"socket:[{words[9]}]" in opened
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()[1:]


def test_kafkas_tools_make_a_user_give_it_rights_and_work_as_it(
    secured: Secured, tool: Tool, tmp_path: Path
) -> None:
    user, topic, group = fresh_name("user"), fresh_name("tools"), fresh_name("tools")
    server = ("--bootstrap-server", secured.bootstrap)
    for password in ("right", "wrong"):
        access = ClientAccess(
            bootstrap=secured.bootstrap,
            ca_file=Path(secured.ca_file),
            mechanism=SCRAM_256,
            user=user,
            password=password,
        )
        write_client_files(tmp_path / password, access)
    own, wrong = (str(tmp_path / password / COMMAND_CONFIG_FILE) for password in ("right", "wrong"))

    def as_admin(name: str, *words: str) -> str:
        return tool(name, *server, "--command-config", secured.command_config, *words)

    def complaint(config: str, name: str, *words: str) -> str:
        _, said, complaints = tool.run(name, *server, "--command-config", config, *words)
        return said + complaints

    entity = ("--entity-type", "users", "--entity-name", user)
    changed = as_admin(CONFIG_COMMAND, *entity, "--alter", "--add-config", f"{SCRAM_256}=[password=right]")
    assert "Completed updating config" in changed
    as_admin(TOPIC_COMMAND, "--create", "--topic", topic, "--partitions", "1", "--replication-factor", "2")
    as_admin(CONFIG_COMMAND, *entity, "--alter", "--add-config", "producer_byte_rate=1000000")
    described = as_admin(CONFIG_COMMAND, *entity, "--describe")
    assert "producer_byte_rate=1000000.0" in described
    assert f"{SCRAM_256}=iterations=4096" in described
    list_topics = (TOPIC_COMMAND, "--list")
    assert "Authentication failed" in complaint(wrong, *list_topics)
    # A broker hears of a user a little later.
    wait_for(lambda: "Authentication failed" not in complaint(own, *list_topics), "the new user")
    denied = complaint(own, TOPIC_COMMAND, "--create", "--topic", f"{topic}-2")
    assert "Topic authorization failed" in denied
    allowed = ("--add", "--allow-principal", f"User:{user}", "--topic", topic)
    as_admin(ACL_COMMAND, *allowed, "--producer")
    as_admin(ACL_COMMAND, *allowed, "--consumer", "--group", group)
    wait_for(lambda: topic in complaint(own, *list_topics).splitlines(), "the rights of the new user")
    lines = "".join(f"line {number}\n" for number in range(5))
    tool("kafka.tools.ConsoleProducer", *server, "--topic", topic, "--producer.config", own, stdin=lines)
    reading = ("--group", group, "--from-beginning", "--max-messages", "5", "--timeout-ms", "30000")
    assert tool(CONSOLE_CONSUMER, *server, "--topic", topic, "--consumer.config", own, *reading) == lines
    ends = tool(*GROUPS, *server, "--command-config", own, "--describe", "--group", group)
    assert any(line.split()[1:5] == [topic, "0", "5", "5"] for line in ends.splitlines()), ends
    versions = tool("kafka.admin.BrokerApiVersionsCommand", *server, "--command-config", own)
    assert versions.count("SaslAuthenticate(36): 0 to 2 [usable: 2]") == 2


def test_the_table_has_no_row_that_is_not_tried() -> None:
    rows = table.read(table.PAGE.read_text(encoding="utf-8"), table.SECURITY)
    assert list(rows) == list(ROWS)
    assert all(list(cells) == list(SECURED_CLIENTS) for cells in rows.values())
