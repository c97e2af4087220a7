"""`barnabas users` and `barnabas acls` with an admin client that keeps users and ACLs in memory."""

import io
import json
import stat
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import pytest

from barnabas.cli.exit_codes import FAILED, NOT_FOUND, OK, USAGE, CommandError
from barnabas.cli.main import build_parser
from barnabas.client import ClientQuotaEntity, ScramDeletion, ScramUpsertion
from barnabas.common.security import rights
from barnabas.common.security.acl import AclBinding, AclFilter
from barnabas.common.security.scram import ScramMechanism
from barnabas.deploy.security import ClusterSecurity
from barnabas.deploy.state import ClusterConfiguration, ClusterRecord, SecurityConfiguration, write_record
from barnabas.protocol.errors import InvalidConfiguration

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512


class MemoryAdmin:
    def __init__(self) -> None:
        self.passwords: dict[str, dict[ScramMechanism, str]] = {}
        self.quotas: dict[ClientQuotaEntity, dict[str, float]] = {}
        self.acls: set[AclBinding] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *outcome: object) -> None: ...

    async def describe_user_scram_credentials(self) -> dict[str, dict[ScramMechanism, int]]:
        return {user: dict.fromkeys(own, 4096) for user, own in self.passwords.items()}

    async def alter_user_scram_credentials(self, changes: list[ScramUpsertion | ScramDeletion]) -> None:
        for change in changes:
            own = self.passwords.setdefault(change.user, {})
            if isinstance(change, ScramUpsertion):
                own[change.mechanism] = change.password
            else:
                del own[change.mechanism]
        self.passwords = {user: own for user, own in self.passwords.items() if own}

    async def describe_client_quotas(self) -> dict[ClientQuotaEntity, dict[str, float]]:
        return self.quotas

    async def alter_client_quotas(
        self, changes: Mapping[ClientQuotaEntity, Mapping[str, float | None]]
    ) -> None:
        for entity, rates in changes.items():
            merged = self.quotas.get(entity, {}) | rates
            self.quotas[entity] = {name: rate for name, rate in merged.items() if rate is not None}

    async def create_acls(self, bindings: Iterable[AclBinding]) -> None:
        self.acls |= set(bindings)

    async def describe_acls(self, chosen: AclFilter) -> list[AclBinding]:
        return sorted(filter(chosen.fits, self.acls))

    async def delete_acls(self, filters: Iterable[AclFilter]) -> list[AclBinding]:
        gone = {binding for each in filters for binding in self.acls if each.fits(binding)}
        self.acls -= gone
        return sorted(gone)


Run = Callable[..., Any]


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MemoryAdmin:
    made = MemoryAdmin()
    monkeypatch.setattr("barnabas.cli.arguments.make_admin", lambda *_: made)
    monkeypatch.setenv("BARNABAS_DIR", str(tmp_path / "cluster"))
    monkeypatch.setattr("sys.stdin", io.StringIO())
    return made


@pytest.fixture
def run(admin: MemoryAdmin, capsys: pytest.CaptureFixture[str]) -> Run:
    """The lines that a command prints; with ``--json`` the value."""

    def run_one(*words: str) -> Any:
        options = build_parser(words[0]).parse_args([*words, "-b", "127.0.0.1:9092"])
        assert (options.run(options) or OK) == OK
        printed = capsys.readouterr().out
        return json.loads(printed) if "--json" in words else printed.splitlines()

    return run_one


@pytest.fixture
def security(tmp_path: Path) -> Callable[[SecurityConfiguration], ClusterSecurity]:
    """Make the directory that of a secured cluster at 127.0.0.1:9092."""

    def make(configuration: SecurityConfiguration) -> ClusterSecurity:
        directory = tmp_path / "cluster"
        made = ClusterSecurity(directory, configuration)
        made.folder.mkdir(parents=True)
        made.keep_user("admin", "of admin", "127.0.0.1:9092")
        broker = {"id": 1, "port": 9092, "directory": str(directory / "broker-1"), "log_dirs": []}
        record = ClusterRecord(
            directory=str(directory),
            host="127.0.0.1",
            zookeeper_connect="127.0.0.1:2181",
            configuration=ClusterConfiguration(brokers=1, security=configuration),
        )
        write_record(record)
        path = directory / "cluster.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"brokers": [broker]}))
        return made

    return make


def refused(run: Run, *words: str) -> CommandError:
    with pytest.raises(CommandError) as caught:
        run(*words)
    return caught.value


# -- ACLs --------------------------------------------------------------------------------------------------


