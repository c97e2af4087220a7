"""Stores over the simulated ZooKeeper."""

import pytest

from tests.support.controller_fakes import Znodes
from tests.support.store_contract import OpenStore


@pytest.fixture
def open_store() -> OpenStore:
    return Znodes().open_store
