"""The order in which modules of tests begin, and the worker that takes each."""

import pytest

from tests.support.shares import WORKERS, is_spare, next_module, rank_of

UNIT, CLUSTER, COMPAT, SPARK = (
    f"tests/{folder}/test_x.py" for folder in ("unit/broker", "cluster", "compat", "spark")
)


def test_long_folders_begin_first() -> None:
    shuffled = [UNIT, "tests/test_x.py::test_y", CLUSTER, SPARK, COMPAT]
    assert sorted(shuffled, key=rank_of) == [COMPAT, SPARK, CLUSTER, UNIT, "tests/test_x.py::test_y"]


@pytest.mark.parametrize(
    ("waiting", "owners", "taken"),
    [
        ([COMPAT, CLUSTER], {}, COMPAT),
        ([COMPAT, CLUSTER], {"compat": "w1"}, COMPAT),
        ([COMPAT, CLUSTER], {"compat": "w2"}, CLUSTER),
        ([COMPAT, SPARK, CLUSTER], {"compat": "w2", "spark": "w3"}, CLUSTER),
        ([COMPAT, SPARK], {"compat": "w2", "spark": "w3"}, SPARK),
        ([CLUSTER, UNIT], {"compat": "w2"}, CLUSTER),
    ],
    ids=[
        "no worker has the folder",
        "the worker has it",
        "another worker has it",
        "two folders of others",
        "nothing but modules of others",
        "a folder that shares nothing",
    ],
)
def test_a_worker_takes_the_next_module(waiting: list[str], owners: dict[str, str], taken: str) -> None:
    assert next_module(waiting, owners, "w1") == taken


def test_one_worker_begins_with_tests_that_compute() -> None:
    assert [is_spare(f"gw{number}") for number in range(WORKERS)] == [*[False] * (WORKERS - 1), True]
    assert next_module([COMPAT, CLUSTER, UNIT], {}, "w1", is_spare=True) == UNIT
    assert next_module([SPARK, CLUSTER], {"spark": "w2"}, "w1", is_spare=True) == CLUSTER