def test_each_operation_is_granted_on_the_resources_that_have_it(run: Run) -> None:
    granted = run("acls", "grant", "alice", "read,write", "topic:orders", "group:g*")
    assert granted == [
        "User:alice: allow read on topic:orders",
        "User:alice: allow read on group:g*",
        "User:alice: allow write on topic:orders",
    ]
    run("acls", "grant", "*", "all", "topic:*", "--deny", "--host", "10.0.0.7", "--host", "10.0.0.8")
    run("acls", "grant", "User:bob", "Describe_Configs", "cluster")
    rows = run("acls", "list", "--json")
    assert [(row["principal"], row["permission"], row["operation"], row["resource"]) for row in rows] == [
        ("User:*", "deny", "all", "topic:*"),
        ("User:*", "deny", "all", "topic:*"),
        ("User:alice", "allow", "read", "topic:orders"),
        ("User:alice", "allow", "write", "topic:orders"),
        ("User:alice", "allow", "read", "group:g*"),
        ("User:bob", "allow", "describe-configs", "cluster"),
    ]
    assert [(row["resource_name"], row["pattern_type"], row["host"]) for row in rows[3:]] == [
        ("orders", "literal", "*"),
        ("g", "prefixed", "*"),
        ("kafka-cluster", "literal", "*"),
    ]
    assert [row["host"] for row in rows[:2]] == ["10.0.0.7", "10.0.0.8"]


def test_a_list_has_what_applies_to_a_resource(run: Run) -> None:
    run("acls", "grant", "alice", "read", "topic:orders", "topic:ord*", "topic:other", "topic:*")
    run("acls", "grant", "bob", "read", "topic:orders")

    def resources(*words: str) -> list[str]:
        return [row["resource"] for row in run("acls", "list", *words, "--json")]

    assert resources("alice", "topic:orders") == ["topic:*", "topic:ord*", "topic:orders"]
    assert resources("alice", "topic:ord*") == ["topic:ord*"]
    assert len(resources()) == 5
    assert run("acls", "list", "nobody") == ["no ACLs"]


def test_what_is_revoked_is_what_the_words_name(run: Run, admin: MemoryAdmin) -> None:
    run("acls", "grant", "alice", "read,write", "topic:orders", "topic:orders*")
    run("acls", "grant", "alice", "read", "topic:orders", "--deny")
    assert run("acls", "revoke", "alice", "read", "topic:orders") == [
        "1 ACL removed",
        "  User:alice: allow read on topic:orders",
    ]
    error = refused(run, "acls", "revoke", "alice", "read", "topic:orders")
    assert (error.exit_code, "acls list alice" in str(error)) == (NOT_FOUND, True)
    assert len(run("acls", "revoke", "alice", "read", "topic:orders", "--deny", "--json")) == 1
    run("acls", "grant", "bob", "read", "topic:orders")
    assert len(run("acls", "revoke", "alice", "--all", "--json")) == 3
    assert [str(binding.entry.principal) for binding in admin.acls] == ["User:bob"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["alice", "raed", "topic:t"], "did you mean read"),
        (["alice", "read", "topics:t"], "did you mean topic"),
        (["alice", "read", "orders"], "expected TYPE:NAME"),
        (["alice", "read", "topic:"], "expected topic:NAME"),
        (["alice", "read", "cluster:other"], "expected cluster"),
        (["alice", "read", "cluster"], "no operation read on cluster"),
        (["alice", "write", "group:g", "group:h*"], r"no operation write on group:g, group:h\*"),
        (["", "read", "topic:t"], "expected the name of a user"),
    ],
)
def test_words_that_mean_nothing_are_refused(
    run: Run, admin: MemoryAdmin, words: list[str], complaint: str
) -> None:
    with pytest.raises(CommandError, match=complaint) as caught:
        run("acls", "grant", *words)
    assert caught.value.exit_code == USAGE
    assert not admin.acls


def test_revoking_needs_either_all_or_names(run: Run) -> None:
    for words in (["alice"], ["alice", "read"], ["alice", "read", "topic:t", "--all"]):
        assert refused(run, "acls", "revoke", *words).exit_code == USAGE


def test_the_text_of_a_resource_is_read_back() -> None:
    for text in ("topic:a:b", "topic:*", "group:g*", "cluster", "transactional-id:x", "user:alice"):
        assert rights.resource_text(rights.resource_of(text)) == text


# -- users -------------------------------------------------------------------------------------------------


def test_a_user_of_another_cluster_gets_a_random_password_that_is_printed_once(
    run: Run, admin: MemoryAdmin
) -> None:
    made = run("users", "create", "alice", "--json")
    assert made["mechanisms"] == ["SCRAM-SHA-256", "SCRAM-SHA-512"]
    assert len(made["password"]) == 32
    assert admin.passwords == {"alice": {SHA_256: made["password"], SHA_512: made["password"]}}
    assert refused(run, "users", "create", "alice").exit_code == FAILED


