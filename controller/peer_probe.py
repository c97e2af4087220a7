"""Attempts to connect to a broker, each with a `Sign` as result: one that blocks, and one for a loop.

If a broker's name does not resolve, its last address is tried: only the resolver may be gone.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Final

from barnabas.controller.peer_lives import Address, Sign, of_all_addresses, sign_of
from barnabas.protocol.ids import Endpoint

log = logging.getLogger("barnabas.controller")

_CONNECT_TIMEOUT_S: Final = 1.0
_LAST_ADDRESS_TIMEOUT_S: Final = 0.2
"""Only the operating system has to answer; a broker is declared dead only after two such silences."""


def connect(endpoint: Endpoint, last: Address | None) -> tuple[Sign, socket.socket | None]:
    """Blocks for at most a second per address; returns the connection if there is one."""
    try:
        return Sign.ANSWERS, socket.create_connection(endpoint, _CONNECT_TIMEOUT_S, all_errors=True)
    except socket.gaierror as error:
        log.info("%s: %s", endpoint, error)
        if last is None:
            return Sign.SILENT, None
    except OSError as error:
        return sign_of(error), None
    except ExceptionGroup as group:
        return of_all_addresses([sign_of(one) for one in group.exceptions if isinstance(one, OSError)]), None
    try:
        return Sign.ANSWERS, socket.create_connection(last[:2], _LAST_ADDRESS_TIMEOUT_S)
    except OSError as error:
        return _of_last_address(error), None


async def look(endpoint: Endpoint, last: Address | None) -> Sign:
    """As `connect`, but closes the connection at once."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except OSError as error:
        log.info("%s: %s", endpoint, error)
        if last is None:
            return Sign.SILENT
        family = socket.AF_INET6 if len(last) > 2 else socket.AF_INET
        failure = await _attempt(family, last, _LAST_ADDRESS_TIMEOUT_S)
        return Sign.ANSWERS if failure is None else _of_last_address(failure)
    signs = []
    for family, _, _, _, address in found:
        failure = await _attempt(family, address, _CONNECT_TIMEOUT_S)
        if failure is None:
            return Sign.ANSWERS
        signs.append(sign_of(failure))
    return of_all_addresses(signs)


async def _attempt(family: int, address: Address, timeout_s: float) -> OSError | None:
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.get_running_loop().sock_connect(probe, address)
        except OSError as error:
            return error
    return None


def _of_last_address(error: OSError) -> Sign:
    return Sign.REFUSES if sign_of(error) is Sign.REFUSES else Sign.VANISHED
