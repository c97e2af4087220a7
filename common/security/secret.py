"""Secrets in memory: texts that no repr, log, error or message shows by accident. Pure."""

from __future__ import annotations

import hmac
import re
from typing import Final

HIDDEN: Final = "[hidden]"
"""The text that stands for a secret, as in Apache Kafka."""

_MAY_BE_SECRET: Final = re.compile(r"pas|pwd|secret|jaas|ssl|sasl|cred|cert|key|token", re.IGNORECASE)


class Secret:
    """A text that only `value` gives away; equal secrets are compared in constant time."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    @property
    def value(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return HIDDEN

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._text.encode(), other._text.encode())

    def __hash__(self) -> int:
        return hash(self._text)


def shown(name: str, value: object) -> str:
    """The value of an unknown name, for an error text; hidden if the name may be a misspelt secret's."""
    return HIDDEN if _MAY_BE_SECRET.search(name) else repr(value)
