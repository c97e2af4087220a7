"""The session of one connection: whose requests come by it.

The requests of a connection run one at a time and in order, so a session is used by one thread at a time.
"""

from __future__ import annotations

from barnabas.common.security.principal import ANONYMOUS, Principal


class Session:
    """Made with the connection; authentication sets the principal."""

    __slots__ = ("principal",)

    def __init__(self, principal: Principal = ANONYMOUS) -> None:
        self.principal = principal
