"""Produced batches whose records or compression are wrong are refused with Kafka's codes, or can be read."""

from contextlib import nullcontext

import pytest

from barnabas.broker.log.appending import parse_produced
from barnabas.broker.log.record_checks import prepare_records
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.records import decode_records
from tests.support.defaults import log_config
from tests.support.odd_batches import CASES, expected_code

TP = TopicPartition("topic", 0)


@pytest.mark.parametrize("name", CASES)
def test_a_batch_is_refused_with_kafkas_code_or_readers_read_it(name: str) -> None:
    code = expected_code(name)
    with nullcontext() if code is ErrorCode.NONE else pytest.raises(ApiError) as caught:
        sent = parse_produced(CASES[name])
        kept = prepare_records(TP, sent, log_config(), now_ms=0, max_bytes=1 << 20)
        assert decode_records(kept.view)
    if caught is not None:
        assert caught.value.code is code, str(caught.value)
