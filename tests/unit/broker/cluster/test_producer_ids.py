"""Producer ids: each is given once, usually without waiting, and every request is answered."""

import threading
from typing import Any

from barnabas.broker.cluster.producer_ids import MAX_WAITING, RETRY, ProducerIds
from barnabas.protocol.errors import ErrorCode
from barnabas.zookeeper.errors import ZooKeeperUnavailable
from tests.support.serving import Inline, QueuedWork


class Blocks:
    """The blocks in ZooKeeper: each claim gets the next one."""

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


class Requests:
    """Asks for producer ids from blocks of this size, and collects the answers."""

    def __init__(self, block_size: int = 10, blocks: Blocks | None = None, work: Any = None) -> None:
        self.blocks = blocks or Blocks(block_size)
        self.work = work or QueuedWork()
        self.answers: list[tuple[int, ErrorCode]] = []
        self._producer_ids = ProducerIds(self.blocks.claim, self.work)

    def ask(self, times: int = 1) -> None:
        for _ in range(times):
            self._producer_ids.give(lambda producer_id, code: self.answers.append((producer_id, code)))

    @property
    def ids(self) -> list[int]:
        return [producer_id for producer_id, code in self.answers if code == ErrorCode.NONE]


def test_the_first_requests_wait_for_one_claim_together() -> None:
    requests = Requests()
    requests.ask(3)
    assert requests.answers == []
    assert len(requests.work.waiting) == 1
    requests.work.run()
    assert requests.ids == [0, 1, 2]
    requests.ask()
    assert requests.ids == [0, 1, 2, 3]


def test_the_next_block_is_claimed_before_the_last_id_is_gone() -> None:
    requests = Requests()
    requests.ask()
    requests.work.run()
    requests.ask(7)
    assert (len(requests.ids), requests.work.waiting) == (8, [])
    requests.ask()
    assert len(requests.work.waiting) == 1
    requests.ask()
    assert len(requests.work.waiting) == 1, "one claim at a time"
    requests.work.run()
    requests.ask(5)
    assert requests.ids == list(range(15))
    assert requests.blocks.claims == 2


def test_without_zookeeper_waiting_requests_get_a_retriable_error() -> None:
    requests = Requests()
    requests.blocks.trouble = ZooKeeperUnavailable("no ZooKeeper")
    requests.ask(2)
    requests.work.run()
    assert requests.answers == [(-1, RETRY)] * 2
    requests.blocks.trouble = None
    requests.ask()
    requests.work.run()
    assert requests.ids == [0]


def test_an_unforeseen_error_is_not_retriable() -> None:
    requests = Requests()
    requests.blocks.trouble = OSError("the znode holds nonsense")
    requests.ask()
    requests.work.run()
    assert requests.answers == [(-1, ErrorCode.UNKNOWN_SERVER_ERROR)]


def test_a_full_slow_work_queue_refuses_requests_at_once() -> None:
    requests = Requests()
    requests.work.is_full = True
    requests.ask()
    assert requests.answers == [(-1, RETRY)]
    requests.work.is_full = False
    requests.ask()
    requests.work.run()
    assert requests.ids == [0]


def test_the_number_of_waiting_requests_is_bounded() -> None:
    requests = Requests(2 * MAX_WAITING)
    requests.ask(MAX_WAITING + 1)
    assert requests.answers == [(-1, RETRY)]
    requests.work.run()
    assert requests.ids == list(range(MAX_WAITING))


def test_many_threads_of_several_brokers_never_get_the_same_id() -> None:
    blocks = Blocks(7)
    brokers = [Requests(blocks=blocks, work=Inline()) for _ in range(2)]
    # Fewer requests wait during one slow claim than are allowed to.
    times = MAX_WAITING // 4
    threads = [threading.Thread(target=broker.ask, args=(times,)) for broker in brokers * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    given = brokers[0].ids + brokers[1].ids
    assert len(given) == len(set(given)) == 8 * times
