"""A controller term with one topic."""

from __future__ import annotations

import pytest

from tests.support.controller_fakes import Cluster, make_cluster


@pytest.fixture
def cluster() -> Cluster:
    return make_cluster()
