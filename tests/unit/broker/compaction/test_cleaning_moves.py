"""A log that is cleaned while it moves to another log dir, at every moment of either."""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from barnabas.broker.log.log import Log
from barnabas.broker.log.log_manager import LogManager
from barnabas.protocol.ids import TopicId, TopicPartition
from tests.support.compaction import compact, records_in
from tests.support.defaults import log_config
from tests.support.logs import crash, get_or_create, headers_of, online, open_dirs

from .test_cleaning import at_call, cleaned_files, values, write

KEY = TopicPartition("t", 0)
TOPIC_ID = TopicId(uuid.UUID(int=7))
_CONFIG = log_config(cleanup_policy=("compact",), segment_bytes=500)


class Moving:
    """A dirty log of nine segments in the first of two log dirs."""

    def __init__(self, folder: Path) -> None:
        self.dirs = [folder / "a", folder / "b"]
        self.manager = self.open()
        self.log = get_or_create(self.manager, KEY, TOPIC_ID, 0)
        write(self.log, *[[(b"a", b"v" * 100), (b"%d" % (number % 3), b"v" * 200)] for number in range(8)])
        self.expected = values(self.log)

    def open(self) -> LogManager:
        return open_dirs(*self.dirs, config=_CONFIG)

    def begin(self) -> None:
        self.manager.begin_move(KEY, self.dirs[1], 0)

    def copy(self, reads: int = 1) -> None:
        future = self.manager.futures.get(KEY)
        assert future is not None
        for _ in range(reads):
            future.copy(300, 0)

    def finish(self) -> None:
        future = self.manager.futures.get(KEY)
        assert future is not None
        while future.copy(1 << 20, 0):
            pass
        assert self.manager.finish_move(future, 1 << 20, 0)

    def check(self) -> Log:
        """The log is whole in its new dir, also after a restart; returns it."""
        assert self.log.folder.parent == self.dirs[1]
        assert values(self.log) == self.expected
        before = headers_of(self.log), self.log.first_dirty_offset
        self.manager.close(0)
        self.manager = self.open()
        self.log = online(self.manager, KEY)
        assert (headers_of(self.log), self.log.first_dirty_offset) == before
        assert cleaned_files(self.log) == []
        return self.log


@pytest.fixture
def moving(tmp_path: Path) -> Iterator[Callable[[], Moving]]:
    made: list[Moving] = []

    def make() -> Moving:
        made.append(Moving(tmp_path / str(len(made))))
        return made[-1]

    yield make
    for each in made:
        crash(each.manager)


def pauses(make: Callable[[], Moving]) -> int:
    calls: list[int] = []
    compact(make().log, pause=calls.append, read_bytes=500)
    return len(calls)


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_move_during_a_cleaning_ends_the_cleaning_quietly(
    moving: Callable[[], Moving], is_whole: bool
) -> None:
    for number in range(0, pauses(moving), 4):
        case = moving()

        def move(case: Moving = case) -> None:
            case.begin()
            case.copy(3)
            if is_whole:
                case.finish()

        stats = compact(case.log, pause=at_call(number, move), read_bytes=500)
        # Unless the move begins after the last swap.
        assert stats.is_abandoned == (case.log.first_dirty_offset == 0)
        assert stats.is_abandoned or not is_whole
        if not is_whole:
            case.finish()
        log = case.check()
        assert not compact(log).is_abandoned
        assert values(log) == case.expected


def test_nothing_is_cleaned_while_a_log_moves(moving: Callable[[], Moving]) -> None:
    case = moving()
    case.begin()
    case.copy()
    before = records_in(case.log)
    assert compact(case.log).is_abandoned
    assert records_in(case.log) == before
    case.manager.end_move(KEY, 0)
    assert not compact(case.log).is_abandoned


def test_a_cleaned_log_moves_with_its_gaps_and_stays_clean(moving: Callable[[], Moving]) -> None:
    case = moving()
    compact(case.log)
    before = records_in(case.log)
    case.begin()
    case.finish()
    assert case.log.first_dirty_offset == 16
    assert records_in(case.check()) == before
