import pytest

from tests.support.grouping import GroupRig


@pytest.fixture
def rig() -> GroupRig:
    return GroupRig()
