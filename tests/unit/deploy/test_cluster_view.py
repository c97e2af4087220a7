"""The problems of a cluster, as sentences with their remedies."""

import os

import pytest

from barnabas.deploy.cluster_view import ClusterView, PartitionView, ZooKeeperView
from barnabas.deploy.links import Rule, RuleKind
from barnabas.deploy.process import ManagedProcess, ProcessId
from barnabas.protocol.errors import ClusterAuthorizationFailedError
from tests.support.views import make_large_view, make_partition, make_process, make_view


@pytest.mark.parametrize(
    ("view", "problems"),
    [
        (make_view(), []),
        (make_view(isr=(1,)), ["t-0 is not in sync on broker 2 (it catches up, or its log says why not)"]),
        (make_view(leader=-1), ["t-0 has no leader: start brokers 1, 2"]),
        (
            make_view(controller=-1),
            ["there is no controller: a broker becomes it as soon as ZooKeeper answers"],
        ),
        (make_view(error="timed out"), ["broker 1 does not answer: timed out (its log says what it does)"]),
    ],
    ids=["healthy", "not in sync", "no leader", "no controller", "no answer"],
)
def test_each_problem_is_one_sentence(view: ClusterView, problems: list[str]) -> None:
    assert view.problems() == problems


def test_a_refusal_is_no_silence() -> None:
    """A user who may only read saw every broker as one that does not answer."""
    view = make_large_view([], 1, 2)
    refusal = ClusterAuthorizationFailedError("broker 1")
    view.brokers = [broker._replace(error=refusal) for broker in view.brokers]
    view.moves_error = str(refusal)
    assert view.problems() == [
        "brokers 1, 2 may not tell this user the state of replicas: grant it the operation describe on the "
        "cluster"
    ]


def test_brokers_with_fault_rules_are_named_with_what_ends_that() -> None:
    view = make_large_view([], 1, 2, 3)
    view.brokers = [broker._replace(fault_rules=broker.node.node_id - 1) for broker in view.brokers]
    assert view.problems() == ["brokers 2, 3 have fault rules: `barnabas faults clear` removes them"]


@pytest.mark.parametrize(
    ("partition", "problem"),
    [
        (
            make_partition("t-0", isr=(1,), min_isr=2),
            "t-0 is below min.insync.replicas: writes with acks=all are refused until one of brokers 2, 3 "
            "is in sync",
        ),
        (make_partition("t-0", isr=(1, 2), min_isr=2), None),
        (make_partition("t-0", isr=(1, 2), min_isr=9), "t-0 is below min.insync.replicas: "),
        (make_partition("t-0", isr=(1,), leader=-1, min_isr=2), "t-0 has no leader: start broker 1"),
    ],
    ids=["below", "at the minimum", "all replicas", "no leader"],
)
def test_writes_that_are_refused_are_named_with_what_ends_that(
    partition: PartitionView, problem: str | None
) -> None:
    problems = make_large_view([partition], 1, 2, 3).problems()
    assert [text.startswith(problem or "?") for text in problems].count(True) == (problem is not None)
    assert any("min.insync" in text for text in problems) == (problem is not None and "min.in" in problem)


def test_a_played_full_disk_and_broken_links_are_problems_with_their_remedies() -> None:
    """Both looked healthy until a write failed."""
    view = make_large_view([], 1, 2, 3)
    view.full_brokers = [3]
    view.broken_links = [
        Rule(kind=RuleKind.CUT, source="1", target="2"),
        Rule(kind=RuleKind.DELAY, source="client", target="zookeeper", delay_ms=200),
        Rule(kind=RuleKind.REJECT, source="1", target="3"),
        Rule(kind=RuleKind.REFUSE, target="3"),
    ]
    assert view.problems() == [
        "the disk of broker 3 is full: `barnabas restart 3` gives it room",
        "links are broken (nothing gets from broker 1 to broker 2, bytes from the clients to ZooKeeper take "
        "200 ms longer, broker 3 looks dead to broker 1 and 1 more): mend them on the page Faults, or all "
        "with `barnabas restart links`",
    ]


@pytest.mark.parametrize("unreachable", ["no broker answers", None])
def test_a_stopped_cluster_is_one_problem(unreachable: str | None) -> None:
    """The remedy of each process, a restart of it, is refused for a cluster that is stopped."""
    view = make_large_view([make_partition("t-0", isr=(1,))] if unreachable is None else [], 1)
    view.processes = [make_process(id) for id in (1, 2)]
    view.zookeeper = ZooKeeperView(endpoint="h:2181", state="gone")
    view.links = "gone"
    view.unreachable, view.is_stopped = unreachable, True
    other = "" if unreachable else ", and another cluster answers at its address"
    assert view.problems() == [f"the cluster is stopped{other}: `barnabas up`"]


def test_a_full_disk_is_the_first_problem() -> None:
    view = make_large_view([], 1, 2, 3)
    view.full_disk = "/d"
    view.zookeeper = ZooKeeperView(endpoint="h:2181", state="gone")
    assert view.problems()[0] == ("the disk of /d is full: make room, then restart what has ended")


def test_the_remedies_name_the_directory_that_the_command_was_given() -> None:
    view = make_large_view([], 1, 2, 3)
    view.dir_words = " --dir /b"
    view.zookeeper = ZooKeeperView(endpoint="h:2181", state="gone")
    view.processes = [make_process(id) for id in (1, 9)]
    running = ProcessId.of(os.getpid())
    assert running is not None
    view.processes[1].process = ManagedProcess("broker 9", running)
    assert view.problems() == [
        "ZooKeeper is down: `barnabas restart zookeeper --dir /b`",
        "broker 1 is down: `barnabas restart 1 --dir /b`",
        "broker 9 runs but has not joined the cluster: see `barnabas logs 9 --dir /b`",
    ]
