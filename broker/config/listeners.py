"""Listeners: the named addresses that a broker binds, and the ones that it advertises.

``listeners=PLAINTEXT://localhost:9092,INTERNAL://:9093``. Names are upper case, as in Kafka. Pure.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from barnabas.common.settings import Kind
from barnabas.protocol.ids import Endpoint

PLAINTEXT: Final = "PLAINTEXT"
SSL: Final = "SSL"
SASL_PLAINTEXT: Final = "SASL_PLAINTEXT"
SASL_SSL: Final = "SASL_SSL"
SECURITY_PROTOCOLS: Final = (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)
"""The protocols that a listener may speak."""
TLS_PROTOCOLS: Final = frozenset({SSL, SASL_SSL})
SASL_PROTOCOLS: Final = frozenset({SASL_PLAINTEXT, SASL_SSL})
DEFAULT_PROTOCOLS: Final[Mapping[str, str]] = {protocol: protocol for protocol in SECURITY_PROTOCOLS}
"""Kafka's default of ``listener.security.protocol.map``."""


class Listener(NamedTuple):
    """One named address. An empty host means every interface; port 0 means any free one."""

    name: str
    host: str
    port: int
    security_protocol: str = PLAINTEXT

    def advertised(self, bound_port: int) -> Endpoint:
        """The address for clients. Port 0 means the bound one, an empty host the name of this machine."""
        return Endpoint(self.host or socket.getfqdn(), self.port or bound_port)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


class ListenerList(Kind):
    """Kind of ``listeners`` and ``advertised.listeners``; `make_addresses` adds the protocols."""

    expected = "a comma separated list of NAME://host:port with distinct names, as PLAINTEXT://localhost:9092"

    def check(self, text: str) -> tuple[Listener, ...]:
        listeners = tuple(_parse_listener(part.strip()) for part in text.split(","))
        if len({listener.name for listener in listeners}) != len(listeners):
            raise ValueError(text)
        return listeners


class ProtocolMap(Kind):
    """Kind of ``listener.security.protocol.map``: NAME:PROTOCOL pairs."""

    expected = "a comma separated list of NAME:PROTOCOL, each PROTOCOL one of " + ", ".join(
        SECURITY_PROTOCOLS
    )

    def check(self, text: str) -> Mapping[str, str]:
        protocols: dict[str, str] = {}
        for part in text.split(","):
            name, colon, protocol = (piece.strip() for piece in part.partition(":"))
            if (
                not colon
                or not name
                or protocol.upper() not in SECURITY_PROTOCOLS
                or name.upper() in protocols
            ):
                raise ValueError(text)
            protocols[name.upper()] = protocol.upper()
        return protocols


def _parse_listener(text: str) -> Listener:
    name, scheme, address = text.partition("://")
    host, colon, port = address.rpartition(":")
    if not scheme or not name or not colon or not port.isdecimal() or int(port) > 65535:
        raise ValueError(text)
    return Listener(name.upper(), host.removeprefix("[").removesuffix("]"), int(port))


class Addresses(NamedTuple):
    """What a broker binds, and what it advertises."""

    listeners: tuple[Listener, ...]
    advertised: tuple[Listener, ...]

    def of(self, name: str) -> Addresses:
        """Those of one listener."""
        return Addresses(
            tuple(listener for listener in self.listeners if listener.name == name),
            tuple(listener for listener in self.advertised if listener.name == name),
        )


def make_addresses(
    listeners: tuple[Listener, ...],
    advertised: tuple[Listener, ...] | None,
    protocols: Mapping[str, str],
    problems: list[str],
) -> Addresses:
    """Listeners with their protocols; by default all are advertised as they are bound.

    A name that is neither mapped nor a protocol is a problem.
    """
    spoken: dict[str, str] = {}
    for listener in listeners:
        protocol = protocols.get(listener.name, listener.name)
        if protocol in SECURITY_PROTOCOLS:
            spoken[listener.name] = protocol
        else:
            problems.append(
                f"listeners: {listener} has no security protocol; expected {listener.name}:PROTOCOL in "
                f"listener.security.protocol.map, PROTOCOL one of {', '.join(SECURITY_PROTOCOLS)}"
            )
    bound = tuple(listener for listener in listeners if listener.name in spoken)
    return Addresses(
        *(
            tuple(each._replace(security_protocol=spoken.get(each.name, PLAINTEXT)) for each in several)
            for several in (bound, bound if advertised is None else advertised)
        )
    )


def check_listeners(
    listeners: tuple[Listener, ...],
    advertised: tuple[Listener, ...],
    inter_broker_name: str,
    problems: list[str],
) -> None:
    """Check the three settings against each other."""
    names = {listener.name for listener in listeners}
    bound = [(listener.host, listener.port) for listener in listeners if listener.port]
    if len(set(bound)) != len(bound):
        problems.append("listeners: two listeners have the same host and port; expected distinct ones")
    for listener in advertised:
        if listener.name not in names:
            problems.append(
                f"advertised.listeners: {listener} is not a listener; "
                f"expected one of {', '.join(sorted(names))}"
            )
        if listener.host in ("0.0.0.0", "::"):
            problems.append(
                f"advertised.listeners: {listener} cannot be reached by anyone; "
                "expected a host name or address that clients can connect to"
            )
    if inter_broker_name not in {listener.name for listener in advertised}:
        problems.append(
            f"inter.broker.listener.name={inter_broker_name!r}: expected the name of an advertised listener, "
            f"one of {', '.join(sorted(listener.name for listener in advertised))}"
        )


def changed_protocols(before: Iterable[Listener], after: Iterable[Listener]) -> list[str]:
    """The sentences that refuse other protocols of listeners that stay open."""
    spoken = {listener.name: listener.security_protocol for listener in before}
    return [
        f"Security protocol cannot be updated for existing listener {name}: expected {spoken[name]}"
        for name, _, _, protocol in after
        if spoken.get(name, protocol) != protocol
    ]
