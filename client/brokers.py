"""Requests to the leaders of partitions, and to brokers that the user names.

Belongs to the event loop of the cluster.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import TypeVar

from barnabas.client.cluster import Cluster
from barnabas.protocol.errors import BarnabasError, ErrorCode, api_error
from barnabas.protocol.ids import BrokerId, TopicPartition

R = TypeVar("R")
PartitionsOfBrokers = Mapping[BrokerId, list[TopicPartition]]
Answers = Iterable[Mapping[TopicPartition, R | BarnabasError]]


def check_alive(cluster: Cluster, broker_ids: Iterable[int]) -> None:
    """Raises BROKER_NOT_AVAILABLE for an id that no live broker has, as far as the metadata tells."""
    missing = set(broker_ids) - {int(node_id) for node_id in cluster.nodes}
    if missing:
        text = f"no live broker has the id {min(missing)}; the live ones are {sorted(cluster.nodes)}"
        raise api_error(ErrorCode.BROKER_NOT_AVAILABLE, text)


async def ask_leaders(
    cluster: Cluster,
    partitions: Collection[TopicPartition],
    timeout_ms: int,
    ask: Callable[
        [PartitionsOfBrokers, int], Awaitable[Iterable[Mapping[TopicPartition, R | BarnabasError]]]
    ],
) -> dict[TopicPartition, R]:
    """The answer for each partition; leaders that fail or have moved are asked again.

    ``ask`` asks each broker once for its partitions, within a time in ms. Raises permanent errors, and the
    last one after the timeout.
    """
    results: dict[TopicPartition, R] = {}
    retries = cluster.config.make_retries(timeout_ms)
    with cluster.asking_about({tp.topic for tp in partitions}):
        while True:
            left_ms = retries.left_ms()
            by_leader: dict[BrokerId, list[TopicPartition]] = {}
            for tp in partitions:
                if tp not in results:
                    try:
                        leader = cluster.leader_for(tp) or await cluster.leader(tp, left_ms)
                    except BarnabasError as failure:
                        retries.check(failure)
                        raise
                    by_leader.setdefault(leader.node_id, []).append(tp)
            error: BarnabasError | None = None
            for answer in await ask(by_leader, left_ms):
                for tp, result in answer.items():
                    if not isinstance(result, BarnabasError):
                        results[tp] = result
                    elif error is None or not result.retriable:
                        error = result
            if error is None:
                return {tp: results[tp] for tp in partitions}
            await cluster.refresh_after(error, retries)
