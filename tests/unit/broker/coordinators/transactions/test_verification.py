"""Questions to coordinators: where they go, how they are merged, and that each is answered once."""

import pytest

from barnabas.broker.coordinators.state_machine import TransactionalProducer
from barnabas.broker.coordinators.transactions import verification as transaction_verification
from barnabas.broker.coordinators.transactions.requests import AddPartitions
from barnabas.broker.coordinators.transactions.verification import (
    MAX_IN_FLIGHT,
    Outcome,
    TransactionVerification,
)
from barnabas.protocol import codec_msgpack
from barnabas.protocol.errors import ApiError, ConnectionClosed, ErrorCode
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.transactions import AddPartitionsToTxnResponse
from tests.support.building import ME, TP, state
from tests.support.serving import Serving
from tests.support.verification import Coordinators

OTHER = ME + 1
T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


@pytest.fixture
def leading(serving: Serving) -> Serving:
    """Broker 1 leads a partition."""
    serving.managed.know({1: 0, 2: 5, 3: 5})
    assert serving.managed.tell(state()) == []
    return serving


@pytest.fixture
def coordinators() -> Coordinators:
    return Coordinators({"here": ME, "there": OTHER} | {f"id-{number}": OTHER for number in range(100)})


def make_verification(leading: Serving, coordinators: Coordinators) -> TransactionVerification:
    return TransactionVerification(
        ME,
        leading.managed.manager,
        coordinator_of=coordinators.coordinator_of,
        ask_own=coordinators.apply,
        links=coordinators,
        is_enabled=True,
    )


@pytest.fixture
def verification(leading: Serving, coordinators: Coordinators) -> TransactionVerification:
    return make_verification(leading, coordinators)


def question(
    name: str, *partitions: TopicPartition, adds: bool = False, epoch: int = 3
) -> tuple[str, AddPartitions]:
    return name, AddPartitions(7, epoch, frozenset(partitions or [T0]), verify_only=not adds)


def ask(verification: TransactionVerification, asked: tuple[str, AddPartitions]) -> list[Outcome]:
    """The answers, now or later."""
    answers: list[Outcome] = []
    verification.confirm(*asked, answers.append)
    return answers


