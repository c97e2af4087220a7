"""The nearest known word to an unknown one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """The end of an error message: the nearest known word, or all of them if none is near."""
    by_lower = {word.lower(): word for word in known}
    near = difflib.get_close_matches(wrong.lower(), by_lower, n=1)
    if near:
        return f"; did you mean {by_lower[near[0]]!r}?"
    return f"; expected one of {', '.join(by_lower.values())}"
