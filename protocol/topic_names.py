"""The rules for topic names. Pure; source: `org.apache.kafka.common.internals.Topic` of Apache Kafka."""

from __future__ import annotations

import re
from typing import Final

from barnabas.protocol.errors import ErrorCode, api_error

MAX_NAME_LENGTH: Final = 249
OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"
INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})
"""Topics that belong to the brokers themselves."""

_LEGAL_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")


def validate_topic_name(name: str) -> None:
    """Raises INVALID_TOPIC_EXCEPTION unless the name is 1 to 249 of letters, digits, '.', '_' and '-'."""
    if not name:
        problem = "is empty"
    elif name in (".", ".."):
        problem = "may not be '.' or '..'"
    elif len(name) > MAX_NAME_LENGTH:
        problem = f"has {len(name)} characters; at most {MAX_NAME_LENGTH} are allowed"
    elif not _LEGAL_NAME.fullmatch(name):
        problem = "may hold only ASCII letters, digits, '.', '_' and '-'"
    else:
        return
    raise api_error(ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic name {name[:300]!r} is invalid: it {problem}")


def metric_name(topic: str) -> str:
    """The name of a topic in metrics; two topics may not have the same one."""
    return topic.replace(".", "_")
