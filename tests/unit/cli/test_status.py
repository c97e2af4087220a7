"""What `barnabas status` calls a problem."""

from __future__ import annotations

from barnabas.cli.cluster_view import BrokerView, ClusterView, PartitionView
from barnabas.cli.status import find_problems
from barnabas.protocol.ids import Endpoint
from barnabas.protocol.messages.describe_replicas import ReplicaDescription


def _view(*, isr: list[int], leader: int = 1, controller: int = 2, error: str | None = None) -> ClusterView:
    replica = ReplicaDescription(
        partition_index=0,
        leader_id=leader,
        leader_epoch=4,
        is_leader=True,
        isr=isr,
        replicas=[1, 2],
        log_start_offset=0,
        high_watermark=9,
        log_end_offset=10,
        size_bytes=100,
    )
    return ClusterView(
        cluster_id="abc",
        controller_id=controller,
        brokers=[
            BrokerView(id=1, endpoint=Endpoint("h", 1), is_controller=controller == 1, error=error),
            BrokerView(id=2, endpoint=Endpoint("h", 2), is_controller=controller == 2),
        ],
        partitions=[
            PartitionView(
                topic="t",
                partition=0,
                leader=leader,
                leader_epoch=4,
                replicas=[1, 2],
                isr=isr,
                offsets={1: replica},
            )
        ],
    )


def test_a_healthy_cluster_has_no_problem() -> None:
    assert find_problems(_view(isr=[1, 2]), []) == []


def test_a_replica_out_of_the_isr_is_named() -> None:
    assert find_problems(_view(isr=[1]), []) == ["t-0: not in sync: 2"]


def test_a_failed_replica_is_shown_with_its_reason() -> None:
    view = _view(isr=[1, 2])
    view.partitions[0].offsets[1].failure = "following in leader epoch 4: KeyError('a bug')"
    assert find_problems(view, []) == ["t-0 on broker 1: following in leader epoch 4: KeyError('a bug')"]
    assert view.as_json()["partitions"][0]["replicas"][0]["failure"].startswith("following")


def test_a_partition_without_leader_is_named() -> None:
    assert find_problems(_view(isr=[1, 2], leader=-1), []) == ["t-0 has no leader"]


def test_a_cluster_without_controller_is_told() -> None:
    assert find_problems(_view(isr=[1, 2], controller=-1), []) == ["there is no controller"]


def test_a_broker_that_does_not_answer_is_told_with_the_reason() -> None:
    assert find_problems(_view(isr=[1, 2], error="timed out"), []) == ["broker 1 does not answer: timed out"]


def test_the_json_form_has_leo_and_hw_per_replica() -> None:
    (partition,) = _view(isr=[1, 2]).as_json()["partitions"]
    known, unknown = partition["replicas"]
    assert (known["broker"], known["high_watermark"], known["log_end_offset"]) == (1, 9, 10)
    assert (unknown["broker"], unknown["high_watermark"]) == (2, None)
