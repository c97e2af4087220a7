"""A controller term with one topic."""

import pytest

from tests.support.controller_fakes import Cluster, make_cluster


@pytest.fixture
def cluster() -> Cluster:
    return make_cluster()
