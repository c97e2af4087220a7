"""Expected errors, and the errors that end a broker."""

import threading
from typing import Any

import pytest

from barnabas.protocol.errors import ApiError, ErrorCode


class Fatal:
    """An ``on_fatal`` that keeps the errors."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []
        self.was_called = threading.Event()

    def __call__(self, error: BaseException) -> None:
        self.errors.append(error)
        self.was_called.set()


def refused(code: ErrorCode, match: str | None = None) -> Any:
    """A block that must raise the error of that code."""
    return pytest.raises(ApiError, match=match, check=lambda error: error.code == code)
