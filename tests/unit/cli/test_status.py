"""The problems that `barnabas status` reports."""

import json
import re

import pytest
from rich.console import Console

from barnabas.cli.status import render, view_json
from barnabas.client.admin.log_dirs import BrokerReplicas
from barnabas.client.admin.placement import PartitionReassignment
from barnabas.client.metadata import Node
from barnabas.deploy.cluster_view import ClusterView, ZooKeeperView
from barnabas.deploy.local_broker import LocalBroker
from barnabas.protocol.errors import LocalError
from barnabas.protocol.ids import BrokerId, Endpoint
from barnabas.protocol.messages.replicas import CleanerDescription, FollowerDescription
from tests.support.views import make_large_view, make_partition, make_process, make_view


def test_a_failed_replica_is_shown_with_its_reason() -> None:
    view = make_view()
    view.partitions[0].replicas[1].failure = "following in leader epoch 4: KeyError('a bug')"
    assert view.problems() == ["t-0 on broker 1: following in leader epoch 4: KeyError('a bug')"]
    assert view_json(view)["partitions"][0]["replicas"][0]["failure"].startswith("following")


def test_a_log_that_cannot_be_compacted_is_a_problem_with_its_reason() -> None:
    view = make_view()
    view.partitions[0].replicas[1].cleaning_problem = "cannot write or read files: No space left on device"
    assert view.problems() == [
        "t-0 on broker 1 cannot be compacted: cannot write or read files: No space left on device"
    ]
    shown = view_json(view)["partitions"][0]["replicas"][0]["cleaning_problem"]
    assert shown == "cannot write or read files: No space left on device"


def test_the_json_form_has_the_cleaner_of_each_broker() -> None:
    view = make_view()
    cleaner = CleanerDescription(threads=2, max_dirty_percent=40, in_progress=["t-0"])
    view.brokers[0] = view.brokers[0]._replace(cleaner=cleaner)
    first, second = view_json(view)["brokers"]
    assert (first["cleaner"]["threads"], first["cleaner"]["max_dirty_percent"]) == (2, 40)
    assert first["cleaner"]["in_progress"] == ["t-0"]
    assert second["cleaner"] is None, "it does not run there"
    json.dumps(first)


def test_the_json_form_has_leo_and_hw_per_replica() -> None:
    (partition,) = view_json(make_view())["partitions"]
    answered, silent = partition["replicas"]
    assert (answered["broker"], answered["high_watermark"], answered["log_end_offset"]) == (1, 9, 10)
    assert (silent["broker"], silent["high_watermark"]) == (2, None)


def test_the_json_form_has_the_followers_as_the_leader_knows_them() -> None:
    view = make_view()
    follower = FollowerDescription(broker_id=2, log_end_offset=9, caught_up_ms_ago=3, is_leaving=True)
    view.partitions[0].replicas[1].followers.append(follower)
    (partition,) = view_json(view)["partitions"]
    leader, silent = partition["replicas"]
    names = ("remote_log_end_offset", "fetched_ms_ago", "caught_up_ms_ago", "isr_change")
    assert [leader[name] for name in names] == [None] * 4
    assert [silent[name] for name in names] == [9, None, 3, "leaving"], "it has not fetched in this epoch"
    view.partitions[0].replicas[1].followers.clear()
    (older,) = view_json(view)["partitions"]
    assert [older["replicas"][1][name] for name in names] == [None] * 4


def _shown(view: ClusterView, *, width: int = 200, height: int | None = None, folds: bool = True) -> str:
    console = Console(width=width)
    with console.capture() as output:
        console.print(render(view, console=console, height=height, folds_internal=folds))
    return output.get()


def test_the_page_of_a_large_cluster_fits_a_terminal_with_its_problems_first() -> None:
    internal = [make_partition(f"__consumer_offsets-{number}", isr=(1, 3)) for number in range(50)]
    own = [make_partition(f"t-{number}") for number in range(40)] + [make_partition("z-0", isr=(1, 3))]
    page = _shown(make_large_view([*internal, *own], 1, 3), width=80, height=24)
    lines = page.splitlines()
    assert len(lines) <= 24
    assert lines[1] == "! broker 2 has replicas and is not in the cluster: start it"
    assert lines[2].startswith("! 51 partitions (__consumer_offsets-0, ")
    assert "… 48 more) are" in " ".join(lines)
    assert "__consumer_offsets: 50 partitions, 50 with problems" in page
    assert re.search(r"^ ?z-0", page, re.MULTILINE), "those with problems are the last to be left out"
    assert re.search(r"^… \d+ more partitions \(`--topic TOPIC` or `--all` shows them\)", page, re.MULTILINE)
    every = _shown(make_large_view([*internal, *own], 1, 3), folds=False)
    assert len(re.findall(r"^ ?(?:__consumer_offsets|t|z)-\d+", every, re.MULTILINE)) == 91


