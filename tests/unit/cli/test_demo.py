"""The checks of the demo: its audits find every fault, and its clock measures the longest silence."""

import io
import json
import uuid
from itertools import islice
from pathlib import Path

import pytest
from rich.console import Console

from barnabas.cli.demo import flights as demo_flights
from barnabas.cli.demo.demo import _directory, _same_delays
from barnabas.cli.demo.flights import CarrierDelay
from barnabas.cli.demo.ledger import Audit, Finding, GroupAudit, Ledger, checksum_of
from barnabas.cli.demo.screen import Screen
from barnabas.cli.demo.traffic import Silences, busiest_leader
from barnabas.cli.exit_codes import CommandError
from barnabas.client.metadata import PartitionInfo, TopicInfo
from barnabas.protocol.ids import BrokerId, LeaderEpoch, TopicId

KEY = b"UA1545"


def value_of(number: int) -> bytes:
    return json.dumps({"id": number}).encode()


def ledger_of(count: int) -> Ledger:
    """Records 0 to count - 1, acknowledged at the same offsets of partition 0."""
    ledger = Ledger()
    for number in range(count):
        assert ledger.sent(KEY, value_of(number)) == number
        ledger.acknowledge(number, 0, number)
    return ledger


def audit_of(ledger: Ledger, offsets_and_numbers: list[tuple[int, int]]) -> Audit:
    audit = Audit(ledger)
    for offset, number in offsets_and_numbers:
        audit.take(0, offset, KEY, value_of(number))
    return audit


def counts(audit: Audit) -> dict[str, int]:
    findings = {
        "missing": audit.missing(),
        "moved": audit.moved(),
        "offset": audit.offset_breaks,
        "order": audit.order_breaks,
        "foreign": audit.foreign,
        "duplicate": audit.duplicates,
    }
    return {name: finding.count for name, finding in findings.items() if finding.count}


@pytest.mark.parametrize(
    ("sent", "read", "faults"),
    [
        (3, [(0, 0), (1, 1), (2, 2)], {}),
        (3, [(0, 0), (1, 1)], {"missing": 1, "moved": 1}),
        (3, [(0, 0), (1, 2), (2, 1)], {"moved": 2, "order": 1}),
        (2, [(0, 0), (2, 1)], {"offset": 1, "moved": 1}),
        (2, [(0, 0), (1, 1), (1, 1)], {"offset": 1, "duplicate": 1}),
        (2, [(0, 0), (1, 1), (2, 0), (3, 1)], {"duplicate": 2}),
    ],
    ids=["intact", "lost", "other value", "hole", "repeated offset", "duplicates keep the order"],
)
def test_the_audit_finds_each_fault(sent: int, read: list[tuple[int, int]], faults: dict[str, int]) -> None:
    """`read` has pairs of an offset and the number of the record found there."""
    assert counts(audit_of(ledger_of(sent), read)) == faults


def test_a_finding_names_the_record() -> None:
    audit = audit_of(ledger_of(3), [(0, 0), (1, 1), (2, 0)])
    assert audit.consumed == 3
    assert str(audit.missing()) == "1 (record 2, acknowledged at offset 2 of 0, is nowhere)"
    assert "record 0 again at offset 2 of 0" in str(audit.duplicates)


def test_a_record_that_was_never_acknowledged_may_be_missing() -> None:
    ledger = ledger_of(2)
    ledger.sent(KEY, value_of(2))
    assert counts(audit_of(ledger, [(0, 0), (1, 1)])) == {}


def test_bytes_that_were_never_sent_are_found() -> None:
    audit = Audit(ledger_of(1))
    audit.take(0, 0, KEY, value_of(0))
    audit.take(0, 1, b"other", value_of(0))
    audit.take(0, 2, KEY, value_of(7))
    audit.take(0, 3, KEY, b"[]")
    audit.take(0, 4, None, None)
    assert counts(audit) == {"foreign": 4}


def group_audit_of(count: int, seen: list[tuple[int, int]]) -> GroupAudit:
    """An audit of `count` acknowledged records; `seen` has pairs of a member and an offset."""
    audit = GroupAudit(ledger_of(count))
    for member, offset in seen:
        audit.take(member, 0, offset, checksum_of(KEY, value_of(offset)))
    return audit


