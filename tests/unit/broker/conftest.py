"""A broker's handlers for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.group_requests import find, lead, learn, work
from tests.support.serving import Serving
from tests.support.transaction_requests import coordinate


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    serving = Serving(tmp_path / "data")
    yield serving
    serving.close()


@pytest.fixture
def hosting(serving: Serving) -> Serving:
    """Broker 1 coordinates all groups."""
    serving.partitions_in_zookeeper = 1
    learn(serving)
    lead(serving)
    serving.call(find("g"))
    work(serving)
    return serving


@pytest.fixture
def coordinating(serving: Serving) -> Serving:
    """Broker 1 coordinates all transactional ids."""
    coordinate(serving)
    return serving
