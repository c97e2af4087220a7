"""Kafka's own dump tool reads the files of a log, producer snapshots included."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from barnabas.broker.log.log import Log
from barnabas.broker.log.recovery import LogLoader
from barnabas.deploy.process import DeployError
from barnabas.deploy.zookeeper import find_java
from barnabas.protocol.ids import TopicPartition
from benchmarks.peers.apache_kafka import archives
from benchmarks.peers.processes import PeerError
from tests.support.defaults import log_config
from tests.support.logs import append_batches, produced


@pytest.fixture(scope="module")
def dump_tool() -> list[str]:
    """The command of Kafka's DumpLogSegments."""
    try:
        return [str(find_java()), "-cp", f"{archives()}/*", "kafka.tools.DumpLogSegments"]
    except (PeerError, DeployError) as error:
        pytest.skip(str(error))


def dump(tool: list[str], *files: Path) -> str:
    names = ",".join(map(str, files))
    done = subprocess.run(
        [*tool, "--deep-iteration", "--files", names], capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout


@pytest.mark.timeout(300)
def test_kafka_reads_segments_indexes_and_snapshots(dump_tool: list[str], tmp_path: Path) -> None:
    config = log_config(segment_bytes=2_000, index_interval_bytes=100)
    log = Log.open(TopicPartition("t", 0), LogLoader(tmp_path / "t-0", config, now_ms=0))
    for sequence in range(0, 60, 2):
        append_batches(log, produced(sequence, 2, producer_id=4711, epoch=3, timestamp_ms=1_000), 5)
    log.close(0)
    files = sorted(path for path in log.folder.iterdir() if path.name[:20].isdecimal())
    assert {path.suffix for path in files} == {".log", ".index", ".timeindex", ".snapshot"}
    found = dump(dump_tool, *files)
    assert re.findall(r"(?i)mismatch|error|corrupt|exception|not found", found) == []
    assert found.count("producerId: 4711 producerEpoch: 3 partitionLeaderEpoch: 5") == 30
    assert (found.count("isvalid: true"), found.count("| offset: ")) == (30, 60)
    newest = found.rpartition("Dumping ")[2]
    assert newest.startswith(str(log.folder / "00000000000000000060.snapshot"))
    assert re.findall(r"firstSequence: (\d+) lastSequence: (\d+) lastOffset: (\d+)", newest) == [
        (str(first), str(first + 1), str(first + 1)) for first in range(50, 60, 2)
    ]
