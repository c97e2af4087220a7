"""Counts the error codes of answers, as Kafka does for its metric ``ErrorsPerSec``.

Each code of an answer counts, of every topic and partition in it, also NONE.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from barnabas.protocol.answer_codes import codes_of

ErrorCounts = Mapping[int, int]
"""Code → how often an answer has it. Not changed after it is made: answers that are kept share it."""


def error_counts(answer: Any) -> ErrorCounts:
    """How often each error code is in an answer, an instance of a declared class."""
    codes = codes_of(answer)
    # Nearly always all codes are equal; the general way takes twice as long.
    if codes and codes.count(codes[0]) == len(codes):
        return {codes[0]: len(codes)}
    return {code: codes.count(code) for code in set(codes)}
