"""A member of the demo's consumer group, in a process of its own, so that it can be killed.

``python -m barnabas.cli.demo.member BOOTSTRAP TOPIC GROUP``. It starts to read when a line arrives on its
standard input, and leaves the group at the end of that input, as when the demo dies. It reports its
partitions and the records read on standard output, one JSON object a line, *before* the next poll can commit
them, so that no unreported record is committed. One thread polls, another waits for the input.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Final

from barnabas.cli.demo.ledger import checksum_of
from barnabas.client import ConsumerRecord, RebalanceListener
from barnabas.client.blocking import Consumer
from barnabas.protocol.ids import TopicPartition

SESSION_TIMEOUT_MS: Final = 3_000
"""Short, so that a dead member is noticed in seconds; the brokers have to allow it."""

_HEARTBEAT_INTERVAL_MS: Final = 300
_AUTO_COMMIT_INTERVAL_MS: Final = 200
_POLL_MS: Final = 100


class Member(RebalanceListener):
    """Reads for the group, and reports."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._may_read = threading.Event()
        self._is_over = threading.Event()
        self._owned: list[int] | None = None

    def on_partitions_assigned(self, partitions: set[TopicPartition]) -> None:
        if not self._may_read.is_set():
            self._consumer.pause(*partitions)

    def obey(self) -> None:
        """On a thread of its own: begin at the first line of the input, end with the input."""
        sys.stdin.readline()
        self._may_read.set()
        sys.stdin.read()
        self._is_over.set()

    def run(self) -> None:
        while not self._is_over.is_set():
            if self._may_read.is_set() and (paused := self._consumer.paused()):
                self._consumer.resume(*paused)
            records = self._consumer.poll(_POLL_MS)
            owned = sorted(tp.partition for tp in self._consumer.assignment())
            if owned != self._owned:
                self._owned = owned
                _say({"owned": owned})
            if records:
                _say({"seen": [_seen(record) for record in records]})


def _seen(record: ConsumerRecord) -> tuple[int, int, int]:
    return record.partition, record.offset, checksum_of(record.key or b"", record.value or b"")


def _say(what: dict[str, object]) -> None:
    print(json.dumps(what, separators=(",", ":")), flush=True)


def main() -> None:
    bootstrap, topic, group = sys.argv[1:]
    with Consumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        session_timeout_ms=SESSION_TIMEOUT_MS,
        heartbeat_interval_ms=_HEARTBEAT_INTERVAL_MS,
        auto_commit_interval_ms=_AUTO_COMMIT_INTERVAL_MS,
    ) as consumer:
        member = Member(consumer)
        threading.Thread(target=member.obey, daemon=True).start()
        consumer.subscribe([topic], listener=member)
        member.run()


if __name__ == "__main__":
    main()
