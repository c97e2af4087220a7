"""A group member in its own process, to be killed: it prints each record before it can commit it.

``python group_member.py CLIENTS GROUP TOPIC STRATEGY``; JSON objects on standard output, until
the process that started it kills it or closes its standard input. Not a test.
"""

import json
import sys
import threading

from copier import read_clients

from barnabas.client import RebalanceListener
from barnabas.client.blocking import Consumer
from barnabas.protocol.errors import BarnabasError
from barnabas.protocol.ids import TopicPartition


class Reporter(RebalanceListener):
    """Prints the partitions that come and go."""

    def on_partitions_assigned(self, partitions: set[TopicPartition]) -> None:
        say("gained", sorted(tp.partition for tp in partitions))

    def on_partitions_revoked(self, partitions: set[TopicPartition]) -> None:
        say("gave up", sorted(tp.partition for tp in partitions))


def say(what: str, about: list[object] | list[int]) -> None:
    print(json.dumps({what: about}), flush=True)


def main() -> None:
    clients, group, topic, strategy = sys.argv[1:]
    is_over = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        is_over.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    with Consumer(
        **read_clients(clients),
        group_id=group,
        auto_offset_reset="earliest",
        partition_assignment_strategy=strategy,
        session_timeout_ms=6_000,
        heartbeat_interval_ms=500,
        auto_commit_interval_ms=200,
        request_timeout_ms=4_000,
    ) as consumer:
        consumer.subscribe([topic], listener=Reporter())
        while not is_over.is_set():
            try:
                records = consumer.poll(200)
            except BarnabasError as error:
                print(f"a member's poll: {error!r}", file=sys.stderr, flush=True)
                continue
            say("seen", [(one.partition, one.offset, int(one.value or b"-1")) for one in records])


if __name__ == "__main__":
    main()