def test_redelivered_records_of_a_dead_member_are_counted_and_no_fault() -> None:
    audit = group_audit_of(3, [(1, 0), (1, 1), (2, 1), (2, 2)])
    assert (audit.seen, audit.redelivered) == (3, {1: 1})
    assert (audit.unseen().count, audit.changed.count, audit.covered_unseen({0: 3}).count) == (0, 0, 0)


def test_an_unread_record_is_found() -> None:
    audit = group_audit_of(3, [(1, 0), (1, 2)])
    assert str(audit.unseen()) == "1 (offset 1 of 0)"
    assert audit.covered_unseen({0: 1}).count == 0
    assert str(audit.covered_unseen({0: 3})) == "1 (offset 1 of 0, committed up to 3)"


def test_a_commit_beyond_the_end_covers_unread_records() -> None:
    assert group_audit_of(1, [(1, 0)]).covered_unseen({0: 2, 1: 1}).count == 2


def test_a_record_with_other_bytes_is_found() -> None:
    audit = GroupAudit(ledger_of(1))
    audit.take(1, 0, 0, checksum_of(KEY, value_of(7)))
    assert audit.changed.count == 1


def test_a_finding_shows_a_few_examples_of_many() -> None:
    finding = Finding()
    for number in range(1000):
        finding.add(f"e{number}")
    assert str(finding) == "1,000 (e0; e1; e2)"


def test_the_failover_time_is_the_longest_silence_not_the_first() -> None:
    silences = Silences(10.0, [1, 2])
    silences.note(1, 10.001)
    silences.note(0, 10.1)
    assert silences.unheard() == [2]
    silences.note(1, 10.5)
    silences.note(2, 10.2)
    silences.note(1, 10.51)
    assert silences.unheard() == []
    by_partition = silences.by_partition_ms()
    assert by_partition[1] == pytest.approx(499)
    assert by_partition[2] == pytest.approx(200)
    assert silences.any_ms == pytest.approx(400)


def topic_of(leaders: list[int]) -> TopicInfo:
    partitions = (
        PartitionInfo("t", number, BrokerId(leader), LeaderEpoch(0), (), (), ())
        for number, leader in enumerate(leaders)
    )
    return TopicInfo("t", TopicId(uuid.uuid4()), False, tuple(partitions))


def test_the_victim_leads_most_partitions() -> None:
    assert busiest_leader(topic_of([1, 2, 3, 2])) == (2, [1, 3])
    assert busiest_leader(topic_of([3, 1, 1, 3])) == (1, [1, 2])


def test_departures_are_typed_json_keyed_by_carrier_and_flight() -> None:
    departures = list(islice(demo_flights.read_departures(demo_flights.find_flights()), 900))
    assert departures[0].key == b"UA1545"
    first = json.loads(departures[0].value)
    assert first["id"] == 0
    assert (first["carrier"], first["dep_delay"], first["tailnum"]) == ("UA", 2, "N14228")
    assert [json.loads(entry.value)["id"] for entry in departures] == list(range(900))
    assert any(json.loads(entry.value)["dep_delay"] is None for entry in departures)


def test_means_may_differ_by_rounding_alone() -> None:
    delays = [CarrierDelay("UA", 3, 2, 0.1 + 0.2)]
    assert _same_delays(delays, [CarrierDelay("UA", 3, 2, 0.3)])
    assert not _same_delays(delays, [CarrierDelay("UA", 3, 2, 0.300001)])
    assert not _same_delays(delays, [CarrierDelay("UA", 3, 3, 0.3)])
    assert not _same_delays(delays, [])


def test_the_directory_has_to_be_new_or_empty(tmp_path: Path) -> None:
    assert _directory(tmp_path / "new" / "one").is_dir()
    (tmp_path / "new" / "file").touch()
    with pytest.raises(CommandError, match="has other files"):
        _directory(tmp_path / "new")


def test_a_log_file_gets_lines_instead_of_a_bar() -> None:
    out = io.StringIO()
    screen = Screen(console=Console(file=out))
    with screen.progress("written", 1000) as show_progress:
        for done in range(0, 1001, 50):
            show_progress(done)
    screen.verdict(True, "good [1, 2]")
    screen.verdict(False, "bad")
    lines = out.getvalue().splitlines()
    assert [line.split(" of ")[0].strip() for line in lines[:5]] == [
        f"written {done:,}" for done in (200, 400, 600, 800, 1000)
    ]
    assert lines[5:] == ["   ✓ good [1, 2]", "   ✗ bad"]
