"""A transactional producer of Java lives through changes of `transaction.version`.

It chooses its protocol by the level that brokers name on new connections. So after each change all its
connections are reset, in the middle of transactions.
"""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.deploy.links import CLIENT
from barnabas.deploy.process import tail
from tests.support.waiting import wait_for

from ..chaos.linked_cluster import PARTITIONS, LinkedCluster
from ..cluster.tools import UNHARMED
from ..cluster.transaction_client import TransactionalClient
from ..cluster.transaction_level import set_level
from .clients import Unavailable
from .java import NEWER, streams_command

pytestmark = pytest.mark.timeout(600)
TRANSACTIONS = 12
"""At the least, on each level."""
EXIT_S = 60.0


class Alternating:
    """The program of that name: it commits the transactions of odd numbers and aborts the others."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT
            )

    def wait_more(self, count: int) -> None:
        """Wait until it has ended so many more transactions."""
        before = len(self.outcomes())
        wait_for(
            lambda: len(self.outcomes()) >= before + count or self._process.poll() is not None,
            lambda: f"no {count} transactions: {tail(self.log, 40)}",
        )
        assert self._process.poll() is None, tail(self.log, 40)

    def outcomes(self) -> dict[int, str]:
        """By the number of the transaction; the log has the library's lines too."""
        found = re.findall(r"^(\d+) (aborted|committed)\n", self.log.read_text(), re.MULTILINE)
        return {int(number): outcome for number, outcome in found}

    def end(self) -> None:
        """Have it end the last transaction."""
        self._process.communicate(timeout=EXIT_S)
        assert self._process.returncode == 0, tail(self.log, 40)

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def linked(tmp_path: Path) -> Iterator[LinkedCluster]:
    with LinkedCluster(tmp_path, UNHARMED) as cluster:
        yield cluster


@pytest.fixture
def producer(linked: LinkedCluster, tmp_path: Path) -> Iterator[Alternating]:
    set_level(linked.cluster, 0)
    try:
        command = streams_command("Alternating", NEWER)
    except Unavailable as error:
        pytest.skip(str(error))
    producer = Alternating(
        [*command, linked.cluster.bootstrap, "t", str(PARTITIONS), "alternating"], tmp_path / "producer.log"
    )
    yield producer
    producer.kill()


def test_aborted_records_stay_aborted_while_the_level_changes(
    linked: LinkedCluster, producer: Alternating
) -> None:
    described = TransactionalClient(linked.cluster, "alternating")
    producer.wait_more(TRANSACTIONS)
    for level in (2, 0, 2):
        set_level(linked.cluster, level)
        linked.links.reset(CLIENT)
        # The transaction that is open now, and the one after it, may be in the former version.
        producer.wait_more(3)
        epoch = described.describe().producer_epoch
        producer.wait_more(TRANSACTIONS)
        raised = described.describe().producer_epoch - epoch
        assert raised >= TRANSACTIONS - 1 if level == 2 else raised == 0
    producer.end()
    outcomes = producer.outcomes()
    assert outcomes == {number: ("aborted", "committed")[number % 2] for number in range(len(outcomes))}
    expected = [b"%d" % number for number, outcome in outcomes.items() if outcome == "committed"]
    last = outcomes[len(outcomes) - 1]
    described.wait_state("CompleteCommit" if last == "committed" else "CompleteAbort")
    found = linked.view.read("t", PARTITIONS, "read_committed")
    assert sorted(map(bytes, filter(None, found))) == sorted(expected * PARTITIONS)
