"""Reports a bug of ours, an unforeseen exception, and makes it the outcome of the work that it has ended.

So a bug is never silent: the loop's exception handler gets it with its traceback, and the user gets an error.
On the client's event loop.
"""

from __future__ import annotations

import asyncio

from barnabas.protocol.errors import BarnabasError, LocalError


def report_bug(message: str, bug: BaseException) -> BarnabasError:
    """Report the exception, with a message that names the work; returns the error for the user."""
    asyncio.get_running_loop().call_exception_handler({"message": message, "exception": bug})
    return bug if isinstance(bug, BarnabasError) else LocalError(f"{type(bug).__name__}: {bug}")
