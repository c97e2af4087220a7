"""Thousands of simulated failovers would drown everything in their log lines."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.simulation.world import OPEN_WORLDS


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(before)


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """The worlds of a test are let go of, and their folders."""
    yield
    for world in list(OPEN_WORLDS):
        world.close()
