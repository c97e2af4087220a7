"""Errors that leave the client: one object per raise, and complete after pickling."""

import inspect
import pickle
from itertools import pairwise
from types import TracebackType

import pytest

from barnabas.client import ConsumerRecord
from barnabas.client import errors as client_errors
from barnabas.client.errors import (
    BarnabasError,
    DeliveryTimedOut,
    ErrorCode,
    GroupErrors,
    LogTruncated,
    PartitionErrors,
    RecordDeserializationError,
    SerializationError,
    TopicErrors,
    api_error,
)
from barnabas.client.producer.batch import ProducerBatch, RecordFuture
from barnabas.protocol.batch_builder import RecordBatchBuilder
from barnabas.protocol.ids import Offset, TopicPartition
from barnabas.protocol.record_batch import TimestampType

RECORD = ConsumerRecord("t", 1, Offset(7), 0, b"key", b"\xff", (("h", b"1"),), TimestampType.CREATE_TIME)
WITH_FIELDS = (
    "GroupErrors",
    "PartitionErrors",
    "LogTruncated",
    "RecordDeserializationError",
    "SerializationError",
    "TopicErrors",
)


def _frames(error: BaseException) -> int:
    count, trace = 0, error.__traceback__
    while isinstance(trace, TracebackType):
        count, trace = count + 1, trace.tb_next
    return count


def _failed_batch(error: BarnabasError) -> ProducerBatch:
    builder = RecordBatchBuilder(max_bytes=10_000)
    for _ in range(100):
        builder.append(None, b"value", None, 0)
    batch = ProducerBatch(TopicPartition("t", 0), builder, created_at=0.0)
    batch.fail(error)
    return batch


def test_each_record_of_a_failed_batch_raises_an_error_of_its_own() -> None:
    cause = api_error(ErrorCode.NOT_ENOUGH_REPLICAS)
    timed_out = DeliveryTimedOut("no answer in time")
    timed_out.__cause__ = cause
    batch = _failed_batch(timed_out)
    raised = []
    for index in range(100):
        with pytest.raises(DeliveryTimedOut, match="no answer in time") as caught:
            RecordFuture(batch, index, 0).result()
        raised.append(caught.value)
    assert len(set(map(id, raised))) == 100
    # A shared error's traceback would grow with every record and keep all locals alive.
    assert all(_frames(first) == _frames(second) for first, second in pairwise(raised))
    assert all(error.__cause__ is cause for error in raised)


@pytest.mark.parametrize(
    "error",
    [
        LogTruncated("records that were read are gone", 17),
        LogTruncated("records that were read are gone", None),
        TopicErrors({"t": api_error(ErrorCode.INVALID_TOPIC_EXCEPTION, "a name")}, {"u": 3}),
        SerializationError("it is no text", "t", "key"),
        RecordDeserializationError("it is no text", RECORD, "value"),
        PartitionErrors({TopicPartition("t", 0): api_error(ErrorCode.POLICY_VIOLATION, "no")}, {}),
        GroupErrors({"g": api_error(ErrorCode.NON_EMPTY_GROUP, "it has members")}, {"h": None}),
        *(
            error_class("a reason")
            for name, error_class in vars(client_errors).items()
            if inspect.isclass(error_class) and issubclass(error_class, BarnabasError)
            if name not in (*WITH_FIELDS, "_SomeFailed")
        ),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_come_through_a_pickle_whole(error: BarnabasError) -> None:
    """As from a Spark task or a process pool: an error that cannot be unpickled hangs or kills the pool."""
    for copied in (pickle.loads(pickle.dumps(error)), error.again()):
        assert type(copied) is type(error)
        assert str(copied) == str(error)
        assert repr(copied.__dict__) == repr(error.__dict__)
