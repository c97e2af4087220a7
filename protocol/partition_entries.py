"""The topics and partitions of messages: one walk over those of a request, one grouping for an answer.

In a declared class for a topic, the only string is the topic's name, and the first array has its partitions:
numbers, or structures whose first int32 is the partition's number, and in answers the first int16 its error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar, cast

from barnabas.protocol.errors import ApiError, ErrorCode, ErrorTexts
from barnabas.protocol.ids import TopicPartition, by_topic
from barnabas.protocol.schema import WireType, wire_fields

T = TypeVar("T")
Outcome = ApiError | int | None
"""An error, an error code, or None for success."""


class _TopicFields(NamedTuple):
    """The fields of a topic's class, and the number of one of its entries."""

    name: str
    entries: str
    struct: Any
    """The class of the entries; None if they are numbers."""
    number: Callable[[Any], int]


@cache
def _fields_of(topic_class: Callable[..., Any]) -> _TopicFields:
    fields = wire_fields(cast(type[Any], topic_class))
    name = next(field for field, wire, _ in fields if wire.kind is WireType.STRING)
    entries, struct = next((field, wire.struct) for field, wire, _ in fields if wire.is_array)
    if struct is None:
        return _TopicFields(name, entries, None, int)
    number = next(field for field, wire, _ in wire_fields(struct) if wire.kind is WireType.INT32)
    return _TopicFields(name, entries, struct, attrgetter(number))


def entries(topics: Iterable[Any]) -> Iterator[tuple[TopicPartition, Any]]:
    """The partitions of a message's topics, each with its number or structure, in order."""
    for topic in topics:
        fields = _fields_of(topic.__class__)
        name = getattr(topic, fields.name)
        for entry in getattr(topic, fields.entries):
            yield TopicPartition(name, fields.number(entry)), entry


def partitions_of(topics: Iterable[Any]) -> list[TopicPartition]:
    """The partitions of a message's topics, in order."""
    return [tp for tp, _ in entries(topics)]


def named_once(topics: Iterable[Any]) -> list[TopicPartition]:
    """The partitions of a request, each once, in order.

    A partition takes a byte or two to name again, and its answer may take kilobytes.
    """
    return list(dict.fromkeys(partitions_of(topics)))


def in_topics(topic_class: Callable[..., T], results: Iterable[tuple[TopicPartition, Any]]) -> list[T]:
    """The results of partitions, in one instance of the class for each topic."""
    fields = _fields_of(topic_class)
    return [
        topic_class(**{fields.name: topic, fields.entries: of_topic})
        for topic, of_topic in by_topic(results).items()
    ]


def numbers_in_topics(topic_class: Callable[..., T], partitions: Iterable[TopicPartition]) -> list[T]:
    """As `in_topics`, for partitions that only their numbers stand for."""
    return in_topics(topic_class, ((tp, tp.partition) for tp in partitions))


def per_partition(
    topics: Iterable[Any], topic_class: Callable[..., T], answer_one: Callable[[TopicPartition, Any], Any]
) -> list[T]:
    """An answer of the same shape as the request: for each of its entries the answer, in the same place."""
    fields = _fields_of(topic_class)
    answers = []
    for topic in topics:
        name = getattr(topic, _fields_of(topic.__class__).name)
        of_topic = [answer_one(tp, entry) for tp, entry in entries((topic,))]
        answers.append(topic_class(**{fields.name: name, fields.entries: of_topic}))
    return answers


def outcomes_in_topics(topic_class: Callable[..., T], outcomes: Mapping[TopicPartition, Outcome]) -> list[T]:
    """As `in_topics`, for partitions whose results are an error code, or an error code and a text."""
    make = _outcome_maker(topic_class)
    return in_topics(topic_class, ((each, make(each, outcome)) for each, outcome in outcomes.items()))


def outcomes_per_partition(
    topics: Iterable[Any], topic_class: Callable[..., T], outcomes: Mapping[TopicPartition, Outcome]
) -> list[T]:
    """As `per_partition`, for the same results."""
    make = _outcome_maker(topic_class)
    return per_partition(topics, topic_class, lambda tp, _: make(tp, outcomes[tp]))


def _outcome_maker(topic_class: Callable[..., Any]) -> Callable[[TopicPartition, Outcome], Any]:
    struct, texts = _fields_of(topic_class).struct, ErrorTexts()
    fields = wire_fields(struct)
    number = next(name for name, wire, _ in fields if wire.kind is WireType.INT32)
    code = next(name for name, wire, _ in fields if wire.kind is WireType.INT16)
    message = next((name for name, wire, _ in fields if wire.kind is WireType.STRING), None)

    def make(tp: TopicPartition, outcome: Outcome) -> Any:
        if not isinstance(outcome, ApiError):
            return struct(**{number: tp.partition, code: outcome or ErrorCode.NONE})
        text = {} if message is None else {message: texts.of(outcome)}
        return struct(**{number: tp.partition, code: outcome.code, **text})

    return make
