"""The sentences on a replica, from the offsets of one moment."""

from typing import Any

import pytest

from barnabas.ui.explain import explain

_REPLICA = {
    **{"failure": None, "is_offline": False, "caught_up_ms_ago": None, "last_stable_offset": None},
    **{"remote_log_end_offset": None},
}


def _partition(**changes: Any) -> dict[str, Any]:
    """Led by broker 1; the leader knows less of brokers 2 and 3 than they have written."""
    replicas = {
        "1": _REPLICA | {"log_end_offset": 1204, "high_watermark": 1198},
        "2": _REPLICA | {"log_end_offset": 1204, "high_watermark": 1198, "remote_log_end_offset": 1200},
        "3": _REPLICA | {"log_end_offset": 1202, "high_watermark": 1190, "remote_log_end_offset": 1198},
    }
    partition = {
        **{"leader": 1, "leader_epoch": 4, "isr": [1, 2, 3], "min_isr": 2, "is_under_min_isr": False},
        "replicas": replicas,
    }
    for name, value in changes.items():
        if name.startswith("of_"):
            replicas[name.removeprefix("of_")] |= value
        else:
            partition[name] = value
    return partition


@pytest.mark.parametrize(
    ("changes", "broker", "sentence"),
    [
        ({}, 1, "by what they last asked for: broker 2 for 1,200, broker 3 for 1,198."),
        ({}, 1, "the least of these ends: 1,198. It waits for broker 3."),
        ({"isr": [1]}, 1, "each record is committed as soon as the leader has it"),
        ({"of_1": {"last_stable_offset": 1190}}, 1, "stop there, 8 records short."),
        ({"isr": [1], "is_under_min_isr": True}, 1, "Only 1 of min.insync.replicas=2 are in sync"),
        ({}, 2, "Until then the leader knows of 1,200 (remote LEO)."),
        ({}, 2, "high watermark stays at 1,198, the least end of the ISR"),
        ({}, 3, "raises its high watermark from 1,198 to 1,200."),
        ({}, 3, "its own high watermark is 1,190 until then"),
        (
            {f"of_{id}": {"high_watermark": 1204, "log_end_offset": 1204} for id in (1, 2, 3)}
            | {"isr": [1, 2]},
            2,
            "at the end of its log, 1,204: everything is committed",
        ),
        ({"isr": [1, 2], "of_3": {"caught_up_ms_ago": 4200}}, 3, "2 records are missing, and it was last"),
        ({"isr": [1, 2], "of_3": {"caught_up_ms_ago": 4200}}, 3, "caught up 4.2 s ago"),
        ({"of_3": {"failure": "no space"}}, 3, "The replica of broker 3 is offline: no space."),
        ({"of_3": {"log_end_offset": None}}, 3, "It is still in the ISR"),
        ({"of_3": {"log_end_offset": None}, "isr": [1, 2]}, 3, "It is out of the ISR"),
        ({"leader": None, "isr": [3]}, 2, "until a replica of the ISR (3) is back."),
        ({}, 4, "Broker 4 has no replica of t-0 any more."),
    ],
)
def test_a_replica_is_explained_by_its_offsets(changes: dict[str, Any], broker: int, sentence: str) -> None:
    assert sentence in " ".join(explain("t-0", _partition(**changes), broker))
