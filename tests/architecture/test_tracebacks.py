"""Tracebacks that are formatted while the same process parses source."""

import ast
import gc
import traceback
from typing import Any


def test_a_traceback_that_a_garbage_collection_formats_leaves_the_parse_around_it_alone() -> None:
    formatted: list[str] = []

    def fail(phase: str, info: dict[str, Any]) -> None:
        try:
            formatted.append(str(1 / 0))
        except ZeroDivisionError:
            formatted.append(traceback.format_exc())

    threshold = gc.get_threshold()
    gc.callbacks.append(fail)
    gc.set_threshold(5)
    try:
        ast.parse("x = [1, 2, (3, 4)]\n" * 50)
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(fail)
    assert formatted
