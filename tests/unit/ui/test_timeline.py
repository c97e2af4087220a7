"""States, their changes, and the marks and gaps between them."""

from typing import Any

from barnabas.client.admin.log_dirs import BrokerReplicas
from barnabas.deploy.cluster_view import unreachable_view
from barnabas.protocol.errors import LocalError
from barnabas.ui.sampler import Listener
from barnabas.ui.snapshot import Look, State, changes, figures_of, state_of
from barnabas.ui.timeline import InferredGaps, marks_between
from tests.support.views import make_view


def _state(time_ms: int, before: State | None = None, *, end: int = 10, **view: Any) -> State:
    seen = make_view(**view)
    replica = seen.partitions[0].replicas.pop(1)
    if not view.get("error"):
        replica.log_end_offset = replica.high_watermark = end
        replica.size_bytes = 10 * end
        seen.partitions[0].replicas[1] = replica
    return state_of(Look(time_ms=time_ms, view=seen), before)


def test_rates_need_two_answers_of_the_same_leader() -> None:
    first = _state(1000)
    second = _state(1500, first, end=35)
    assert first["partitions"]["t-0"]["records_per_s"] is None
    assert second["partitions"]["t-0"]["records_per_s"] == 50
    assert figures_of(second, first) == {"records_in": ("records/s", 50), "bytes_in": ("bytes/s", 500)}
    assert _state(2000, second, end=40, leader=2)["partitions"]["t-0"]["records_per_s"] is None


def test_offsets_of_a_silent_broker_are_unknown() -> None:
    state = _state(1000, error="timed out")
    assert state["brokers"]["1"]["state"] == "silent"
    assert state["partitions"]["t-0"]["replicas"]["1"]["high_watermark"] is None


def test_a_broker_without_replicas_that_leaves_the_metadata_has_left() -> None:
    """A decommissioned broker stayed a red row for as long as the page was served."""
    first, view = _state(1000), make_view()
    first["brokers"]["4"] = first["brokers"]["2"] | {"id": 4}
    second = state_of(Look(time_ms=1500, view=view), first)
    assert "4" not in second["brokers"]
    assert [mark["text"] for mark in marks_between(first, second)] == ["broker 4 has left"]
    unreachable = state_of(Look(time_ms=1500, view=unreachable_view(LocalError("no answer"))), first)
    assert unreachable["brokers"].keys() == first["brokers"].keys()


def test_another_cluster_at_the_same_address_is_one_mark() -> None:
    first, view = _state(1000), make_view(isr=(1,), controller=1)
    view.cluster_id = "other"
    second = state_of(Look(time_ms=1500, view=view), first)
    assert [mark["text"] for mark in marks_between(first, second)] == [
        "another cluster answers: its id is other"
    ]
    assert figures_of(second, first) == {}
    assert second["partitions"]["t-0"]["records_per_s"] is None


def test_a_broker_that_leaves_the_metadata_is_gone_and_a_mark() -> None:
    first, view = _state(1000), make_view()
    view.brokers = [BrokerReplicas(view.brokers[0].node, {})]
    second = state_of(Look(time_ms=1500, view=view), first)
    assert second["brokers"]["2"]["state"] == "gone"
    assert [mark["text"] for mark in marks_between(first, second)] == ["broker 2 has ended"]


def test_changes_have_only_the_entries_that_differ() -> None:
    first = _state(1000)
    second = _state(1500, _state(1000), isr=(1,))
    assert changes(first, first) == {}
    changed = changes(second, first)
    assert set(changed) == {"time_ms", "problems", "partitions"}
    emptied = second | {"partitions": {}}
    assert changes(emptied, second) == {"gone": {"partitions": ["t-0"]}}


def test_an_election_and_an_isr_change_are_marks_causes_first() -> None:
    first = _state(1000)
    second = _state(1500, first, isr=(2,), leader=2, controller=1)
    assert [(mark["kind"], mark["text"], mark["broker"]) for mark in marks_between(first, second)] == [
        ("controller", "broker 1 is the controller", 1),
        ("election", "leader 2: t-0", 2),
        ("isr", "broker 1 left the ISR: t-0", 1),
    ]


def test_a_gap_is_inferred_only_under_traffic_and_ends_with_the_leader() -> None:
    gaps = InferredGaps()
    states = [_state(0), _state(500, end=20), _state(1000, leader=-1), _state(1500, leader=-1), _state(2000)]
    seen = [(gap["start_ms"], gap["end_ms"]) for state in states for gap in gaps.look(state)]
    assert seen == [(500, None), (500, 2000)]
    idle = InferredGaps()
    assert [*idle.look(_state(0)), *idle.look(_state(500)), *idle.look(_state(1000, leader=-1))] == []


def test_a_gap_of_a_topic_that_was_created_again_is_inferred() -> None:
    gaps = InferredGaps()
    states = [_state(0, end=100), _state(500), _state(1000, end=20), _state(1500, leader=-1)]
    assert [gap["start_ms"] for state in states for gap in gaps.look(state)] == [1000]


async def test_a_listener_that_does_not_read_gets_a_new_whole_state() -> None:
    listener = Listener(frozenset())
    listener.needs_state = False
    for number in range(4):
        listener.put(b"%d" % number)
    assert not listener.needs_state
    listener.put(b"4")
    assert listener.needs_state
    assert list(listener.take()) == []