def test_a_coordinator_in_this_process_is_asked_directly(
    verification: TransactionVerification, coordinators: Coordinators
) -> None:
    verified = ask(verification, question("here", T0, T1))
    added = ask(verification, question("here", T0, adds=True))
    assert [asked.request for asked in coordinators.here] == [
        AddPartitions(7, 3, frozenset([T0, T1]), verify_only=True),
        AddPartitions(7, 3, frozenset([T0])),
    ]
    assert verified == added == []
    coordinators.here[0].respond({T0: ErrorCode.NONE, T1: ErrorCode.TRANSACTION_ABORTABLE})
    coordinators.here[1].respond(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert verified == [{T0: ErrorCode.NONE, T1: ErrorCode.TRANSACTION_ABORTABLE}]
    assert added == [{T0: ErrorCode.CONCURRENT_TRANSACTIONS}]
    assert coordinators.there == []


def test_another_broker_is_asked_by_a_request(
    verification: TransactionVerification, coordinators: Coordinators
) -> None:
    answers = ask(verification, question("there", T1, U0, T0, adds=True))
    (sent,) = coordinators.there
    (transaction,) = sent.request.transactions
    assert (sent.broker_id, transaction.transactional_id) == (OTHER, "there")
    assert (transaction.producer_id, transaction.producer_epoch, transaction.verify_only) == (7, 3, False)
    assert [(topic.name, topic.partitions) for topic in transaction.topics] == [("t", [0, 1]), ("u", [0])]
    sent.respond({T0: ErrorCode.NONE, T1: ErrorCode.NONE, U0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
    assert answers == [{T0: ErrorCode.NONE, T1: ErrorCode.NONE, U0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}]
    ask(verification, question("there"))
    assert coordinators.there[1].request.transactions[0].verify_only


def test_without_a_coordinator_the_question_is_answered_at_once(
    verification: TransactionVerification,
) -> None:
    assert ask(verification, question("unknown")) == [{T0: ErrorCode.COORDINATOR_NOT_AVAILABLE}]


def test_questions_that_are_too_long_together_go_in_several_requests(
    verification: TransactionVerification, coordinators: Coordinators
) -> None:
    for number in range(MAX_IN_FLIGHT):
        ask(verification, question(f"id-{number}"))
    for number in range(50, 90):
        long = [TopicPartition(f"{part}" * 15_000, number) for part in range(10, 20)]
        ask(verification, question(f"id-{number}", *long))
    for sent in coordinators.there:
        codec_msgpack.encode_request(1, "broker", sent.request)
        sent.respond()
    assert sum(len(sent.request.transactions) for sent in coordinators.there) == MAX_IN_FLIGHT + 40


def test_two_questions_about_one_id_go_in_two_requests(
    verification: TransactionVerification, coordinators: Coordinators
) -> None:
    for number in range(MAX_IN_FLIGHT):
        ask(verification, question(f"id-{number}"))
    zombie = ask(verification, question("there", epoch=2))
    present = ask(verification, question("there", epoch=3))
    coordinators.there[0].respond()
    assert len(coordinators.there) == MAX_IN_FLIGHT + 1
    coordinators.there[MAX_IN_FLIGHT].respond(ErrorCode.PRODUCER_FENCED)
    coordinators.there[MAX_IN_FLIGHT + 1].respond()
    assert (zombie, present) == ([{T0: ErrorCode.PRODUCER_FENCED}], [{T0: ErrorCode.NONE}])


def test_too_many_waiting_questions_are_refused(
    leading: Serving, coordinators: Coordinators, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_verification, "MAX_WAITING", 2)
    verification = make_verification(leading, coordinators)
    for number in range(MAX_IN_FLIGHT + 2):
        assert ask(verification, question(f"id-{number}")) == []
    assert ask(verification, question("id-99")) == [{T0: ErrorCode.COORDINATOR_NOT_AVAILABLE}]


@pytest.mark.parametrize(
    ("response", "code"),
    [
        (ConnectionClosed("reset"), ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (AddPartitionsToTxnResponse(), ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (AddPartitionsToTxnResponse(error_code=15), ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (AddPartitionsToTxnResponse(error_code=9_999), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_a_broker_that_does_not_answer_the_question_has_not_confirmed(
    verification: TransactionVerification,
    coordinators: Coordinators,
    response: AddPartitionsToTxnResponse | ConnectionClosed,
    code: ErrorCode,
) -> None:
    answers = ask(verification, question("there", T0, T1))
    coordinators.there[0].answer(response)
    assert answers == [{T0: code, T1: code}]
    # The place of the failed request is free again.
    for number in range(MAX_IN_FLIGHT):
        ask(verification, question(f"id-{number}"))
    assert len(coordinators.there) == MAX_IN_FLIGHT + 1


def test_an_append_of_this_broker_gets_a_guard(
    verification: TransactionVerification, coordinators: Coordinators
) -> None:
    answers: list[tuple[ErrorCode, TransactionalProducer]] = []
    producer = TransactionalProducer(7, 3)
    verification.confirm_append(TP, "here", producer, True, lambda *answer: answers.append(answer))
    assert coordinators.here[0].request == AddPartitions(7, 3, frozenset([TP]), verify_only=False)
    coordinators.here[0].respond(ErrorCode.NONE)
    ((error, guarded),) = answers
    assert (error, guarded.producer_id, guarded.epoch) == (ErrorCode.NONE, 7, 3)
    assert guarded.guard is not None
    verification.is_enabled = False
    verification.confirm_append(TP, "here", producer, False, lambda *answer: answers.append(answer))
    # Nobody is asked, but the log wants a guard.
    assert len(coordinators.here) == 1
    assert answers[1][1].guard is not None
    with pytest.raises(ApiError):
        verification.confirm_append(
            TopicPartition("none", 0), "here", producer, True, lambda *answer: answers.append(answer)
        )
