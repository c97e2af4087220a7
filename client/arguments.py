"""Checks of what users pass to the methods of the clients.

Each error names the argument, its value and what is expected: a TypeError for a wrong type, a ValueError for
a wrong value. Without them a mistake would show as an AttributeError of ours, as a time-out, or not at all.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import TypeVar

from barnabas.protocol.schema import Buffer

T = TypeVar("T")


def several(name: str, given: Iterable[T] | T, kind: type[T]) -> list[T]:
    """The objects of a kind; one is as good as a list of one. A text is never taken as its letters, nor a
    truth as a number.

    Names and numbers in a list are checked with the request that has them (`check_values`).
    """
    if isinstance(given, kind) and not isinstance(given, bool):
        return [given]
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise TypeError(f"{name}={given!r}: expected {kind.__name__} or several of them")
    items = list(given)
    for item in items:
        if isinstance(item, bool) or (not isinstance(item, kind) and kind not in (str, int)):
            raise TypeError(f"{name} has {item!r}: expected {kind.__name__}")
    return items


def check_mapping(name: str, given: object, expected: str) -> None:
    if not isinstance(given, Mapping):
        raise TypeError(f"{name}={given!r}: expected a mapping of {expected}")


def check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name}={value!r}: expected a str")


def check_number(name: str, value: object, at_least: int) -> None:
    if type(value) is not int or value < at_least:
        raise ValueError(f"{name}={value!r}: expected {at_least} or more")


def limit_ms(timeout_ms: int | None, default_ms: int) -> int:
    """The time limit of a call, or the default one."""
    check_limit(timeout_ms)
    return default_ms if timeout_ms is None else timeout_ms


def check_limit(timeout_ms: object) -> None:
    if timeout_ms is not None and not isinstance(timeout_ms, int | float):
        raise TypeError(f"timeout_ms={timeout_ms!r}: expected milliseconds")


def check_member(name: str, value: object, kind: type[Enum]) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{name}={value!r}: expected one of {', '.join(kind.__members__)}")


def check_callable(name: str, value: object) -> None:
    if not callable(value):
        raise TypeError(f"{name}={value!r}: expected a callable")


def as_bytes(what: str, content: object) -> bytes:
    """The bytes of a key, a value or a header. A view gives all its bytes, however large its items are."""
    if isinstance(content, memoryview):
        return content.tobytes()
    if isinstance(content, bytes | bytearray):
        return bytes(content)
    # Not the content itself, which may be long.
    raise TypeError(f"{what} is {type(content).__name__}; expected bytes or None")


def as_flat_buffer(what: str, content: object) -> Buffer:
    """The same bytes as items of one byte each, so that their number is the length; copied if need be."""
    if isinstance(content, memoryview) and content.c_contiguous:
        return content.cast("B")
    return content if isinstance(content, bytes | bytearray) else as_bytes(what, content)
