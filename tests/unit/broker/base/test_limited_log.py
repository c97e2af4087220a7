"""One line in an interval, for each key."""

import logging

import pytest

from barnabas.broker.base import limited_log
from barnabas.broker.base.limited_log import INTERVAL_MS, LimitedLogByKey


def test_a_key_does_not_silence_another_and_the_keys_are_bounded(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limited_log, "_MOST_KEYS", 2)
    now_ms = 0.0
    log = LimitedLogByKey(logging.getLogger("test"), logging.WARNING, lambda: now_ms)
    for key in "aaab":
        log(key, "from %s", key)
    now_ms = INTERVAL_MS
    log("a", "from %s", "a")
    assert [record.getMessage()[:35] for record in caplog.records] == [
        "from a (0 more since the last repor",
        "from b (0 more since the last repor",
        "from a (2 more since the last repor",
    ]
    log("c", "from %s", "c")
    assert list(log._logs) == ["b", "c"]
