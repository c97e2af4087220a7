"""The error codes of an answer, whatever its shape.

The fields are found in the declarations of the messages, once for each class of answers. Any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from barnabas.protocol.schema import wire_fields

_FIELDS: Final = ("error_code", "partition_error_code")
_makers: Final[dict[type[Any], Callable[[Any], list[int]]]] = {}


def codes_of(answer: Any) -> list[int]:
    """Each code of an answer, an instance of a declared class, in the order of the declaration; also NONE."""
    cls = type(answer)
    codes = _makers.get(cls)
    if codes is None:
        # Compiled, because a broker counts the codes of all its answers.
        lists = " + ".join(_lists(cls, "answer", "")) or "[]"
        codes = _makers[cls] = eval(f"lambda answer: {lists}")
    return codes(answer)


def error_counts(answer: Any) -> dict[int, int]:
    """How often each code is in an answer, as Kafka's metric ``ErrorsPerSec`` counts them."""
    codes = codes_of(answer)
    # Nearly always all codes are equal; the general way takes twice as long.
    if codes and codes.count(codes[0]) == len(codes):
        return {codes[0]: len(codes)}
    return {code: codes.count(code) for code in set(codes)}


def _lists(cls: type[Any], owner: str, loops: str) -> Iterator[str]:
    for name, wire, _ in wire_fields(cls):
        if wire.struct is not None and wire.is_array:
            yield from _lists(wire.struct, name, f"{loops} for {name} in {owner}.{name}")
        elif name in _FIELDS:
            yield f"[{owner}.{name}{loops}]"
