"""A broker's handlers for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.building import state
from tests.support.serving import Serving


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    serving = Serving(tmp_path / "data")
    yield serving
    serving.close()


@pytest.fixture
def leading(serving: Serving) -> Serving:
    """Broker 1 leads "topic" with 2 and 3 in sync, and everybody lives."""
    serving.managed.know({1: 0, 2: 5, 3: 5})
    assert serving.managed.tell(state()) == []
    return serving
