"""The state of the live page from a view of the cluster."""

import copy
import random
from typing import Any

from barnabas.client.admin.placement import PartitionReassignment
from barnabas.deploy.cluster_view import ClusterView, unreachable_view
from barnabas.protocol.errors import ClusterAuthorizationFailedError, LocalError
from barnabas.protocol.messages.replicas import FollowerDescription, ReplicaDescription
from barnabas.ui.snapshot import KEYED, Look, State, changes, state_of
from tests.support.views import make_large_view, make_partition, make_view


def _view(caught_up_ms_ago: int, remote_log_end_offset: int = 10) -> ClusterView:
    """Broker 1 leads and ends at 10."""
    view = make_view()
    view.partitions[0].replicas[1].followers[:] = [
        FollowerDescription(
            broker_id=2, log_end_offset=remote_log_end_offset, caught_up_ms_ago=caught_up_ms_ago
        )
    ]
    view.partitions[0].replicas[2] = view.partitions[0].replicas[1]
    return view


def test_an_idle_partition_does_not_change_with_the_ages_of_fetches() -> None:
    """100 idle partitions were 245 KB a second to each page."""
    before = state_of(Look(time_ms=1_000, view=_view(3)), None)
    same = state_of(Look(time_ms=1_500, view=_view(403)), before)
    later = state_of(Look(time_ms=2_000, view=_view(40)), same)
    assert "partitions" not in changes(later, same)
    assert same["partitions"]["t-0"]["replicas"]["2"]["caught_up_ms_ago"] == 0
    late = state_of(Look(time_ms=2_500, view=_view(700, remote_log_end_offset=9)), later)
    assert late["partitions"]["t-0"]["replicas"]["2"]["caught_up_ms_ago"] == 700
    assert late["partitions"]["t-0"]["replicas"]["2"]["remote_log_end_offset"] == 9


def test_a_broker_that_refuses_is_running() -> None:
    view = make_view()
    view.brokers = [view.brokers[0]._replace(error=ClusterAuthorizationFailedError("broker 1"))]
    view.partitions[0].replicas.clear()
    broker = state_of(Look(time_ms=1_000, view=view), None)["brokers"]["1"]
    assert (broker["state"], broker["size_bytes"]) == ("running", None)


def _random_view(chosen: random.Random) -> ClusterView:
    if chosen.random() < 0.1:
        return unreachable_view(LocalError("no broker answers"))
    partitions = []
    for name in chosen.sample(["t-0", "t-1", "u-0"], chosen.randint(1, 3)):
        isr = tuple(chosen.sample([1, 2, 3], chosen.randint(1, 3)))
        partition = make_partition(name, isr=isr, leader=chosen.choice([-1, 1, 2]), min_isr=2)
        for id in chosen.sample([1, 2, 3], chosen.randint(0, 3)):
            end = chosen.choice([-1, 8, 9])
            follower = FollowerDescription(
                broker_id=3, log_end_offset=8, caught_up_ms_ago=chosen.randint(0, 9)
            )
            partition.replicas[id] = ReplicaDescription(
                partition_index=0, log_end_offset=end, size_bytes=end, followers=[follower]
            )
        partitions.append(partition)
    return make_large_view(partitions, *chosen.sample([1, 2, 3], 2))


def _aged(view: ClusterView, chosen: random.Random) -> ClusterView:
    """A moment later: the ages of fetches differ, and seldom the ISR, a move, or an answer."""
    later = copy.deepcopy(view)
    for partition in later.partitions:
        if chosen.random() < 0.2:
            partition.info = partition.info._replace(isr=(chosen.randint(1, 3),))
        if chosen.random() < 0.1:
            partition.moving = PartitionReassignment(partition.info.replicas, (), ())
        if partition.replicas and chosen.random() < 0.1:
            partition.replicas.popitem()
        for replica in partition.replicas.values():
            for follower in replica.followers:
                follower.caught_up_ms_ago = chosen.randint(0, 9)
    return later


def _merged(state: State, change: dict[str, Any]) -> State:
    """As ``static/stream.js`` merges them."""
    gone = change.pop("gone", {})
    merged = state | {name: state[name] | part if name in KEYED else part for name, part in change.items()}
    for part, names in gone.items():
        merged[part] = {name: entry for name, entry in merged[part].items() if name not in names}
    return merged


def test_a_page_that_merges_the_changes_has_the_state() -> None:
    """And an entry that did not change is the same object: nothing compares it again."""
    for seed in range(200):
        chosen = random.Random(seed)
        last = Look(time_ms=0, view=_random_view(chosen))
        before = page = state_of(last, None)
        for number in range(1, 8):
            view = _aged(last.view, chosen) if chosen.random() < 0.5 else _random_view(chosen)
            look = Look(time_ms=500 * number, view=view)
            state = state_of(look, before, last)
            assert state == state_of(look, before), f"seed {seed}: as if nothing were known of the last look"
            page = _merged(page, changes(state, before))
            assert page == state, f"seed {seed}"
            earlier = before["partitions"]
            for name, entry in state["partitions"].items():
                assert entry is earlier.get(name) or entry != earlier.get(name), f"seed {seed}"
            before, last = state, look
