"""Ends the ZooKeeper session of a live process, by its id alone.

A client with a session's id and password may take it over and close it. ZooKeeper derives the password from
the id, with Java's random number generator.

Source: `ZooKeeperServer.generatePasswd` of Apache ZooKeeper; `java.util.Random`.
"""

from __future__ import annotations

from typing import Final

_SECRET: Final = 0xB3415C00
_MULTIPLIER: Final = 0x5DEECE66D
_MASK: Final = (1 << 48) - 1
_PASSWORD_BYTES: Final = 16


def session_password(session_id: int) -> bytes:
    """The password of a session."""
    state = ((session_id ^ _SECRET) ^ _MULTIPLIER) & _MASK
    found = b""
    while len(found) < _PASSWORD_BYTES:
        state = (state * _MULTIPLIER + 0xB) & _MASK
        found += (state >> 16).to_bytes(4, "little")
    return found
