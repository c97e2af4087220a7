"""Every client at every feature, unmodified; the README's table must say what comes out here."""

from __future__ import annotations

import pytest

from .clients import CLIENTS, Unsupported
from .features import FEATURES, Bench, NeedsBarnabas


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("bench", CLIENTS, indirect=True)
def test_a_client_at_a_feature(bench: Bench, feature: str) -> None:
    try:
        FEATURES[feature](bench)
    except Unsupported:
        pass
    except NeedsBarnabas:
        pytest.skip("needs Barnabas' own client, and BARNABAS_COMPAT_BOOTSTRAP names another cluster")
