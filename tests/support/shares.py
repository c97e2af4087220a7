"""Orders the tests for xdist's work stealing, so that no worker waits at the end for another's long test.

At first each worker gets an equal share of the list, in order; one that has finished takes half of what
another has left, from its end. Here each share begins with its part of the tests with real processes, which
take most of the time, and ends with short tests, which even out the rest. A module is in one share, because
its tests may use one cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest


def in_shares(
    items: Sequence[pytest.Item], is_long: Callable[[pytest.Item], bool], workers: int
) -> list[pytest.Item]:
    """The items in the order in which they are dealt; each kind keeps its own order."""
    long = [item for item in items if is_long(item)]
    short = [item for item in items if not is_long(item)]
    dealt: list[pytest.Item] = []
    for left in range(workers, 0, -1):
        size = (len(long) + len(short)) // left
        count = min(_end_of_module(long, len(long) // left), size)
        dealt += long[:count] + short[: size - count]
        del long[:count], short[: size - count]
    return dealt


def _end_of_module(items: Sequence[pytest.Item], count: int) -> int:
    """So many, and those that follow in the module of the last."""
    while 0 < count < len(items) and items[count].path == items[count - 1].path:
        count += 1
    return count
