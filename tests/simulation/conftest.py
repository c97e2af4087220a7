"""Disables logging, since thousands of simulated failovers log too much, and closes the worlds of a test."""

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
    """Close the worlds of a test and delete their folders."""
    yield
    for world in list(OPEN_WORLDS):
        world.close()
