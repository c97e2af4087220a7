"""Counts the error codes of answers, as Kafka does for its metric ``ErrorsPerSec``.

Each code of an answer counts, of every topic and partition in it, also NONE. The fields are found in the
declarations of the messages, once for each class of answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from barnabas.protocol.schema import wire_fields

ErrorCounts = Mapping[int, int]
"""Code → how often an answer has it. Not changed after it is made: answers that are kept share it."""

_FIELDS: Final = ("error_code", "partition_error_code")
_makers: Final[dict[type[Any], Callable[[Any], list[int]]]] = {}


def error_counts(answer: Any) -> ErrorCounts:
    """How often each error code is in an answer, an instance of a declared class."""
    codes_of = _makers.get(type(answer))
    if codes_of is None:
        codes_of = _makers[type(answer)] = _compiled(type(answer))
    codes = codes_of(answer)
    # Nearly always all codes are equal; the general way takes twice as long.
    if codes and codes.count(codes[0]) == len(codes):
        return {codes[0]: len(codes)}
    return {code: codes.count(code) for code in set(codes)}


def _compiled(cls: type[Any]) -> Callable[[Any], list[int]]:
    """A function that lists the codes of an answer, compiled because every answer runs it."""
    lists = " + ".join(_lists(cls, "answer", "")) or "[]"
    made: Callable[[Any], list[int]] = eval(f"lambda answer: {lists}")
    return made


def _lists(cls: type[Any], owner: str, loops: str) -> Iterator[str]:
    for name, wire, _ in wire_fields(cls):
        if wire.struct is not None and wire.is_array:
            yield from _lists(wire.struct, name, f"{loops} for {name} in {owner}.{name}")
        elif name in _FIELDS:
            yield f"[{owner}.{name}{loops}]"
