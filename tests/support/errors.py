"""Expected errors."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.protocol.errors import ApiError, ErrorCode


def refused(code: ErrorCode, match: str | None = None) -> Any:
    """A block that must raise the error of that code."""
    return pytest.raises(ApiError, match=match, check=lambda error: error.code == code)
