"""Producer ids: each is given once, usually without waiting, and every request is answered."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from barnabas.broker.producer_ids import MAX_WAITING, RETRY, ProducerIds
from barnabas.broker.slow_work import SlowWorkRefused
from barnabas.protocol.errors import ErrorCode
from barnabas.zookeeper.errors import ZooKeeperUnavailable


class Blocks:
    """What is shared by all brokers: each claim gets the next block."""

    def __init__(self, size: int = 10) -> None:
        self.size = size
        self.claims = 0
        self.trouble: Exception | None = None
        self._lock = threading.Lock()

    def claim(self) -> range:
        with self._lock:
            if self.trouble is not None:
                raise self.trouble
            self.claims += 1
            return range((self.claims - 1) * self.size, self.claims * self.size)


class Later:
    """Slow work that is done when the test says so."""

    def __init__(self) -> None:
        self.work: list[Callable[[], None]] = []
        self.is_full = False

    def submit(self, failed: Callable[[Exception], None], work: Callable[..., None], *args: Any) -> None:
        if self.is_full:
            raise SlowWorkRefused("full")

        def run() -> None:
            try:
                work(*args)
            except OSError as error:
                failed(error)

        self.work.append(run)

    def run(self) -> None:
        while self.work:
            self.work.pop(0)()


class Asker:
    """Asks, and keeps what is answered."""

    def __init__(self, ids: ProducerIds) -> None:
        self._ids = ids
        self.got: list[tuple[int, ErrorCode]] = []

    def ask(self, times: int = 1) -> None:
        for _ in range(times):
            self._ids.give(lambda producer_id, code: self.got.append((producer_id, code)))

    @property
    def ids(self) -> list[int]:
        return [producer_id for producer_id, code in self.got if code == ErrorCode.NONE]


def test_the_first_requests_wait_for_one_claim_together() -> None:
    later, blocks = Later(), Blocks()
    asker = Asker(ProducerIds(blocks.claim, later))
    asker.ask(3)
    assert asker.got == []
    assert len(later.work) == 1
    later.run()
    assert asker.ids == [0, 1, 2]
    asker.ask()
    assert asker.ids == [0, 1, 2, 3]


def test_the_next_block_is_claimed_before_the_last_id_is_gone() -> None:
    later, blocks = Later(), Blocks()
    asker = Asker(ProducerIds(blocks.claim, later))
    asker.ask()
    later.run()
    asker.ask(7)
    assert (len(asker.ids), later.work) == (8, [])
    asker.ask()
    assert len(later.work) == 1
    asker.ask()
    assert len(later.work) == 1, "one claim at a time"
    later.run()
    asker.ask(5)
    assert asker.ids == list(range(15))
    assert blocks.claims == 2


def test_a_request_without_a_free_id_waits_for_the_claim_in_progress() -> None:
    later = Later()
    asker = Asker(ProducerIds(Blocks(2).claim, later))
    asker.ask()
    later.run()
    asker.ask(4)
    assert len(asker.ids) == 2
    later.run()
    assert asker.ids == [0, 1, 2, 3, 4]


def test_requests_beyond_a_small_block_get_ids_of_the_next() -> None:
    later = Later()
    asker = Asker(ProducerIds(Blocks(2).claim, later))
    asker.ask(5)
    later.run()
    assert asker.ids == [0, 1, 2, 3, 4]


def test_without_zookeeper_waiting_requests_get_a_retriable_error() -> None:
    later, blocks = Later(), Blocks()
    asker = Asker(ProducerIds(blocks.claim, later))
    blocks.trouble = ZooKeeperUnavailable("no ZooKeeper")
    asker.ask(2)
    later.run()
    assert asker.got == [(-1, RETRY)] * 2
    blocks.trouble = None
    asker.ask()
    later.run()
    assert asker.ids == [0]


def test_an_unforeseen_error_is_not_retriable() -> None:
    later, blocks = Later(), Blocks()
    asker = Asker(ProducerIds(blocks.claim, later))
    blocks.trouble = OSError("the znode holds nonsense")
    asker.ask()
    later.run()
    assert asker.got == [(-1, ErrorCode.UNKNOWN_SERVER_ERROR)]


def test_a_full_slow_work_queue_refuses_requests_at_once() -> None:
    later = Later()
    asker = Asker(ProducerIds(Blocks().claim, later))
    later.is_full = True
    asker.ask()
    assert asker.got == [(-1, RETRY)]
    later.is_full = False
    asker.ask()
    later.run()
    assert asker.ids == [0]


def test_the_number_of_waiting_requests_is_bounded() -> None:
    later = Later()
    asker = Asker(ProducerIds(Blocks(2 * MAX_WAITING).claim, later))
    asker.ask(MAX_WAITING + 1)
    assert asker.got == [(-1, RETRY)]
    later.run()
    assert asker.ids == list(range(MAX_WAITING))


def test_many_threads_of_several_brokers_never_get_the_same_id() -> None:
    blocks = Blocks(7)

    class Now:
        def submit(self, failed: Callable[[Exception], None], work: Callable[..., None], *args: Any) -> None:
            work(*args)

    askers = [Asker(ProducerIds(blocks.claim, Now())) for _ in range(2)]
    # Few enough that the requests during one slow claim are fewer than the bound of waiting ones.
    times = MAX_WAITING // 4
    threads = [threading.Thread(target=asker.ask, args=(times,)) for asker in askers * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    given = askers[0].ids + askers[1].ids
    assert len(given) == len(set(given)) == 8 * times
