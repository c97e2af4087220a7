"""Records of ``__transaction_state``: Kafka's bytes, both versions, and fields that only this house has."""

import pytest

from barnabas.broker.coordinators.transactions.records import (
    TransactionMetadata,
    TransactionRecord,
    read_key,
    read_value,
    to_bytes,
)
from barnabas.broker.coordinators.transactions.state import TransactionState
from barnabas.protocol.errors import MalformedFrame
from barnabas.protocol.ids import ProducerEpoch, ProducerId, TopicPartition

ONGOING = TransactionMetadata(
    TransactionState.ONGOING,
    ProducerId(7),
    ProducerEpoch(3),
    60_000,
    1_700_000_000_123,
    frozenset({TopicPartition("b", 0), TopicPartition("a", 2), TopicPartition("a", 1)}),
    1_700_000_000_000,
)
EMPTY = TransactionMetadata(
    TransactionState.EMPTY, ProducerId(7), ProducerEpoch(0), 60_000, 1_700_000_000_000
)


def value_of(metadata: TransactionMetadata, transaction_version: int) -> bytes:
    value = to_bytes(TransactionRecord("t", metadata), transaction_version)[1]
    assert value is not None
    return value


def test_the_key_is_kafkas() -> None:
    key, value = to_bytes(TransactionRecord("töne", None), 0)
    assert key == b"\0\0\0\x05t\xc3\xb6ne"
    assert value is None
    assert read_key(key) == "töne"


def test_version_0_is_kafkas() -> None:
    assert value_of(ONGOING, 0).hex() == (
        "0000" "0000000000000007" "0003" "0000ea60" "01"
        "00000002" "000161" "00000002" "00000001" "00000002" "000162" "00000001" "00000000"
        "0000018bcfe5687b" "0000018bcfe56800"
    )  # fmt: skip


def test_version_1_is_flexible() -> None:
    assert value_of(ONGOING, 1).hex() == (
        "0001" "0000000000000007" "0003" "0000ea60" "01"
        "03" "0261" "03" "00000001" "00000002" "00" "0262" "02" "00000000" "00"
        "0000018bcfe5687b" "0000018bcfe56800" "00"
    )  # fmt: skip


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"state": TransactionState.PREPARE_COMMIT, "client_transaction_version": 2},
        {"next_producer_id": ProducerId(1 << 40), "next_producer_epoch": ProducerEpoch(0)},
        {"previous_producer_id": ProducerId(5), "last_producer_epoch": ProducerEpoch(32_766)},
        {"prepared_timeout_ms": 60_000, "timeout_ms": (1 << 31) - 1},
    ],
)
def test_what_is_written_is_read(version: int, changes: dict[str, object]) -> None:
    written = ONGOING._replace(**changes)
    assert read_value(value_of(written, version)) == written


def test_the_flexible_version_is_written_only_where_it_is_needed() -> None:
    assert value_of(ONGOING, 0)[:2] == b"\0\0"
    assert value_of(ONGOING._replace(client_transaction_version=2), 0)[:2] == b"\0\1"


def test_the_numbers_of_the_states_are_kafkas() -> None:
    numbers = {state.value: value_of(ONGOING._replace(state=state), 0)[16] for state in TransactionState}
    assert numbers == {
        "Empty": 0,
        "Ongoing": 1,
        "PrepareCommit": 2,
        "PrepareAbort": 3,
        "CompleteCommit": 4,
        "CompleteAbort": 5,
        "Dead": 6,
        "PrepareEpochFence": 7,
    }


def test_an_unknown_state_is_refused() -> None:
    value = bytearray(value_of(EMPTY, 0))
    value[16] = 9
    with pytest.raises(MalformedFrame, match="the state 9; known are 0 to 7"):
        read_value(bytes(value))


@pytest.mark.parametrize("version", [0, 1])
def test_no_truncated_value_is_read(version: int) -> None:
    value = value_of(ONGOING, version)
    for length in range(len(value)):
        with pytest.raises(MalformedFrame):
            read_value(value[:length])
