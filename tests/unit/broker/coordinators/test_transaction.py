"""One transactional id: producers that come, go and are fenced; transactions that begin and end."""

from __future__ import annotations

from barnabas.broker.coordinators.transaction_effects import Ended, MarkersToWrite, ProducerGiven
from barnabas.broker.coordinators.transaction_state import TransactionState
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import LeaderEpoch, ProducerEpoch, ProducerId
from tests.support.transacting import FIRST_ID, P0, P1, TransactionRig, add, commit, init

S = TransactionState
OK = ErrorCode.NONE


def given(epoch: int, producer_id: int = FIRST_ID) -> ProducerGiven:
    return ProducerGiven(OK, ProducerId(producer_id), ProducerEpoch(epoch))


def ended(epoch: int, producer_id: int = FIRST_ID) -> Ended:
    return Ended(OK, ProducerId(producer_id), ProducerEpoch(epoch))


def test_a_new_id_gets_a_producer_id_once_the_record_is_replicated() -> None:
    rig = TransactionRig()
    assert rig.send(init()) is None
    rig.settle()
    assert rig.answer() == given(0)
    assert rig.state is S.EMPTY


def test_a_transaction_is_committed() -> None:
    rig = TransactionRig()
    rig.do_all(init())
    assert rig.do_all(add(0, P0, P1)) is OK
    assert rig.state is S.ONGOING

    assert rig.send(commit(0)) is None
    assert not rig.markers
    rig.settle()
    assert rig.answer() == ended(0)
    assert rig.state is S.PREPARE_COMMIT
    assert rig.markers == [
        MarkersToWrite(
            1, ProducerId(FIRST_ID), ProducerEpoch(0), True, frozenset({P0, P1}), LeaderEpoch(7), 0
        )
    ]

    rig.write_markers([P0])
    assert not rig.appends
    rig.write_markers([P1])
    rig.settle()
    assert rig.state is S.COMPLETE_COMMIT
