"""Bounds the error texts of answers: a request may name a hundred thousand partitions that are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from barnabas.broker.handlers.error_counts import compiled
from barnabas.broker.limits import MAX_TEXTS_LENGTH

_FIELDS: Final = ("error_message", "batch_index_error_message")
_listers: Final[dict[type[Any], Callable[[Any], list[tuple[Any, str]]]]] = {}


def _listing(owner: str, name: str, loops: str) -> str:
    """The one text of the whole answer needs no bound."""
    return f"[({owner}, {name!r}){loops} if {owner}.{name}]" if loops else "[]"


def bound_texts(answer: Any) -> None:
    """Leave the texts of an answer's entries out from where their sum exceeds the bound; the codes stay."""
    texts_of = _listers.get(type(answer))
    if texts_of is None:
        texts_of = _listers[type(answer)] = compiled(type(answer), _listing, _FIELDS)
    length = 0
    for entry, name in texts_of(answer):
        length += len(getattr(entry, name))
        if length > MAX_TEXTS_LENGTH:
            setattr(entry, name, None)
