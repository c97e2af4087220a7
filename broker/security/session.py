"""The session of one connection: whose requests come by it.

The requests of a connection run one at a time and in order, so a session is used by one thread at a time.
"""

from __future__ import annotations

from typing import Any

from barnabas.common.security.principal import ANONYMOUS, Principal


class Session:
    """Made with the connection; authentication sets the principal."""

    __slots__ = ("grants", "host", "principal")

    def __init__(self, host: str = "", principal: Principal = ANONYMOUS) -> None:
        self.host = host
        """The peer's address, which ACLs may name."""
        self.principal = principal
        self.grants: Any = None
        """What the authorizer remembers of its decisions; nothing else reads it."""
