"""Principals: the names that authentication gives to peers, and that ACLs and quotas refer to. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

USER: Final = "User"
"""The one type of principals that authentication yields, as in Apache Kafka."""
WILDCARD: Final = "*"
"""The name of the principal that stands for all principals of its type, in ACLs alone."""


class Principal(NamedTuple):
    """``User:alice``: written so in `super.users`, ACLs and logs."""

    type: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Principal:
        """The principal of a text ``Type:name``; the name may contain colons. Raises ValueError."""
        kind, colon, name = text.partition(":")
        if not kind or not colon or not name:
            raise ValueError(f"{text!r} is no principal: expected Type:name, such as User:alice")
        return cls(kind, name)

    @classmethod
    def user(cls, name: str) -> Principal:
        return cls(USER, name)

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS: Final = Principal(USER, "ANONYMOUS")
"""The principal of every connection without authentication."""
EVERYBODY: Final = Principal(USER, WILDCARD)