def test_a_password_comes_from_a_file_and_is_not_printed(
    run: Run, admin: MemoryAdmin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "password"
    path.write_text(" a secret \n")
    said = run("users", "create", "alice", "--password-file", str(path), "--mechanism", "scram-sha-512")
    assert admin.passwords["alice"] == {SHA_512: " a secret "}
    assert "secret" not in "".join(said)
    monkeypatch.setattr("sys.stdin", io.StringIO("typed\nmore\n"))
    run("users", "alter", "alice", "--password-file", "-")
    # The mechanisms that the user has.
    assert admin.passwords["alice"] == {SHA_512: "typed"}
    path.write_text("\n")
    assert refused(run, "users", "alter", "alice", "--password-file", str(path)).exit_code == USAGE


def test_a_typed_password_is_asked_for_twice(
    run: Run, admin: MemoryAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = ["one", "another", "same", "same", ""]
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("getpass.getpass", lambda prompt: typed.pop(0))
    assert refused(run, "users", "create", "alice").exit_code == USAGE
    assert not admin.passwords
    run("users", "create", "alice")
    assert admin.passwords["alice"][SHA_256] == "same"
    run("users", "alter", "alice")
    assert not typed
    assert len(admin.passwords["alice"][SHA_256]) == 32


def test_quotas_are_changed_without_a_new_password(run: Run, admin: MemoryAdmin) -> None:
    run("users", "create", "alice", "--quota", "producer_byte_rate=1000", "--quota", "request_percentage=0.5")
    before = dict(admin.passwords["alice"])
    run("users", "alter", "alice", "--quota", "producer_byte_rate=2000", "--no-quota", "request_percentage")
    assert admin.quotas == {ClientQuotaEntity(user="alice"): {"producer_byte_rate": 2000}}
    assert admin.passwords["alice"] == before
    admin.quotas[ClientQuotaEntity(user="alice", client_id="c")] = {"producer_byte_rate": 1}
    admin.quotas[ClientQuotaEntity(user="bob")] = {"consumer_byte_rate": 3}
    assert run("users", "list", "--json") == [
        {
            "user": "alice",
            "mechanisms": ["SCRAM-SHA-256", "SCRAM-SHA-512"],
            "quotas": {"producer_byte_rate": 2000},
        },
        {"user": "bob", "mechanisms": [], "quotas": {"consumer_byte_rate": 3}},
    ]
    # Kafka allows it.
    admin.quotas[ClientQuotaEntity(user="bob")] = {
        "consumer_byte_rate": 0.5,
        "request_percentage": float("inf"),
    }
    assert "consumer_byte_rate=0.5 request_percentage=inf" in "\n".join(run("users", "list"))
    for wrong in (
        "producer_byte_rat=1",
        "producer_byte_rate=x",
        "producer_byte_rate=-1",
        "request_percentage=nan",
    ):
        assert refused(run, "users", "alter", "alice", "--quota", wrong).exit_code == USAGE


def test_a_user_that_does_not_exist_is_not_changed(run: Run, admin: MemoryAdmin) -> None:
    run("users", "create", "alice")
    for action in ("alter", "delete"):
        error = refused(run, "users", action, "alicia")
        assert (error.exit_code, "did you mean alice" in str(error)) == (NOT_FOUND, True)
    run("users", "delete", "alice")
    assert not admin.passwords


def test_users_of_the_local_cluster_have_ready_settings(
    run: Run, admin: MemoryAdmin, security: Callable[[SecurityConfiguration], ClusterSecurity]
) -> None:
    local = security(SecurityConfiguration(mechanism="SCRAM-SHA-512"))
    made = run("users", "create", "alice", "--json")
    password = local.users["alice"]
    assert made == {
        "user": "alice",
        "created": True,
        "mechanisms": ["SCRAM-SHA-512"],
        "clients": str(local.clients_of("alice")),
    }
    assert admin.passwords == {"alice": {SHA_512: password}}
    settings = local.clients_of("alice") / "confluent.json"
    assert json.loads(settings.read_text())["sasl.password"] == password
    assert stat.S_IMODE(settings.stat().st_mode) == 0o600

    run("users", "alter", "alice", "--password", "another")
    assert json.loads(settings.read_text())["sasl.password"] == local.users["alice"] == "another"
    run("users", "delete", "alice")
    assert not settings.exists()
    assert "alice" not in local.users
    for words in (["create", "broker"], ["delete", "admin"]):
        with pytest.raises(InvalidConfiguration, match="the cluster makes this user itself"):
            run("users", *words)


def test_users_who_log_in_by_plain_are_those_of_up(
    run: Run, security: Callable[[SecurityConfiguration], ClusterSecurity]
) -> None:
    security(SecurityConfiguration(mechanism="PLAIN"))
    assert "barnabas up --user" in str(refused(run, "users", "create", "alice"))
