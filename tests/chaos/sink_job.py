"""The driver and the tasks of an exactly-once sink in one process, without Spark, to be killed and stopped.

``python -m tests.chaos.sink_job OPTIONS NAME TOPIC CHECKPOINT BATCHES SIGNAL STEP``. It writes the batches
that the commit log lacks, up to BATCHES in all, as Spark does. At the given step, which is a request
or its answer, it sends itself the signal; step 0 never comes. Not a test.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from barnabas.client.admin.admin import Admin
from barnabas.client.blocking import Producer
from barnabas.protocol.errors import BarnabasError
from barnabas.spark_connector.sink.exactly_once import TaskResult
from barnabas.spark_connector.sink.sink_options import parse_sink_options
from barnabas.spark_connector.sink.sink_register import RegisterTopic
from barnabas.spark_connector.sink.transactional_sink import connections_for, open_attempt_delivery

PARTITIONS: Final = 2
ROWS: Final = 3
QUERY: Final = "query"
FAILED: Final = 3
"""The exit code of a job that reported an error, as a fenced one does."""
_STEPS: Final = {
    Admin: ("fence_producers", "list_transactions", "describe_transactions", "complete_transaction"),
    RegisterTopic: ("read", "write"),
    Producer: ("__init__", "begin_transaction", "flush", "prepare_transaction"),
}
STEPS_OF_A_BATCH: Final = 50
"""About as many as a batch has."""


class Faults:
    """Sends this process a signal at one of its steps."""

    def __init__(self, number: int, at: int) -> None:
        self._number = number
        self._left = at

    def step(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), self._number)

    def watch(self) -> None:
        for owner, names in _STEPS.items():
            for name in names:
                setattr(owner, name, self._watched(getattr(owner, name)))

    def _watched(self, method: Any) -> Any:
        if inspect.iscoroutinefunction(method):

            @functools.wraps(method)
            async def call(*args: Any, **kwargs: Any) -> Any:
                self.step()
                outcome = await method(*args, **kwargs)
                self.step()
                return outcome

            return call

        @functools.wraps(method)
        def call_plainly(*args: Any, **kwargs: Any) -> Any:
            self.step()
            outcome = method(*args, **kwargs)
            self.step()
            return outcome

        return call_plainly


def rows_of(batch: int, partition: int) -> list[bytes]:
    return [b"%d-%d-%d" % (batch, partition, row) for row in range(ROWS)]


def committed(checkpoint: Path) -> int:
    """The number of batches in the commit log."""
    return len(list(checkpoint.glob("[0-9]*")))


def read_options(word: str) -> dict[str, str]:
    """The sink's options for its connections: a file with them, or the bootstrap servers alone."""
    if not word.endswith(".json"):
        return {"kafka.bootstrap.servers": word}
    options: dict[str, str] = json.loads(Path(word).read_text())
    return options


def run(words: Sequence[str], faults: Faults) -> None:
    clients, name, topic, directory, batches = words
    checkpoint = Path(directory)
    options = parse_sink_options({**read_options(clients), "topic": topic, "kafka.transactional.id": name})
    connections = connections_for(options)
    timeout_ms = connections.max_timeout_ms()
    while (batch := committed(checkpoint)) < int(batches):
        claim = connections.coordinate(lambda coordination: coordination.claim(name))
        results = []
        for partition in range(PARTITIONS):
            task = TaskResult(claim, QUERY, batch, partition)
            if claim.has_decided(QUERY, batch):
                results.append(TaskResult(claim, QUERY, batch, partition, was_decided=True))
                continue
            delivery = open_attempt_delivery(options, task, 0, timeout_ms)
            try:
                for row in rows_of(batch, partition):
                    delivery.producer.send(topic, row, partition=partition)
                results.append(delivery.finish().result)
            except BaseException:
                delivery.abandon()
                raise
        done = list(results)
        connections.coordinate(lambda coordination: coordination.commit(done))  # noqa: B023 - called here
        faults.step()
        (checkpoint / str(batch)).touch()
        print(batch, flush=True)


def main(words: Sequence[str]) -> int:
    *others, number, step = words
    faults = Faults(int(number), int(step))
    faults.watch()
    try:
        run(others, faults)
    except BarnabasError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
