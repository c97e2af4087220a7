"""The level of the feature `transaction.version`, for as long as a test needs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from barnabas.client.admin.admin import UpgradeType
from barnabas.client.blocking import Admin
from barnabas.deploy.running_cluster import RunningCluster

FEATURE = "transaction.version"


@contextmanager
def finalised(cluster: RunningCluster, level: int) -> Iterator[None]:
    """Finalise the level; the former one comes back in the end."""
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        before = admin.describe_features().features[FEATURE].finalized
        _change(admin, before, level)
        try:
            yield
        finally:
            _change(admin, level, before)


def _change(admin: Admin, before: int, level: int) -> None:
    if level != before:
        kind = UpgradeType.UPGRADE if level > before else UpgradeType.SAFE_DOWNGRADE
        admin.update_features({FEATURE: level}, kind)
