"""Ten thousand sealed segments need few descriptors and little memory, counted in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import json, os, resource, shutil, sys
from pathlib import Path

MOST_DESCRIPTORS = 1024
resource.setrlimit(resource.RLIMIT_NOFILE, (MOST_DESCRIPTORS, MOST_DESCRIPTORS))

from tests.support.logs import get_or_create
from barnabas.broker.log.appending import parse_produced
from barnabas.broker.log import open_files
from tests.support.defaults import log_config
from barnabas.broker.log.log_manager import LogManager
from tests.support.batches import build_batch
from barnabas.protocol.ids import BrokerId, TopicPartition

folder, partitions, per_partition = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
CONFIG = log_config(segment_bytes=500, retention_ms=1_000_000, index_interval_bytes=1)
figures = {}


def manager():
    return LogManager.open(
        [folder], broker_id=BrokerId(1), cluster_id="c", config_of=lambda topic: CONFIG, now_ms=0
    )


def resident_mb():
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024


def count(name):
    figures[name] = {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "mappings": Path("/proc/self/maps").read_text().count("topic-"),
        "resident_mb": round(resident_mb()),
    }


# Waits for the disk are not measured here.
os.fsync = lambda descriptor: None
logs = manager()
first = get_or_create(logs, TopicPartition("topic", 0), None, 0)
for number in range(per_partition):
    first.append_as_leader(parse_produced(build_batch([(None, b"v" * 300)], timestamp_ms=number + 1)), 0, 0)
logs.close(0)
active = first.segments[-1].file.path.stem
for number in range(1, partitions):
    # Sealed files never change, so links will do for them.
    copy = lambda source, target: (shutil.copy if active in source else os.link)(source, target)
    shutil.copytree(folder / "topic-0", folder / f"topic-{number}", copy_function=copy)
count("filled")

opened = []
real_open = os.open
os.open = lambda path, *more, **options: (opened.append(str(path)), real_open(path, *more, **options))[1]
logs = manager()
figures["opened at start"] = sum("topic-" in path for path in opened)
count("started")

for log in logs.all_logs():
    for segment in log.segments:
        assert len(log.read(segment.base_offset, 1 << 20).records) > 300
count("read")

for log in logs.all_logs():
    found = log.offset_for_timestamp(per_partition // 2)
    assert found.offset == per_partition // 2 - 1, found
count("found by time")

assert logs.retention_pass(0, lambda name: per_partition) == 0
count("retained")

for log in logs.all_logs():
    log.append_as_leader(parse_produced(build_batch([(None, b"v")], timestamp_ms=per_partition)), 0, 0)
    assert len(log.read(log.log_end_offset - 1, 1 << 20).records) > 0
count("appended")

due = 1_000_000 + per_partition // 2
assert logs.retention_pass(due, lambda name: per_partition) == partitions * (per_partition // 2 - 1)
count("deleted half")
logs.close(0)
figures["kept"] = open_files.OPEN_FILES.kept
print(json.dumps(figures))
"""


def test_ten_thousand_sealed_segments_need_few_descriptors_and_little_memory(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), "100", "101"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    figures = json.loads(ran.stdout)
    assert figures["opened at start"] < 600, "a start checks only the last segment of each log"
    for name in ("started", "read", "found by time", "retained", "appended", "deleted half"):
        assert figures[name]["descriptors"] < 1024, name
        assert figures[name]["resident_mb"] < 250, name
        assert figures[name]["mappings"] <= 512, name
    assert figures["kept"] == 0, "a closed file is forgotten"
