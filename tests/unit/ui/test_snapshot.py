"""The state of the live page from a view of the cluster."""

from barnabas.deploy.cluster_view import ClusterView
from barnabas.protocol.errors import ClusterAuthorizationFailedError
from barnabas.protocol.messages.replicas import FollowerDescription
from barnabas.ui.snapshot import Look, changes, state_of
from tests.support.views import make_view


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
