"""The names that a misspelt one is similar to, for error texts."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, names: Iterable[str], *, at_most: int = 1) -> str:
    """``; did you mean a or b?``, or an empty text if no name is similar. Ignores case."""
    by_lower = {word.lower(): word for word in names}
    similar = difflib.get_close_matches(name.lower(), by_lower, n=at_most)
    return f"; did you mean {' or '.join(by_lower[word] for word in similar)}?" if similar else ""


def suggestion(name: str, names: Iterable[str]) -> str:
    """`did_you_mean` for a short list: if no name is similar, it gives all names."""
    names = list(names)
    return did_you_mean(name, names) or f"; expected one of {', '.join(names)}"


def no_topic_text(name: str, topics: Iterable[str]) -> str:
    """The text for a topic that does not exist, with similar names."""
    names = sorted(topics)
    hint = did_you_mean(name, names, at_most=3)
    if names and not hint:
        hint = f"; there are {', '.join(names[:10])}{', …' if len(names) > 10 else ''}"
    elif not names:
        hint = "; there are no topics yet (see `barnabas topics create --help`)"
    return f"there is no topic {name!r}{hint}"
