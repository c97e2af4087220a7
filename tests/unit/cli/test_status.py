"""The problems that `barnabas status` reports."""

import json
from dataclasses import replace

import pytest
from rich.console import Console

from barnabas.cli.status import BrokerView, ClusterView, PartitionView, render
from barnabas.client.admin.placement import PartitionReassignment
from barnabas.client.metadata import PartitionInfo
from barnabas.protocol.ids import BrokerId, Endpoint, LeaderEpoch
from barnabas.protocol.messages.replicas import CleanerDescription, ReplicaDescription


def _view(
    *, isr: tuple[int, ...] = (1, 2), leader: int = 1, controller: int = 2, error: str | None = None
) -> ClusterView:
    replica = ReplicaDescription(
        partition_index=0,
        leader_id=leader,
        leader_epoch=4,
        is_leader=True,
        isr=list(isr),
        replicas=[1, 2],
        log_start_offset=0,
        high_watermark=9,
        log_end_offset=10,
        size_bytes=100,
    )
    ids = tuple(map(BrokerId, (1, 2)))
    info = PartitionInfo("t", 0, BrokerId(leader), LeaderEpoch(4), ids, tuple(map(BrokerId, isr)), ())
    return ClusterView(
        cluster_id="abc",
        controller_id=controller,
        brokers=[
            BrokerView(id=1, endpoint=Endpoint("h", 1), is_controller=controller == 1, error=error),
            BrokerView(id=2, endpoint=Endpoint("h", 2), is_controller=controller == 2),
        ],
        partitions=[PartitionView(info=info, replicas={1: replica})],
    )


@pytest.mark.parametrize(
    ("view", "problems"),
    [
        (_view(), []),
        (_view(isr=(1,)), ["t-0: not in sync: 2"]),
        (_view(leader=-1), ["t-0 has no leader"]),
        (_view(controller=-1), ["there is no controller"]),
        (_view(error="timed out"), ["broker 1 does not answer: timed out"]),
    ],
    ids=["healthy", "not in sync", "no leader", "no controller", "no answer"],
)
def test_each_problem_is_one_sentence(view: ClusterView, problems: list[str]) -> None:
    assert view.problems() == problems


def test_a_failed_replica_is_shown_with_its_reason() -> None:
    view = _view()
    view.partitions[0].replicas[1].failure = "following in leader epoch 4: KeyError('a bug')"
    assert view.problems() == ["t-0 on broker 1: following in leader epoch 4: KeyError('a bug')"]
    assert view.as_json()["partitions"][0]["replicas"][0]["failure"].startswith("following")


def test_a_log_that_cannot_be_compacted_is_a_problem_with_its_reason() -> None:
    view = _view()
    view.partitions[0].replicas[1].cleaning_problem = "cannot write or read files: No space left on device"
    assert view.problems() == [
        "t-0 on broker 1 cannot be compacted: cannot write or read files: No space left on device"
    ]
    shown = view.as_json()["partitions"][0]["replicas"][0]["cleaning_problem"]
    assert shown == "cannot write or read files: No space left on device"


def test_the_json_form_has_the_cleaner_of_each_broker() -> None:
    view = _view()
    view.brokers[0].cleaner = CleanerDescription(threads=2, max_dirty_percent=40, in_progress=["t-0"])
    first, second = view.as_json()["brokers"]
    assert (first["cleaner"]["threads"], first["cleaner"]["max_dirty_percent"]) == (2, 40)
    assert first["cleaner"]["in_progress"] == ["t-0"]
    assert second["cleaner"] is None, "it does not run there"
    json.dumps(first)


def test_the_json_form_has_leo_and_hw_per_replica() -> None:
    (partition,) = _view().as_json()["partitions"]
    answered, silent = partition["replicas"]
    assert (answered["broker"], answered["high_watermark"], answered["log_end_offset"]) == (1, 9, 10)
    assert (silent["broker"], silent["high_watermark"]) == (2, None)


def _moving(view: ClusterView, replicas: tuple[int, ...], adding: tuple[int, ...], *removing: int) -> str:
    """Let `t-0` be reassigned; returns the page."""
    (partition,) = view.partitions
    partition.info = replace(partition.info, replicas=tuple(map(BrokerId, replicas)))
    ids = (tuple(map(BrokerId, brokers)) for brokers in (replicas, adding, removing))
    partition.moving = PartitionReassignment(*ids)
    console = Console(width=200)
    with console.capture() as output:
        console.print(render(view))
    return output.get()


def test_a_reassignment_shows_what_it_adds_and_removes_and_is_no_problem() -> None:
    view = _view(isr=(1, 2, 4))
    text = _moving(view, (3, 4, 1, 2), (3, 4), 2)
    assert "t-0 is being reassigned to 3, 4, 1, adding 3, 4 (1 of 2 in sync), removing 2\n" in text
    assert view.problems() == []
    assert view.as_json()["partitions"][0]["reassignment"] == {
        "target": [3, 4, 1],
        "adding": [3, 4],
        "adding_in_sync": [4],
        "removing": [2],
    }


def test_other_replicas_must_be_in_sync_during_a_reassignment() -> None:
    view = _view(isr=(1,))
    assert "t-0 is being reassigned to 3, 1, 2, adding 3 (0 of 1 in sync)\n" in _moving(view, (3, 1, 2), (3,))
    assert view.problems() == ["t-0: not in sync: 2"]


def test_a_removal_alone_adds_nothing() -> None:
    assert "t-0 is being reassigned to 1, removing 2\n" in _moving(_view(), (1, 2), (), 2)


def test_a_controller_that_does_not_list_the_reassignments_is_a_problem() -> None:
    view = _view()
    view.moves_error = "timed out"
    assert view.problems() == ["the controller does not list the reassignments: timed out"]
    assert _view().as_json()["partitions"][0]["reassignment"] is None


@pytest.mark.parametrize(
    ("last_stable_offset", "shown", "in_json"),
    [(9, "10 / 9", 9), (7, "10 / 9 (LSO 7)", 7), (-1, "10 / 9", None)],
)
def test_the_last_stable_offset_is_shown_where_open_transactions_hold_it_back(
    last_stable_offset: int, shown: str, in_json: int | None
) -> None:
    view = _view()
    view.partitions[0].replicas[1].last_stable_offset = last_stable_offset
    console = Console(width=200)
    with console.capture() as output:
        console.print(render(view))
    assert f"1: {shown}   2: ? / ?" in output.get()
    assert view.as_json()["partitions"][0]["replicas"][0]["last_stable_offset"] == in_json
