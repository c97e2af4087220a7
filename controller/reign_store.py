"""The reads and writes of a reign in ZooKeeper, as protocols: types only.

A watch is called at most once, on any thread, and may only put something into a queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from barnabas.controller.partition_state import StateReader, StateWriter
from barnabas.controller.topic_deletion import TopicRemover
from barnabas.protocol.ids import BrokerId, TopicPartition
from barnabas.zookeeper.znodes import BrokerRegistration, MalformedZnode, StoredConfig, TopicAssignment

Watch = Callable[[object], None]


class ReignStore(StateReader, Protocol):
    """What a reign reads; `ClusterStore` is one."""

    def brokers(self, watch: Watch | None = None) -> dict[BrokerId, BrokerRegistration]: ...

    def topics(self, watch: Watch | None = None) -> list[str]: ...

    def topic_assignments(
        self, topics: Iterable[str], watch: Callable[[str], None] | None = None
    ) -> dict[str, TopicAssignment | MalformedZnode]: ...

    def topic_configs(self, topics: Iterable[str]) -> dict[str, StoredConfig]: ...

    def deletion_requests(self, watch: Watch | None = None) -> list[str]: ...

    def isr_changes(self, watch: Watch | None = None) -> dict[str, list[TopicPartition]]: ...

    def log_dir_failures(self, watch: Watch | None = None) -> dict[str, BrokerId | None]: ...


class ReignWriter(StateWriter, TopicRemover, Protocol):
    """What a reign writes; `ControllerWriter` is one."""

    def set_topic_assignment(self, name: str, topic: TopicAssignment) -> bool: ...

    def delete_isr_changes(self, sequences: Iterable[str]) -> None: ...

    def delete_log_dir_failures(self, sequences: Iterable[str]) -> None: ...
