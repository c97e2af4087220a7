"""Clients that send group requests to the current coordinator, and workers that commit in a loop."""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

from barnabas.deploy.local import LocalCluster
from barnabas.deploy.running_cluster import RunningCluster
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import Endpoint
from barnabas.protocol.messages.find_coordinator import FindCoordinatorRequest
from barnabas.protocol.messages.groups import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from barnabas.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from barnabas.protocol.messages.partitions import TopicPartitionIndexes
from tests.support.waiting import wait_for

from .raw_client import RawClient

DEADLINE_S = 30.0
STOP_S = 90.0
PASSING = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}
"""The errors that a client retries."""


class GroupClient:
    """Sends requests to the current coordinator of a group; a context manager, for one thread."""

    def __init__(self, cluster: RunningCluster, group: str, patience_s: float = DEADLINE_S) -> None:
        self._cluster = cluster
        self._security = cluster.channel_security()
        self._patience_s = patience_s
        self.group = group
        self.coordinator = -1
        self._connection: RawClient | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._drop()

    def ask(self, request: Any, code_of: Callable[[Any], int]) -> Any:
        """The first answer without a retriable error; AssertionError at the deadline."""
        deadline = time.monotonic() + self._patience_s
        last: object = None
        while time.monotonic() < deadline:
            try:
                answer = self._connected().ask(request)
                last = ErrorCode(code_of(answer))
                if last not in PASSING:
                    return answer
            except OSError as error:
                last = error
            self._drop()
            threading.Event().wait(0.02)
        raise AssertionError(f"{type(request).__name__} of {self.group}: {last!r}")

    def _connected(self) -> RawClient:
        if self._connection is None:
            found = self._find()
            self._connection = RawClient(Endpoint(found.host, found.port), security=self._security)
            self.coordinator = found.node_id
        return self._connection

    def _find(self) -> Any:
        """Raises ConnectionError while no broker knows it."""
        for broker in self._cluster.brokers:
            if broker.state != "running":
                continue
            try:
                with RawClient(broker.endpoint, security=self._security) as client:
                    request = FindCoordinatorRequest(coordinator_keys=[self.group])
                    found = client.ask(request).coordinators[0]
            except OSError:
                continue
            if found.error_code == ErrorCode.NONE:
                return found
        raise ConnectionError("no broker knows the coordinator")

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.__exit__()
            self._connection = None

    # ---- requests

    def commit(self, offset: int) -> None:
        """Acknowledged on return."""
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        topic = OffsetCommitRequestTopic(name="t", partitions=[partition])
        answer = self.ask(
            OffsetCommitRequest(group_id=self.group, topics=[topic]),
            lambda answer: answer.topics[0].partitions[0].error_code,
        )
        assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE

    def committed(self) -> int:
        topics = [TopicPartitionIndexes(name="t", partition_indexes=[0])]
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=self.group, topics=topics)])
        answer = self.ask(request, lambda answer: answer.groups[0].error_code)
        offset: int = answer.groups[0].topics[0].partitions[0].committed_offset
        return offset

    def join(self, member: str = "") -> Any:
        """Join as the only member, until the group is stable."""
        request = JoinGroupRequest(
            group_id=self.group,
            # It sends no heartbeats, however long a test takes.
            session_timeout_ms=300_000,
            rebalance_timeout_ms=20_000,
            member_id=member,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"sub")],
        )
        joined = self.ask(request, lambda answer: answer.error_code)
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            return self.join(joined.member_id)
        assert joined.error_code == ErrorCode.NONE
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            assignments=[SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"all")],
        )
        assert self.ask(request, lambda answer: answer.error_code).error_code == ErrorCode.NONE
        return joined


class Worker(ABC):
    """Calls `step` on a thread until `stop`; an error ends it and becomes its `problem`."""

    def __init__(self, pause_s: float = 0.0) -> None:
        self.problem: Exception | None = None
        self._pause_s = pause_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @abstractmethod
    def step(self) -> None:
        """One piece of the work."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(STOP_S)

    def _run(self) -> None:
        try:
            while not self._stopping.wait(self._pause_s):
                self.step()
        except (AssertionError, OSError) as error:
            self.problem = error


@contextmanager
def working(workers: Iterable[Worker]) -> Iterator[None]:
    workers = list(workers)
    for worker in workers:
        worker.start()
    try:
        yield
    finally:
        for worker in workers:
            worker.stop()


class Committer(Worker):
    """Commits increasing offsets for one group."""

    def __init__(self, cluster: LocalCluster, group: str, patience_s: float = DEADLINE_S) -> None:
        super().__init__()
        self.client = GroupClient(cluster, group, patience_s)
        self.tried = self.acknowledged = 0

    def step(self) -> None:
        self.tried += 1
        self.client.commit(self.tried)
        self.acknowledged = self.tried

    def stop(self) -> None:
        super().stop()
        with self.client:
            pass


@contextmanager
def committing(cluster: LocalCluster, groups: Sequence[str]) -> Iterator[list[Committer]]:
    committers = [Committer(cluster, group) for group in groups]
    with working(committers):
        yield committers


def wait_progress(committers: list[Committer], when: str, timeout_s: float = DEADLINE_S) -> None:
    """Wait until every group has two more acknowledged commits; the second began after this call."""
    goals = [committer.acknowledged + 2 for committer in committers]

    def is_so() -> bool:
        assert [c.problem for c in committers if c.problem is not None] == []
        return all(c.acknowledged >= goal for c, goal in zip(committers, goals, strict=True))

    wait_for(is_so, lambda: f"{when}: {[(c.acknowledged, c.tried) for c in committers]}", timeout_s=timeout_s)
