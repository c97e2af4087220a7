"""Many cases in one test: all run, and the failed ones are named together.

As parameters of pytest each would cost some milliseconds, which is more than most of these checks take.
"""

import functools
import inspect
import traceback
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

Name = Callable[[Any], str]


def every(cases: Iterable[Any], check: Callable[[Any], object], name: Name = str) -> None:
    """Check each case; fail with the name and the traceback of every one that failed."""
    failed: dict[str, str] = {}
    count = 0
    for case in cases:
        count += 1
        try:
            check(case)
        except (Exception, pytest.fail.Exception):  # noqa: BLE001  # told below, with its case
            failed[name(case)] = traceback.format_exc()
    assert count, "no case"
    if failed:
        told = "\n".join(f"---- {case}\n{text}" for case, text in failed.items())
        pytest.fail(f"{len(failed)} of {count} failed: {', '.join(failed)}\n{told}", pytrace=False)


def each(
    cases: Iterable[Any], name: Name = str, *, examples: int = 0
) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Make a check of one case a test of all; with `examples`, of so many random ones of each case.

    The check of a random one gets hypothesis' data as its second argument.
    """

    def make_test(check: Callable[..., None]) -> Callable[[], None]:
        def draw(case: Any) -> None:
            @settings(max_examples=examples, deadline=None)
            @given(st.data())
            def drawn(data: st.DataObject) -> None:
                check(case, data)

            # The examples follow from the check and the case, as those of a parametrised test do.
            inner: Any = drawn.hypothesis.inner_test  # type: ignore[attr-defined]  # set by given
            inner._hypothesis_internal_add_digest = f"{check.__qualname__} {name(case)}".encode()
            drawn()

        @functools.wraps(check)
        def test() -> None:
            every(cases, draw if examples else check, name)

        # The check's arguments are no fixtures.
        test.__signature__ = inspect.Signature()  # type: ignore[attr-defined]  # read by inspect.signature
        return test

    return make_test


def class_name(cls: type[Any]) -> str:
    return cls.__name__
