"""Partitions for the handlers."""

import pytest

from tests.support.building import state
from tests.support.serving import Serving


@pytest.fixture
def leading(serving: Serving) -> Serving:
    """Broker 1 leads "topic" with 2 and 3 in sync, and everybody lives."""
    serving.managed.know({1: 0, 2: 5, 3: 5})
    assert serving.managed.tell(state()) == []
    return serving
