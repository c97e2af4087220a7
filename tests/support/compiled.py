"""For tests of modules that are also compiled."""

import pytest

from barnabas.common import compiled_core

PURE_PYTHON_ONLY = pytest.mark.skipif(
    compiled_core.is_running(),
    reason="replaces or counts what compiled code calls directly; "
    "tests/unit/common/test_compiled_core.py runs it in pure Python",
)
