"""Leader epochs: where each ends (KIP-101, KIP-279), truncation at both ends, and the file."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from barnabas.broker.log.epoch_cache import UNDEFINED, EpochCache
from barnabas.broker.log.storage_errors import CheckpointDamaged
from tests.support.soak import searched


@pytest.fixture
def cache(tmp_path: Path) -> EpochCache:
    """Epochs 1, 3 and 4 from offsets 0, 10 and 25."""
    cache = EpochCache.load(tmp_path)
    for epoch, start in ((1, 0), (3, 10), (4, 25)):
        cache.assign(epoch, start)
    return cache


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (4, (4, 30)),
        (3, (3, 25)),
        (2, (1, 10)),
        (1, (1, 10)),
        (0, (0, 0)),
        (5, UNDEFINED),
        (-1, UNDEFINED),
    ],
)
def test_an_epoch_ends_where_the_next_known_one_begins(
    cache: EpochCache, asked: int, expected: tuple[int, int]
) -> None:
    assert cache.end_offset_for(asked, 30) == expected


@pytest.mark.parametrize(("offset", "epoch"), [(0, 1), (9, 1), (10, 3), (24, 3), (25, 4), (99, 4)])
def test_an_offset_belongs_to_the_epoch_in_force(cache: EpochCache, offset: int, epoch: int) -> None:
    assert cache.epoch_at(offset) == epoch


def test_an_old_or_known_epoch_changes_nothing(cache: EpochCache) -> None:
    before = cache.entries
    cache.assign(4, 30)
    cache.assign(2, 30)
    assert cache.entries == before


def test_an_epoch_without_records_is_forgotten(cache: EpochCache) -> None:
    cache.assign(7, 25)
    assert cache.entries[-2:] == ((3, 10), (7, 25))


@pytest.mark.parametrize(
    ("start", "left"),
    [
        (0, ((1, 0), (3, 10), (4, 25))),
        (5, ((1, 5), (3, 10), (4, 25))),
        (10, ((3, 10), (4, 25))),
        (26, ((4, 26),)),
    ],
)
def test_a_new_start_keeps_the_epoch_in_force(
    cache: EpochCache, start: int, left: tuple[tuple[int, int], ...]
) -> None:
    cache.truncate_from_start(start)
    assert cache.entries == left


def test_every_change_is_in_the_file(cache: EpochCache) -> None:
    assert cache.path.read_text() == "0\n3\n1 0\n3 10\n4 25\n"
    assert EpochCache.load(cache.path.parent).entries == cache.entries
    cache.truncate_from_end(10)
    cache.fsync()
    assert EpochCache.load(cache.path.parent).entries == ((1, 0),)
    cache.clear()
    assert EpochCache.load(cache.path.parent).entries == ()


def test_an_epoch_that_begins_is_in_the_file_before_its_first_record(cache: EpochCache) -> None:
    before = cache.path.read_text()
    cache.begin(6, 30)
    cache.begin(5, 30)
    assert cache.entries[-2:] == ((4, 25), (6, 30))
    assert cache.end_offset_for(4, 30) == (4, 30)
    assert cache.path.read_text() == before
    cache.begin_batches([], 0)
    assert EpochCache.load(cache.path.parent).entries == cache.entries


@pytest.mark.parametrize(
    "text", ["0\n1\n1 0", "0\n2\n1 0\n1 5\n", "0\n2\n1 5\n2 5\n", "0\n1\nx 0\n", "0\n1\n1 0 0\n"]
)
def test_a_damaged_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "leader-epoch-checkpoint").write_text(text)
    with pytest.raises(CheckpointDamaged, match="leader-epoch-checkpoint"):
        EpochCache.load(tmp_path)


def test_the_file_may_be_flushed_while_epochs_begin(fast_folder: Path) -> None:
    """The flush pass holds no lock of the log's: two writers of one file would take the log dir offline."""
    cache = EpochCache.load(fast_folder)
    cache.assign(0, 0)
    is_done = threading.Event()

    def flush_often() -> None:
        while not is_done.is_set():
            cache.fsync()

    with ThreadPoolExecutor(2) as pool:
        flushing = [pool.submit(flush_often) for _ in range(2)]
        try:
            for epoch in range(1, searched(300, usual=100)):
                cache.assign(epoch, epoch)
                assert EpochCache.load(fast_folder).entries == cache.entries
        finally:
            is_done.set()
        for one in flushing:
            one.result()
    assert EpochCache.load(fast_folder).entries == cache.entries
