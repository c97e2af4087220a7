"""Checks of what users pass to the methods of the clients.

Each error names the argument, its value and what is expected: a TypeError for a wrong type, a ValueError for
a wrong value. Without them a mistake would show as an AttributeError of ours, as a time-out, or not at all.
Pure.
"""

from __future__ import annotations

from barnabas.protocol.schema import Buffer


def check_callable(name: str, value: object) -> None:
    if not callable(value):
        raise TypeError(f"{name}={value!r}: expected a callable")


def as_bytes(what: str, content: object) -> bytes:
    """The bytes of a key, a value or a header: of a view all, whatever the size of its items."""
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
