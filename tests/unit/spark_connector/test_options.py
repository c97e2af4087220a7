"""Options of the source: accepted values, and the errors that name a refused one."""

import pickle

import pytest

from barnabas.protocol.errors import InvalidConfiguration
from barnabas.protocol.ids import TopicPartition
from barnabas.spark_connector.option_kinds import EARLIEST, LATEST
from barnabas.spark_connector.options import parse_options

GOOD = {"bootstrap.servers": "a:1,b:2", "subscribe": "t"}


def test_defaults_are_sparks() -> None:
    options = parse_options(GOOD)
    assert options.bootstrap_servers == "a:1,b:2"
    assert options.topics == ("t",)
    assert (options.start, options.end) == (
        ("startingOffsets", EARLIEST, False),
        ("endingOffsets", LATEST, False),
    )
    assert (options.min_partitions, options.include_headers, options.fail_on_data_loss) == (None, False, True)


def test_names_come_in_any_case_and_with_the_kafka_prefix() -> None:
    options = parse_options(
        {"KAFKA.bootstrap.servers": "a:1", "SUBSCRIBEpattern": "t.*", "includeheaders": "TRUE"}
    )
    assert options.topic_pattern == "t.*"
    assert options.include_headers
    assert options.isolation_level == "read_uncommitted"
    options = parse_options(GOOD | {"Kafka.Isolation.Level": "read_committed"})
    assert options.isolation_level == "read_committed"
    assert parse_options(GOOD | {"isolation.level": "read_committed"}) == options


def test_everything_can_be_given_and_the_result_is_pickled() -> None:
    options = parse_options(
        {
            "bootstrap.servers": "a:1",
            "kafka.bootstrap.servers": "a:1",
            "assign": '{"t":[1,0],"u":[3]}',
            "startingOffsets": '{"t":{"0":-2,"1":7},"u":{"3":0}}',
            "endingOffsets": '{"t":{"0":-1,"1":9},"u":{"3":1}}',
            "minPartitions": "12",
            "failOnDataLoss": "false",
        }
    )
    t0, t1, u3 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 3)
    assert options.partitions == (t1, t0, u3)
    assert options.starting_offsets == {t0: -2, t1: 7, u3: 0}
    assert options.ending_offsets == {t0: -1, t1: 9, u3: 1}
    assert options.min_partitions == 12
    assert not options.fail_on_data_loss
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"startingOfsets": "earliest"}, "'startingOfsets' is unknown .* did you mean startingOffsets"),
        ({"path": "/x"}, "'path' is unknown"),
        ({"bootstrap.servers": None}, r"'kafka.bootstrap.servers' is missing; expected host:port"),
        ({"bootstrap.servers": "a"}, "'a' is not host:port"),
        ({"bootstrap.servers": ","}, "names no server"),
        ({"kafka.bootstrap.servers": "other:1"}, "differ"),
        ({"isolation.level": "committed"}, "isolation.level='committed': expected .*read_committed"),
        ({"isolation.level": "read_committed", "kafka.isolation.level": "read_uncommitted"}, "differ"),
        ({"subscribe": None}, "exactly one of the options .* found none"),
        ({"assign": '{"t":[0]}'}, "found subscribe and assign"),
        ({"subscribe": " , "}, "subscribe=' , ': expected topic"),
        ({"subscribe": None, "subscribePattern": "("}, "expected a regular expression"),
        ({"subscribe": None, "subscribePattern": ""}, "subscribePattern='': expected a regular expression"),
        ({"subscribe": None, "assign": "t"}, "assign='t': expected JSON"),
        ({"subscribe": None, "assign": "[]"}, "expected JSON"),
        ({"subscribe": None, "assign": "{}"}, "expected JSON"),
        ({"subscribe": None, "assign": '{"t":0}'}, "expected JSON"),
        ({"subscribe": None, "assign": '{"t":[-1]}'}, "expected JSON"),
        ({"subscribe": None, "assign": '{"t":[true]}'}, "expected JSON"),
        ({"startingOffsets": "latest"}, "startingOffsets='latest': a batch query has no records there"),
        ({"endingOffsets": "earliest"}, "endingOffsets='earliest': a batch query has no records there"),
        ({"startingOffsets": '{"t":{"0":-1}}'}, r"startingOffsets has -1 \(latest\) for t-0: a batch"),
        ({"endingOffsets": '{"t":{"0":-2}}'}, r"endingOffsets has -2 \(earliest\) for t-0: a batch"),
        ({"startingOffsets": "first"}, "startingOffsets='first': expected earliest, latest or JSON"),
        ({"startingOffsets": '{"t":5}'}, "expected earliest, latest or JSON"),
        ({"startingOffsets": '{"t":{"x":5}}'}, "expected earliest, latest or JSON"),
        ({"startingOffsets": '{"t":{"0":-3}}'}, "expected earliest, latest or JSON"),
        ({"startingOffsets": '{"t":{"0":1.5}}'}, "expected earliest, latest or JSON"),
        ({"endingOffsets": '{"t":{"0":"5"}}'}, "expected earliest, latest or JSON"),
        ({"minPartitions": "0"}, "minPartitions='0': expected a whole number, at least 1"),
        ({"minPartitions": "many"}, "expected a whole number, at least 1"),
        ({"includeHeaders": "yes"}, "includeHeaders='yes': expected true or false"),
        ({"failOnDataLoss": "1"}, "failOnDataLoss='1': expected true or false"),
    ],
)
def test_the_error_for_a_wrong_option_names_it(changes: dict[str, str | None], message: str) -> None:
    merged = {**GOOD, **changes}
    with pytest.raises(InvalidConfiguration, match=message):
        parse_options({name: value for name, value in merged.items() if value is not None})
