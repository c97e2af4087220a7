"""A prepared transaction has no time-out, and any process that knows its epoch may end it (KIP-939)."""

import math

from barnabas.broker.coordinators.transactions.records import TransactionMetadata
from barnabas.broker.coordinators.transactions.rules import LAST_EPOCH, NO_TIMEOUT_MS
from barnabas.broker.coordinators.transactions.state import TransactionState
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import ProducerId
from barnabas.protocol.messages.transactions import EndTxnResponse
from tests.support.transacting import (
    FIRST_ID,
    OK,
    P0,
    P2,
    TIMEOUT_MS,
    TransactionRig,
    add,
    commit,
    ended,
    given,
    keep,
    ongoing,
    prepare,
    verify,
)

S = TransactionState


def test_a_prepared_transaction_has_no_timeout_and_takes_no_more_partitions() -> None:
    rig = ongoing()
    assert rig.do_all(prepare(0)) is OK
    assert rig.stored.timeout_ms == NO_TIMEOUT_MS
    assert rig.machine.describe().is_prepared
    assert rig.machine.next_deadline_ms == math.inf
    assert rig.send(add(0, P2)) is ErrorCode.INVALID_TXN_STATE
    assert rig.send(verify(0, P0)) == {P0: ErrorCode.INVALID_TXN_STATE}
    assert rig.do_all(commit(0, 2)) == ended(1)
    assert rig.stored.timeout_ms == TIMEOUT_MS


def test_a_new_producer_keeps_a_prepared_transaction() -> None:
    rig = ongoing()
    rig.do_all(prepare(0))
    kept = rig.do_all(keep())
    assert kept == given(2, ongoing=(FIRST_ID, 0))
    rig.load(rig.stored)
    # A process outside ends it. It gets no epoch: that would be the new producer's.
    assert rig.do_all(commit(0, 2)) == EndTxnResponse()
    assert rig.do_all(commit(0, 2)) == EndTxnResponse()
    assert rig.do_all(add(0)) is ErrorCode.PRODUCER_FENCED
    assert rig.do_all(add(2)) is OK


def test_a_kept_transaction_at_the_last_epoch_leads_to_a_new_producer_id() -> None:
    last = TransactionMetadata(
        S.ONGOING, ProducerId(7), LAST_EPOCH, NO_TIMEOUT_MS, 0, frozenset({P0}), 0, prepared_timeout_ms=9
    )
    rig = TransactionRig(last)
    assert rig.do_all(keep()) == given(1, ongoing=(7, LAST_EPOCH))
    assert rig.do_all(commit(LAST_EPOCH, 2, producer_id=7)) == EndTxnResponse()
    assert rig.do_all(commit(LAST_EPOCH, 2, producer_id=7)) == EndTxnResponse()
    assert rig.do_all(add(1)) is OK
