"""Which quota holds for a client, the charges of clients, and how many clients are remembered."""

import itertools
from collections.abc import Mapping

import pytest

from barnabas.broker.security import quota_table
from barnabas.broker.security.client_quotas import ClientQuotas, Mutation
from barnabas.broker.security.quota_table import LEVELS, QuotaEntity, QuotaTable, most_specific
from barnabas.broker.security.rates import SampledRate, Windows
from barnabas.zookeeper.configs import Entity
from barnabas.zookeeper.znodes import StoredConfig

WINDOWS = Windows(11, 1_000)
# As Apache Kafka documents it, the most specific first.
DOCUMENTED = [
    "users/alice/clients/x",
    "users/alice/clients/<default>",
    "users/alice",
    "users/<default>/clients/x",
    "users/<default>/clients/<default>",
    "users/<default>",
    "clients/x",
    "clients/<default>",
]
COUNTED_AS = [("alice", "x")] * 2 + [("alice", "")] + [("alice", "x")] * 2 + [("alice", "")] + [("", "x")] * 2
FOREIGN = [
    "users/bob",
    "users/alice/clients/y",
    "users/bob/clients/x",
    "users/<default>/clients/y",
    "clients/y",
]


def stored(**quotas: str) -> StoredConfig:
    return StoredConfig({name: value for name, value in quotas.items() if value}, 1, 1)


def quotas_of(settings: Mapping[str, Mapping[str, str]]) -> ClientQuotas:
    quotas = ClientQuotas()
    quotas.take({Entity.of_key(key): StoredConfig(values, 1, 1) for key, values in settings.items()})
    return quotas


def test_the_most_specific_quota_holds_whatever_others_there_are() -> None:
    quotas = ClientQuotas()
    for count in range(len(DOCUMENTED) + 1):
        for present in itertools.combinations(range(len(DOCUMENTED)), count):
            keys = [DOCUMENTED[index] for index in present] + FOREIGN
            bounds = {key: number for number, key in enumerate(keys)}
            quotas = quotas_of({key: {"consumer_byte_rate": str(n)} for key, n in bounds.items()})
            applied = most_specific(quotas._stored["consumer_byte_rate"], "alice", "x")
            if not present:
                assert applied is None
            else:
                first = present[0]
                assert applied == (*COUNTED_AS[first], bounds[DOCUMENTED[first]])


def test_names_are_sanitized_and_an_empty_client_id_has_the_default() -> None:
    bounds = {
        QuotaEntity("CN%3Da%20b", None): 1.0,
        QuotaEntity("%3Cdefault%3E", None): 2.0,
        QuotaEntity(None, "<default>"): 3.0,
    }
    assert most_specific(bounds, "CN=a b", "x") == ("CN=a b", "", 1)
    assert most_specific(bounds, "<default>", "x") == ("<default>", "", 2)
    assert most_specific(bounds, "other", "") == ("", "", 3)
    assert len(LEVELS) == 8


def test_clients_that_a_quota_does_not_distinguish_count_together() -> None:
    quotas = quotas_of(
        {"users/alice": {"producer_byte_rate": "100"}, "clients/<default>": {"producer_byte_rate": "100"}}
    )
    assert quotas.charge_produced("alice", "x", 1_000, 0) == 0
    assert quotas.charge_produced("alice", "y", 500, 0) == 5_000
    # Each client id of the default on its own.
    assert quotas.charge_produced("bob", "x", 1_000, 0) == 0
    assert quotas.charge_produced("bob", "y", 1_000, 0) == 0
    assert quotas.charge_produced("carol", "x", 500, 0) == 5_000


def test_a_change_takes_effect_at_once_and_what_was_used_stays_counted() -> None:
    alice = Entity.user("alice")
    quotas = ClientQuotas()
    assert not quotas.is_active
    assert quotas.charge_produced("alice", "x", 10**9, 0) == 0
    quotas.take({alice: stored(producer_byte_rate="100", consumer_byte_rate="5")})
    assert quotas.is_active
    assert quotas.charge_produced("alice", "x", 2_000, 0) == 10_000
    quotas.take({alice: stored(producer_byte_rate="1000")})
    assert quotas.charge_produced("alice", "x", 0, 0) == 0
    assert quotas.charge_fetched("alice", "x", 10**9, 0) == 0
    quotas.take({alice: stored(producer_byte_rate="50")})
    assert quotas.charge_produced("alice", "x", 0, 0) == 30_000
    # Unreadable settings leave the former ones.
    quotas.take({alice: StoredConfig({}, 0, 1, is_readable=False)})
    assert quotas.charge_produced("alice", "x", 0, 0) == 30_000
    quotas.take({alice: StoredConfig()})
    assert quotas.charge_produced("alice", "x", 10**9, 0) == 0
    assert not quotas.is_active


