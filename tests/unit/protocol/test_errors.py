"""The error table: Kafka's numbers, one class each, and whether a retry can help."""

import pytest
from kio.schema.errors import ErrorCode as KafkaErrorCode

from barnabas.protocol import errors
from barnabas.protocol.errors import (
    MAX_TEXT_LENGTH,
    ApiError,
    BarnabasError,
    ConnectionClosed,
    ConnectionRefused,
    ErrorCode,
    ErrorTexts,
    InvalidConfiguration,
    LocalError,
    MalformedFrame,
    MessageTooComplex,
    RequestTimedOutLocally,
    api_error,
    is_retriable,
    raise_for,
)


def test_numbers_names_and_retriable_codes_are_kafkas() -> None:
    for code in ErrorCode:
        theirs = KafkaErrorCode(code)
        assert (theirs.name.upper(), theirs.retriable) == (code.name, is_retriable(code))


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
    assert issubclass(kind, ConnectionClosed) == (kind in (ConnectionClosed, ConnectionRefused))
    assert issubclass(kind, ValueError) == (kind is InvalidConfiguration)


def test_a_text_that_quotes_too_much_is_cut_so_that_an_answer_can_hold_it() -> None:
    error = api_error(ErrorCode.INVALID_TOPIC_EXCEPTION, "no topic " + "\N{SNOWMAN}" * 10_922)
    assert error.text.startswith("no topic \N{SNOWMAN}")
    assert error.text.endswith("… (10931 characters)")
    assert len(error.text.encode()) < 32_767
    assert api_error(ErrorCode.INVALID_TOPIC_EXCEPTION, "x" * MAX_TEXT_LENGTH).text == "x" * MAX_TEXT_LENGTH
    # Also a text that never was an error, as of a user's name that takes 32,767 bytes.
    assert ErrorTexts().take(f"no user {'x' * 32_767!r}") == f"no user '{'x' * 1_991}… (32777 characters)"
    assert ErrorTexts().of(error) == error.text


def test_an_error_for_many_callers_is_copied_with_its_cause_and_without_its_traceback() -> None:
    with pytest.raises(ApiError) as caught:
        raise api_error(6, "broker 3") from ConnectionClosed("why")
    again = caught.value.again()
    assert (type(again), str(again)) == (type(caught.value), str(caught.value))
    assert again is not caught.value
    assert again.__cause__ is caught.value.__cause__
    assert again.__traceback__ is None
