"""`barnabas reassign` and `drain` beside failures and deletions of topics."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, ClassVar, Self

import pytest

from barnabas.cli import exit_codes
from barnabas.cli.main import build_parser, main
from barnabas.client.admin.admin import ConfigResource
from barnabas.client.errors import TopicErrors
from barnabas.protocol.errors import (
    ApiError,
    BarnabasError,
    ErrorCode,
    RequestTimedOutLocally,
    api_error,
)
from barnabas.protocol.ids import TopicPartition


class _Admin:
    """Three brokers, and topics of which some are deleted between the look and the move."""

    replicas: Sequence[int] = (3, 1)
    deleted: Sequence[str] = ()
    refused: Sequence[str] = ()
    is_stuck = False
    removal_fails: Mapping[str, BarnabasError] = MappingProxyType({})
    limited: ClassVar[dict[str, set[str]]] = {}
    """Resource → the limits that are set for it."""

    def __init__(self, **settings: object) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *outcome: object) -> None: ...

    async def describe_cluster(self) -> Any:
        return SimpleNamespace(nodes=[SimpleNamespace(node_id=id, rack=None) for id in (1, 2, 3)])

    async def describe_topics(self, names: Collection[str] = ("a", "b", "c")) -> dict[str, Any]:
        partition = SimpleNamespace(partition=0, replicas=self.replicas)
        return {name: SimpleNamespace(partitions=[partition]) for name in names}

    async def list_partition_reassignments(
        self, partitions: Collection[TopicPartition] = ()
    ) -> dict[TopicPartition, Any]:
        moving = SimpleNamespace(adding=(2,), replicas=(3, 1, 2), target=(1, 2), removing=(3,))
        return dict.fromkeys(partitions, moving) if self.is_stuck else {}

    async def alter_configs(
        self, changes: Mapping[ConfigResource, Mapping[str, object]], *, timeout_ms: int
    ) -> None:
        assert timeout_ms < 20_000
        fails = self.removal_fails if None in {v for c in changes.values() for v in c.values()} else {}
        for resource, settings in changes.items():
            if str(resource) not in fails:
                self.limited[str(resource)] = {name for name, value in settings.items() if value is not None}
        if fails:
            raise TopicErrors(dict(fails), {})

    async def describe_replicas(self, names: Collection[str]) -> list[Any]:
        return []

    async def alter_partition_reassignments(
        self, targets: Mapping[TopicPartition, object]
    ) -> dict[TopicPartition, ApiError | None]:
        def outcome(tp: TopicPartition) -> ApiError | None:
            if tp.topic in self.deleted:
                return api_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {tp.topic!r} is being deleted")
            return api_error(ErrorCode.POLICY_VIOLATION) if tp.topic in self.refused else None

        return {tp: outcome(tp) for tp in targets}


def test_a_plan_that_is_no_text_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.json"
    plan.write_bytes(b"\xff\xfe\x00")
    assert main(["reassign", "execute", str(plan), "-b", "h:1"]) == exit_codes.USAGE
    assert f"{plan} is not a plan" in capsys.readouterr().err


def test_a_drain_skips_topics_that_are_deleted_meanwhile(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("barnabas.client.admin.admin.Admin", _Admin)
    monkeypatch.setattr(_Admin, "deleted", ["a", "c"])
    assert main(["drain", "3", "-b", "h:1"]) == exit_codes.OK
    said = "1 replica began to leave broker 3\nskipped 2 partitions of topics that are being deleted\n"
    assert capsys.readouterr().out == said
    assert main(["drain", "3", "-b", "h:1", "--json"]) == exit_codes.OK
    assert [entry["topic"] for entry in json.loads(capsys.readouterr().out)["partitions"]] == ["b"]
    monkeypatch.setattr(_Admin, "refused", ["b"])
    assert main(["drain", "3", "-b", "h:1"]) == exit_codes.FAILED
    assert "POLICY_VIOLATION" in capsys.readouterr().err


def test_the_advice_for_a_drain_that_cannot_be_done_can_be_pasted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("barnabas.client.admin.admin.Admin", _Admin)
    monkeypatch.setattr(_Admin, "replicas", (3, 1, 2))
    assert main(["drain", "3", "-b", "h:1"]) == exit_codes.FAILED
    said = capsys.readouterr().err
    assert "start another broker first; or" in said, "no local cluster, so no `barnabas up`"
    assert (
        "`barnabas reassign plan a --replication-factor 2 -b h:1 > plan.json "
        "&& barnabas reassign execute plan.json --wait -b h:1`"
    ) in said


def test_the_advice_after_a_plan_repeats_its_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("barnabas.client.admin.admin.Admin", _Admin)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    words = ["reassign", "plan", "a", "b", "--brokers", "1,2", "--replication-factor", "1"]
    assert main([*words, "-b", "h:1"]) == exit_codes.OK
    plan = f"barnabas {' '.join(words)} --json -b h:1 > plan.json"
    assert f"`{plan} && barnabas reassign execute plan.json -b h:1` does it" in capsys.readouterr().out


_THROTTLED_DRAIN = ["drain", "3", "--wait", "--throttle", "1000", "-b", "h:1"]


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> type[_Admin]:
    monkeypatch.setattr("barnabas.client.admin.admin.Admin", _Admin)
    monkeypatch.setattr(_Admin, "limited", {})
    return _Admin


def test_a_throttle_is_set_where_any_broker_can_remove_it(
    admin: type[_Admin], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "removal_fails", {"topic c": api_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)})
    assert main(_THROTTLED_DRAIN) == exit_codes.OK, "a topic that is gone has no limits"
    assert set(admin.limited) == {"all brokers", "topic a", "topic b", "topic c"}
    admin.limited.pop("topic c")
    assert not any(admin.limited.values())


@pytest.mark.parametrize("is_stuck", [False, True], ids=["moved", "not moved in time"])
def test_a_throttle_that_remains_is_named_with_the_commands_that_remove_it(
    admin: type[_Admin], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_stuck: bool
) -> None:
    late = RequestTimedOutLocally("no broker answered")
    monkeypatch.setattr(admin, "removal_fails", {"all brokers": late, "topic b": late})
    monkeypatch.setattr(admin, "is_stuck", is_stuck)
    assert main([*_THROTTLED_DRAIN, "--timeout", "0"]) == exit_codes.FAILED
    said = capsys.readouterr().err
    assert "drain: the throttle remains set for all brokers, topic b (no broker answered); remove it" in said
    assert ("not done after 0 s; the moves go on" in said) == is_stuck
    deleted = {}
    for command in re.findall("`barnabas ([^`]+)`", said):
        options = build_parser("configs").parse_args(command.split())
        assert options.bootstrap == "h:1"
        deleted[options.topic] = set(options.deletes)
    assert deleted == {None: admin.limited["all brokers"], "b": admin.limited["topic b"]}
