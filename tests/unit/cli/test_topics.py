"""The command `barnabas topics delete-records`: which offsets it chooses."""

import asyncio
import json

import pytest

from barnabas.cli.exit_codes import NOT_FOUND, exit_code_of
from barnabas.cli.main import build_parser
from barnabas.protocol.errors import BarnabasError
from tests.support.batches import build_batch
from tests.support.fake_broker import FakeCluster

START = 1_700_000_000_000
NOON = "2023-11-14T22:13:20"
"""The same in ISO 8601."""


async def run(cluster: FakeCluster, words: str) -> None:
    given = ["topics", "delete-records", "t", *words.split(), "-b", cluster.bootstrap]
    options = build_parser("topics").parse_args(given)
    await asyncio.to_thread(options.run, options)


@pytest.mark.parametrize(
    ("words", "starts"),
    [
        ("--before 5", [5, 3]),
        ("--before 5 --partition 1", [0, 3]),
        (f"--before-time {NOON}", [2, 3]),
        ("--before-time 2030-01-01", [10, 3]),
        ("--all --partition 0 --partition 1", [10, 3]),
        ("--all --dry-run", [0, 0]),
    ],
)
async def test_each_partition_begins_at_the_chosen_offset_or_at_its_end(
    words: str, starts: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("t", 2)
        for number, count in ((0, 10), (1, 3)):
            for offset in range(count):
                # The record at offset 2 is the first since noon, in the first partition.
                time_ms = START + (offset - 2 if number == 0 else -1)
                cluster.partition("t", number).append(build_batch([(None, b"v")], timestamp_ms=time_ms))
        await run(cluster, f"{words} --json")
        shown = json.loads(capsys.readouterr().out)
        assert [partition.log.log_start_offset for partition in cluster.topics["t"]] == starts
        planned = [10, 3] if "--dry-run" in words else starts
        for row in shown["partitions"]:
            assert (row["before"], row["after"]) == (0, planned[row["partition"]])
            assert row["deleted"] == row["after"]
        assert shown["changed"] == ("--dry-run" not in words)


async def test_a_partition_that_does_not_exist_is_named_before_anything_is_deleted() -> None:
    async with FakeCluster() as cluster:
        cluster.add_topic("t", 2)
        with pytest.raises(BarnabasError, match="topic t has no partition 2, only 0 to 1") as refused:
            await run(cluster, "--partition 2 --partition 0 --all")
        assert exit_code_of(refused.value) == NOT_FOUND
