"""Checks that stay on in production, also under ``python -O``.

``-O`` removes ``assert``, but checks that guard data must stay. A broken invariant is a bug of ours, never
bad input: it raises `InvariantViolation`, which no handler turns into an ordinary error code.
"""

from __future__ import annotations


class InvariantViolation(Exception):
    """The program contradicts itself; continuing could lose data."""


def invariant(condition: bool, message: str, *values: object) -> None:
    """Raise `InvariantViolation` unless the condition holds.

    The message takes ``%``-style values, so that nothing is formatted on the good path.
    """
    if not condition:
        raise InvariantViolation(message % values if values else message)


def check_offset_order(
    log_start_offset: int, last_stable_offset: int, high_watermark: int, log_end_offset: int
) -> None:
    """The one order of a partition's offsets: log start ≤ LSO ≤ HW ≤ LEO."""
    if not log_start_offset <= last_stable_offset <= high_watermark <= log_end_offset:
        raise InvariantViolation(
            f"offsets out of order: log start {log_start_offset}, last stable {last_stable_offset}, "
            f"high watermark {high_watermark}, log end {log_end_offset}"
        )
