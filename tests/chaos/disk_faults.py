"""Damage to the files of a stopped broker: a flipped bit, and the loss of all unsynced bytes.

Only damage that a broker can notice or repair: the bit is flipped in the last segment of a log, which is read
at the start after a kill, and the power is cut at one broker at a time.
"""

import random
from pathlib import Path
from typing import NamedTuple

from barnabas.broker.log.checkpoints import parse_checkpoint
from barnabas.broker.log.file_system import LOG_SUFFIX, SWAP_SUFFIX
from barnabas.logtools.entries import Damage, DumpedBatch, read_batches

_RECOVERY_POINTS = "recovery-point-offset-checkpoint"
_LEADER_EPOCH = range(12, 16)
"""The bytes of a batch's header."""


class Flip(NamedTuple):
    """One flipped bit of one file."""

    path: Path
    position: int


def partition_folders(log_dir: Path, topic: str) -> list[Path]:
    """The folders of a topic's partitions in a log dir."""
    return sorted(
        path for path in log_dir.iterdir() if path.is_dir() and path.name.rpartition("-")[0] == topic
    )


def flip_a_bit(folder: Path, chance: random.Random) -> Flip | None:
    """Flip one bit of a log where the next start reads it; None if there are no batches.

    That is the last segment, or the one within which the recovery point lies, there below that point. A
    segment that ends at the recovery point is not read. Above that point the leader epoch of a batch, which
    no CRC covers, is spared: no reader can tell whether it is right.
    """
    topic, _, partition = folder.name.rpartition("-")
    recovery_point = _recovery_points(folder.parent).get((topic, int(partition)), 0)
    segments = _segments(folder)
    found = [_batches(path) for path in segments]
    candidates = [(segments[-1], found[-1])]
    for path, batches in zip(segments, found, strict=True):
        safe = [one for one in batches if one.header.base_offset < recovery_point]
        if len(safe) < len(batches) or path == segments[-1]:
            candidates.append((path, safe))
            break
    candidates = [(path, batches) for path, batches in candidates if batches]
    if not candidates:
        return None
    path, batches = chance.choice(candidates)
    batch = chance.choice(batches)
    is_safe = batch.header.base_offset < recovery_point
    places = [at for at in range(batch.header.size_bytes) if is_safe or at not in _LEADER_EPOCH]
    position = batch.position + chance.choice(places)
    with path.open("r+b", buffering=0) as file:
        file.seek(position)
        byte = file.read(1)[0] ^ (1 << chance.randrange(8))
        file.seek(position)
        file.write(bytes([byte]))
    return Flip(path, position)


def cut_power(log_dir: Path) -> int:
    """Remove from every log the records that may not be on disk; returns how many.

    As after a power cut of a broker that syncs only for its checkpoints and its cleaner: every record at and
    above the recovery point is lost, and every record below it is kept. The cleaner syncs what it writes and
    all that it has read, so a cleaned segment and those before it are kept too.
    """
    points = _recovery_points(log_dir)
    lost = 0
    for folder in log_dir.iterdir():
        topic, _, partition = folder.name.rpartition("-")
        if folder.is_dir() and partition.isdecimal():
            lost += _cut(folder, points.get((topic, int(partition)), 0))
    return lost


def _recovery_points(log_dir: Path) -> dict[tuple[str, int], int]:
    path = log_dir / _RECOVERY_POINTS
    if not path.is_file():
        return {}
    entries = parse_checkpoint(path.read_text(), 3, path)
    return {(topic, int(partition)): int(offset) for topic, partition, offset in entries}


def _cleaned_end(folder: Path) -> int:
    """The end of the last segment with gaps between its offsets, or of one that replaces others; else 0.

    A follower may have such a segment from its leader and not have synced it; then fewer records are lost
    here than in a real power cut.
    """
    end = 0
    for segment in (*_segments(folder), *folder.glob(f"*{LOG_SUFFIX}{SWAP_SUFFIX}")):
        # Its folder was synced when the swap began, with the name of the segment at its end.
        next_offset, has_gap = int(segment.name.partition(".")[0]), segment.suffix == SWAP_SUFFIX
        for batch in _batches(segment):
            header = batch.header
            has_gap = (
                has_gap or header.base_offset > next_offset or header.record_count <= header.last_offset_delta
            )
            next_offset = header.next_offset
        if has_gap:
            end = max(end, next_offset)
    return end


def _cut(folder: Path, recovery_point: int) -> int:
    lost = 0
    recovery_point = max(recovery_point, _cleaned_end(folder))
    for segment in reversed(_segments(folder)):
        kept = 0
        for batch in _batches(segment):
            if batch.header.base_offset >= recovery_point:
                lost += batch.header.record_count
            else:
                kept = batch.position + batch.header.size_bytes
        if int(segment.stem) > recovery_point:
            for path in folder.glob(f"{segment.stem}.*"):
                path.unlink()
        elif kept < segment.stat().st_size:
            with segment.open("r+b") as file:
                file.truncate(kept)
    for snapshot in folder.glob("*.snapshot"):
        if int(snapshot.stem) > recovery_point:
            snapshot.unlink()
    return lost


def _segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))


def _batches(segment: Path) -> list[DumpedBatch]:
    return [batch for batch in read_batches(segment) if not isinstance(batch, Damage)]
