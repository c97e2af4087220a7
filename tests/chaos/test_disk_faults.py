"""A simulated power cut loses what may not be on disk, and nothing that a cleaning has synced."""

from pathlib import Path

from barnabas.broker.log.file_system import SWAP_SUFFIX, segment_name
from barnabas.broker.log.log import Log
from barnabas.broker.log.recovery import LogLoader
from barnabas.protocol.ids import TopicPartition
from tests.support.batches import build_batch, stamp
from tests.support.defaults import log_config
from tests.support.logs import append_batches, batch

from .disk_faults import cut_power


def _open(log_dir: Path, recovery_point: int = 0) -> Log:
    loader = LogLoader(log_dir / "t-0", log_config(), now_ms=0, recovery_point=recovery_point)
    return Log.open(TopicPartition("t", 0), loader)


def _save_recovery_point(log_dir: Path, offset: int) -> None:
    (log_dir / "recovery-point-offset-checkpoint").write_text(f"0\n1\nt 0 {offset}\n")


def test_records_after_the_recovery_point_are_lost(tmp_path: Path) -> None:
    log = _open(tmp_path)
    for _ in range(6):
        append_batches(log, batch(2))
        if log.log_end_offset == 8:
            log.roll(0)
    log.abandon()
    _save_recovery_point(tmp_path, 6)
    assert cut_power(tmp_path) == 6
    assert _open(tmp_path, 6).log_end_offset == 6


def _write_cleaned(log_dir: Path) -> None:
    """A log with a cleaned segment that ends at 10, and three records after it, of a killed broker."""
    log = _open(log_dir)
    for offset in (7, 9):
        data = build_batch([(b"k", b"v")])
        stamp(data, 0, offset, 0)
        log.append_as_follower(data, 0)
    log.roll(0)
    append_batches(log, batch(3))
    log.abandon()
    _save_recovery_point(log_dir, 5)


def test_a_cleaned_segment_is_kept_beyond_the_recovery_point(tmp_path: Path) -> None:
    _write_cleaned(tmp_path)
    assert cut_power(tmp_path) == 3
    assert _open(tmp_path, 5).log_end_offset == 10


def test_a_cleaned_segment_is_kept_that_has_not_its_name_yet(tmp_path: Path) -> None:
    _write_cleaned(tmp_path)
    segment = tmp_path / "t-0" / segment_name(0)
    segment.rename(f"{segment}{SWAP_SUFFIX}")
    assert cut_power(tmp_path) == 3
    assert _open(tmp_path, 5).log_end_offset == 10
    assert segment.exists()
