"""The `Admin` of tests on a fake cluster."""

from typing import Any

from barnabas.client.admin.admin import Admin
from tests.support.fake_broker import FakeCluster


def quick_admin(cluster: FakeCluster, **settings: Any) -> Admin:
    """It retries after milliseconds and gives up after seconds."""
    quick = {"retry_backoff_ms": 5, "default_api_timeout_ms": 5_000}
    return Admin(bootstrap_servers=cluster.bootstrap, **{**quick, **settings})
