"""Counts the connections of one owner, and what goes over them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Traffic:
    """Counted per request and per read of a socket, on the event loop of the connections."""

    opened: int = 0
    closed: int = 0
    requests: int = 0
    responses: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    authenticated: int = 0
    refused: int = 0
    """Attempts to connect that ended because TLS or SASL refused them."""