def test_a_line_of_a_narrow_terminal_is_broken_between_replicas_only() -> None:
    view = make_large_view([make_partition("a-topic-with-a-long-name-0")], 1, 2, 3)
    view.zookeeper = ZooKeeperView(endpoint="127.0.0.1:2181", state="running", pid=123456)
    page = _shown(view, width=60)
    assert re.search(r"127.0.0.1:9001.* up, controller ", page)
    assert re.search(r"zookeeper   127.0.0.1:2181.* 123456", page)
    assert [page.count(f"{id}:?/?") for id in (1, 2, 3)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        ("running", None),
        ("gone", "ZooKeeper is down: `barnabas restart zookeeper`"),
        ("paused", "ZooKeeper is paused: `barnabas resume zookeeper`"),
        ("silent", "ZooKeeper does not answer at h:2181: see its log"),
    ],
)
def test_zookeeper_is_a_row_and_its_death_a_problem(state: str, problem: str | None) -> None:
    view = make_large_view([], 1, 2, 3)
    view.zookeeper = ZooKeeperView(endpoint="h:2181", state=state)
    view.moves_error = "NOT_CONTROLLER" if problem else None
    assert view.problems() == ([] if problem is None else [problem]), "the cause, not its consequence"
    assert re.search(r"zookeeper +h:2181", _shown(view))
    assert view_json(view)["zookeeper"] == {"endpoint": "h:2181", "state": state, "pid": None}


def test_an_offline_log_dir_is_one_problem_with_its_reason() -> None:
    view = make_view()
    replica = view.partitions[0].replicas[1]
    replica.is_offline, replica.log_dir = True, "/d"
    replica.failure = "/d/t-0/0.log: No space left on device"
    assert view.problems() == [
        "broker 1: log dir /d is offline, 1 replica with it: /d/t-0/0.log: No space left on device "
        "(mend it, then restart the broker)"
    ]
    view.processes = [make_process(1)]
    assert view.problems()[-1].endswith("(mend it, then restart the broker: `barnabas restart 1`)")
    assert "1:offline" in _shown(view)


def test_a_paused_broker_is_one_problem_although_it_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    view = make_view(error="timed out")
    view.processes = [make_process(1)]
    monkeypatch.setattr(LocalBroker, "state", "paused")
    assert view.problems() == ["broker 1 is paused: `barnabas resume 1`"]
    assert [broker["error"] for broker in view_json(view)["brokers"]] == ["timed out", None]
    assert [(shown["state"], shown["pid"]) for shown in view_json(view)["processes"]] == [("paused", None)]


def _moving(view: ClusterView, replicas: tuple[int, ...], adding: tuple[int, ...], *removing: int) -> str:
    """Let `t-0` be reassigned; returns the page."""
    (partition,) = view.partitions
    partition.info = partition.info._replace(replicas=tuple(map(BrokerId, replicas)))
    view.brokers += [
        BrokerReplicas(Node(BrokerId(id), Endpoint("h", id)), {}) for id in {*replicas} - view.members
    ]
    ids = (tuple(map(BrokerId, brokers)) for brokers in (replicas, adding, removing))
    partition.moving = PartitionReassignment(*ids)
    return _shown(view)


def test_a_reassignment_shows_what_it_adds_and_removes_and_is_no_problem() -> None:
    view = make_view(isr=(1, 2, 4))
    text = _moving(view, (3, 4, 1, 2), (3, 4), 2)
    assert "t-0 is being reassigned to 3, 4, 1, adding 3, 4 (1 of 2 in sync), removing 2\n" in text
    assert view.problems() == []
    assert view_json(view)["partitions"][0]["reassignment"] == {
        "target": [3, 4, 1],
        "adding": [3, 4],
        "adding_in_sync": [4],
        "removing": [2],
    }


def test_other_replicas_must_be_in_sync_during_a_reassignment() -> None:
    view = make_view(isr=(1,))
    assert "t-0 is being reassigned to 3, 1, 2, adding 3 (0 of 1 in sync)\n" in _moving(view, (3, 1, 2), (3,))
    assert view.problems() == ["t-0 is not in sync on broker 2 (it catches up, or its log says why not)"]


def test_a_removal_alone_adds_nothing() -> None:
    assert "t-0 is being reassigned to 1, removing 2\n" in _moving(make_view(), (1, 2), (), 2)


def test_a_controller_that_does_not_list_the_reassignments_is_a_problem() -> None:
    view = make_view()
    view.moves_error = "timed out"
    assert view.problems() == ["the controller does not list the reassignments: timed out"]
    view.brokers[1] = view.brokers[1]._replace(error=LocalError("silent"))
    (problem,) = view.problems()
    assert problem.startswith("broker 2 does not answer: silent"), "it is the controller"
    view.partitions[0].info = view.partitions[0].info._replace(isr=(BrokerId(1),))
    assert view.problems()[1] == "t-0 is not in sync on broker 2", "the cause is named"
    assert view_json(make_view())["partitions"][0]["reassignment"] is None


@pytest.mark.parametrize(
    ("last_stable_offset", "shown", "in_json"),
    [(9, "10/9", 9), (7, "10/9(LSO:7)", 7), (-1, "10/9", None)],
)
def test_the_last_stable_offset_is_shown_where_open_transactions_hold_it_back(
    last_stable_offset: int, shown: str, in_json: int | None
) -> None:
    view = make_view()
    view.partitions[0].replicas[1].last_stable_offset = last_stable_offset
    assert f"1:{shown}  2:?/?" in _shown(view)
    assert view_json(view)["partitions"][0]["replicas"][0]["last_stable_offset"] == in_json
