"""The error table: Kafka's numbers, one class each, and whether a retry can help."""

import pytest

from barnabas.protocol import errors
from barnabas.protocol.errors import (
    ApiError,
    BarnabasError,
    ConnectionClosed,
    ConnectionRefused,
    ErrorCode,
    InvalidConfiguration,
    LocalError,
    MalformedFrame,
    MessageTooComplex,
    RequestTimedOutLocally,
    api_error,
    is_retriable,
    raise_for,
)

# By number, as in Kafka's table of error codes.
RETRIABLE = {2, 3, 5, 6, 7, 9, 13, 14, 15, 16, 19, 20, 41, 51, 56, 70, 71, 72, 74, 75, 78, 80, 83, 84}
RETRIABLE |= {88, 89, 100, 103, 106}


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (-1, "UNKNOWN_SERVER_ERROR"),
        (1, "OFFSET_OUT_OF_RANGE"),
        (3, "UNKNOWN_TOPIC_OR_PARTITION"),
        (6, "NOT_LEADER_OR_FOLLOWER"),
        (10, "MESSAGE_TOO_LARGE"),
        (19, "NOT_ENOUGH_REPLICAS"),
        (20, "NOT_ENOUGH_REPLICAS_AFTER_APPEND"),
        (35, "UNSUPPORTED_VERSION"),
        (36, "TOPIC_ALREADY_EXISTS"),
        (42, "INVALID_REQUEST"),
        (56, "KAFKA_STORAGE_ERROR"),
        (73, "TOPIC_DELETION_DISABLED"),
        (74, "FENCED_LEADER_EPOCH"),
        (75, "UNKNOWN_LEADER_EPOCH"),
        (77, "STALE_BROKER_EPOCH"),
        (87, "INVALID_RECORD"),
        (90, "PRODUCER_FENCED"),
        (100, "UNKNOWN_TOPIC_ID"),
        (103, "INCONSISTENT_TOPIC_ID"),
        (129, "REBOOTSTRAP_REQUIRED"),
    ],
)
def test_numbers_are_kafkas(number: int, name: str) -> None:
    assert ErrorCode(number).name == name


def test_exactly_kafkas_retriable_codes_are_retriable() -> None:
    assert {int(code) for code in ErrorCode if is_retriable(code)} == RETRIABLE


@pytest.mark.parametrize("code", [code for code in ErrorCode if code is not ErrorCode.NONE])
def test_every_code_has_the_class_of_its_name_and_a_text(code: ErrorCode) -> None:
    error = api_error(code)
    words = code.name.removesuffix("_EXCEPTION").removesuffix("_ERROR").split("_")
    assert type(error) is getattr(errors, "".join(word.capitalize() for word in words) + "Error")
    assert error.code is code
    assert error.retriable is code.retriable
    assert str(error) == f"{code.name}: {code.text}"
    assert len(code.text) > 5
    assert str(api_error(code, "the very reason")) == f"{code.name}: the very reason"


def test_a_code_that_is_not_known_is_named() -> None:
    error = api_error(4711, "from a newer broker")
    assert error.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert "from a newer broker (unknown error code 4711)" in str(error)
    assert not is_retriable(4711)


def test_raise_for_raises_for_everything_but_none() -> None:
    raise_for(0)
    with pytest.raises(errors.NotLeaderOrFollowerError, match="NOT_LEADER_OR_FOLLOWER: broker 3"):
        raise_for(6, "broker 3")
    with pytest.raises(ApiError, match="4711"):
        raise_for(4711)


@pytest.mark.parametrize(
    ("kind", "retriable"),
    [
        (RequestTimedOutLocally, True),
        (ConnectionClosed, True),
        (ConnectionRefused, True),
        (MalformedFrame, False),
        (MessageTooComplex, False),
        (InvalidConfiguration, False),
    ],
)
def test_local_faults_have_no_code(kind: type[LocalError], retriable: bool) -> None:
    assert issubclass(kind, BarnabasError)
    assert not issubclass(kind, ApiError)
    assert not hasattr(kind, "code")
    assert kind.retriable is retriable


def test_a_refused_connection_is_a_closed_one_and_a_bad_setting_a_value_error() -> None:
    assert issubclass(ConnectionRefused, ConnectionClosed)
    assert issubclass(InvalidConfiguration, ValueError)


def test_a_text_that_quotes_too_much_is_cut_so_that_an_answer_can_hold_it() -> None:
    error = api_error(ErrorCode.INVALID_TOPIC_EXCEPTION, "no topic " + "\N{SNOWMAN}" * 10_922)
    assert error.text.startswith("no topic \N{SNOWMAN}")
    assert error.text.endswith("… (10931 characters)")
    assert len(error.text.encode()) < 32_767
