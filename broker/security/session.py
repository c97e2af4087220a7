"""The session of one connection: whose requests come by it, and for how long.

The requests of a connection run one at a time and in order, so a session is used by one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from barnabas.common.security.principal import ANONYMOUS, Principal

if TYPE_CHECKING:
    # Each knows the other.
    from barnabas.broker.security.authentication import Authenticator

NEVER_NS: Final = 2**63 - 1


class Session:
    """Made with the connection; authentication sets the principal."""

    __slots__ = (
        "__weakref__",
        "authenticator",
        "expires_at_ns",
        "grants",
        "host",
        "named_gone",
        "on_authenticated",
        "on_failed",
        "principal",
        "reading_pace",
    )

    def __init__(self, host: str = "", principal: Principal = ANONYMOUS) -> None:
        self.host = host
        """The peer's address, which ACLs may name."""
        self.principal = principal
        self.grants: Any = None
        """The decisions that the authorizer remembers; nothing else reads it."""
        self.reading_pace: Any = None
        """The pace of the peer as a consumer; only the fetch handler uses it."""
        self.named_gone: frozenset[Any] = frozenset()
        """The brokers that were gone when the peer last heard of leaders; only Metadata's handler uses it."""
        self.authenticator: Authenticator | None = None
        """None on a listener without SASL."""
        self.expires_at_ns = NEVER_NS
        """From this time of ``time.monotonic_ns()`` on, requests are refused that are not of authentication:
        0 until the peer is authenticated."""
        self.on_authenticated: Callable[[], None] | None = None
        """Called at each success, on the thread of the request: the peer may now cost more."""
        self.on_failed: Callable[[], None] | None = None
        """Called at a failure, on the thread of the request; the connection is closed after a pause."""

    def end(self) -> None:
        """The connection is lost: nothing is called any more."""
        self.on_authenticated = self.on_failed = None

    def must_authenticate(self, authenticator: Authenticator) -> None:
        """The peer has to authenticate before anything else."""
        self.authenticator = authenticator
        self.expires_at_ns = 0

    def authenticated(self, principal: Principal, expires_at_ns: int = NEVER_NS) -> None:
        self.principal = principal
        self.expires_at_ns = expires_at_ns
        if self.on_authenticated is not None:
            self.on_authenticated()
