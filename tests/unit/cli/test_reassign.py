"""`barnabas drain` beside deletions of topics."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

from barnabas.cli import exit_codes
from barnabas.cli.main import main
from barnabas.protocol.errors import ApiError, ErrorCode, api_error
from barnabas.protocol.ids import TopicPartition


class _Admin:
    """Three brokers, and topics of which some are deleted between the look and the move."""

    replicas: Sequence[int] = (3, 1)
    deleted: Sequence[str] = ()
    refused: Sequence[str] = ()

    def __init__(self, **settings: object) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *outcome: object) -> None: ...

    async def describe_cluster(self) -> Any:
        return SimpleNamespace(nodes=[SimpleNamespace(node_id=id, rack=None) for id in (1, 2, 3)])

    async def list_topics(self, *, include_internal: bool) -> list[str]:
        return ["a", "b", "c"]

    async def describe_topics(self, names: list[str]) -> dict[str, Any]:
        partition = SimpleNamespace(partition=0, replicas=self.replicas)
        return {name: SimpleNamespace(partitions=[partition]) for name in names}

    async def list_partition_reassignments(self) -> dict[TopicPartition, Any]:
        return {}

    async def describe_replicas(self, names: list[str]) -> list[Any]:
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
    monkeypatch.setattr("barnabas.cli.reassign.Admin", _Admin)
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
    monkeypatch.setattr("barnabas.cli.reassign.Admin", _Admin)
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
    monkeypatch.setattr("barnabas.cli.reassign.Admin", _Admin)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    words = ["reassign", "plan", "a", "b", "--brokers", "1,2", "--replication-factor", "1"]
    assert main([*words, "-b", "h:1"]) == exit_codes.OK
    plan = f"barnabas {' '.join(words)} --json -b h:1 > plan.json"
    assert f"`{plan} && barnabas reassign execute plan.json -b h:1` does it" in capsys.readouterr().out
