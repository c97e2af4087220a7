"""The level of the feature `transaction.version`, for as long as a test needs it."""

from collections.abc import Iterator
from contextlib import contextmanager

from barnabas.client.admin.admin import UpgradeType
from barnabas.client.blocking import Admin
from barnabas.deploy.running_cluster import RunningCluster
from barnabas.protocol.messages.api_versions import ApiVersionsRequest
from barnabas.protocol.messages.features import TRANSACTION_VERSION
from tests.support.waiting import wait_for

from .raw_client import RawClient


@contextmanager
def finalised(cluster: RunningCluster, level: int) -> Iterator[None]:
    """Finalise the level; the former one comes back in the end."""
    before = set_level(cluster, level)
    try:
        yield
    finally:
        set_level(cluster, before)


def set_level(cluster: RunningCluster, level: int) -> int:
    """Change the level, until every broker has it; the former one."""
    # A broker that has not heard of an earlier change yet would say that nothing is to be done.
    wait_for(lambda: len(levels(cluster)) == 1, lambda: f"the brokers differ: {levels(cluster)}")
    (before,) = levels(cluster)
    if level != before:
        kind = UpgradeType.UPGRADE if level > before else UpgradeType.SAFE_DOWNGRADE
        with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            admin.update_features({TRANSACTION_VERSION: level}, kind)
    wait_for_level(cluster, level)
    return before


def wait_for_level(cluster: RunningCluster, level: int) -> None:
    """Wait until each running broker has this level."""
    wait_for(
        lambda: levels(cluster) == {level}, lambda: f"the levels are {levels(cluster)}, expected {level}"
    )


def levels(cluster: RunningCluster) -> set[int]:
    """The levels that the running brokers have."""
    found = set()
    for broker in cluster.brokers:
        if broker.state == "running":
            with RawClient(broker.endpoint) as client:
                answer = client.ask(ApiVersionsRequest(client_software_name="a", client_software_version="1"))
            named = {feature.name: feature.max_version_level for feature in answer.finalized_features}
            found.add(named.get(TRANSACTION_VERSION, 0))
    return found