def test_unusable_stored_quotas_are_ignored_and_credentials_not_shown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    values = {
        "producer_byte_rate": "1.5",
        "consumer_byte_rate": "-1",
        "request_percentage": "nan",
        "controller_mutation_rate": "inf",
        "SCRAM-SHA-256": "salt=c2FsdA==",
    }
    with caplog.at_level("INFO"):
        assert not quotas_of({"users/alice": values}).is_active
    assert len([line for line in caplog.messages if line.endswith("ignored")]) == 4
    assert "c2FsdA" not in caplog.text


def test_an_answer_that_is_not_sent_is_given_back() -> None:
    quotas = quotas_of({"clients/x": {"consumer_byte_rate": "100"}})
    assert quotas.charge_fetched("alice", "x", 1_000, 0) == 0
    assert quotas.charge_fetched("alice", "x", 1_000, 0) == 10_000
    quotas.give_back_fetched("alice", "x", 1_000, 0)
    assert quotas.charge_fetched("alice", "x", 0, 0) == 0
    assert quotas.most_fetched_bytes("alice", "x", 0) == 1_000
    assert quotas.most_fetched_bytes("alice", "y", 0) is None


def test_the_time_of_threads_is_a_percentage_with_a_wait_of_one_window_at_most() -> None:
    quotas = quotas_of({"clients/x": {"request_percentage": "50"}})
    # Five seconds of threads in ten are 50 percent.
    assert quotas.charge_request("alice", "x", 4_900_000_000, 0) == 0
    quotas.note_request("alice", "x", 110_000_000, 0)
    assert quotas.charge_request("alice", "x", 0, 0) == 20
    assert quotas.charge_request("alice", "x", 10**12, 0) == 1_000
    assert quotas.charge_request("alice", "y", 10**12, 0) == 0


def test_strict_changes_of_topics_are_refused_and_others_wait() -> None:
    quotas = quotas_of({"users/<default>": {"controller_mutation_rate": "1"}})

    def charge(user: str, partitions: int, now_ms: float, *, is_strict: bool = True) -> Mutation:
        return quotas.charge_mutation(user, "x", partitions, now_ms, is_strict=is_strict)

    assert charge("alice", 11, 0) == (True, 0)
    assert charge("alice", 5, 0) == (True, 0)
    assert charge("alice", 1, 0) == (False, 5_000)
    assert charge("alice", 1, 4_999) == (False, 1)
    assert charge("alice", 1, 5_000) == (True, 0)
    assert charge("bob", 21, 0, is_strict=False) == (True, 10_000)
    assert charge("bob", 1, 0, is_strict=False) == (True, 11_000)


def test_a_million_client_ids_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_table, "MAX_CLIENTS", 10)
    monkeypatch.setattr(quota_table, "MAX_RESOLVED", 20)
    table = QuotaTable(WINDOWS, SampledRate)
    table.set_bounds({QuotaEntity(None, "<default>"): 100.0})
    first = table.find("u", "0", 0)
    for number in range(100):
        assert table.find("u", str(number), 0) is not None
    assert len(table.clients()) == 10
    assert len(table._resolved) <= 20
    # Clients for which there is no room count together.
    assert table.find("u", "98", 0) is table.find("u", "99", 0) is not first
    # A client whose rate is nothing again makes room.
    table.find("u", "0", 11_000)
    other = table.find("u", "new", 11_001)
    assert table.find("u", "0", 11_001) is first
    assert set(table.clients()) == {("", "0"), ("", "new")}
    assert other is table.find("u", "new", 11_001)


def test_client_ids_of_one_user_cost_no_other_user_its_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_table, "MAX_CLIENTS", 10)
    table = QuotaTable(WINDOWS, SampledRate)
    table.set_bounds({QuotaEntity("<default>", "<default>"): 100.0})
    mallory = [table.find("mallory", str(number), 0) for number in range(20)]
    alice = table.find("alice", "a", 0)
    assert mallory[-1] is mallory[-2]
    assert alice is table.find("alice", "b", 0) is not mallory[-1]


def test_a_long_client_id_is_counted_and_not_kept() -> None:
    table = QuotaTable(WINDOWS, SampledRate)
    table.set_bounds({QuotaEntity(None, "<default>"): 100.0})
    name = "x" * 30_000
    assert table.find("u", name, 0) is table.find("u", name, 0) is not table.find("u", name + "y", 0)
    assert all(len(client) <= 255 for _, client in table.clients())
    assert len(table._resolved) == 0


def test_a_client_is_forgotten_after_an_hour() -> None:
    table = QuotaTable(WINDOWS, SampledRate)
    table.set_bounds({QuotaEntity(None, "<default>"): 100.0})
    table.find("u", "old", 0)
    table.find("u", "young", 3_600_000)
    assert set(table.clients()) == {("", "old"), ("", "young")}
    table.find("u", "new", 3_660_001)
    assert set(table.clients()) == {("", "young"), ("", "new")}
