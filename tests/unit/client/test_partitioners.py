"""Partitioners, against hashes that Java's client computes."""

import pytest

from barnabas.client.errors import InvalidConfiguration
from barnabas.client.producer.partitioners import (
    KeyCache,
    check_partition,
    make_partitioner,
    murmur2,
    partition_of_key,
)

# From Kafka's own UtilsTest, as signed 32-bit numbers.
JAVA_HASHES = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "java_hash"), JAVA_HASHES.items())
def test_a_key_goes_where_javas_client_puts_it(key: bytes, java_hash: int) -> None:
    assert murmur2(key) == java_hash & 0xFFFFFFFF
    for partitions in (1, 2, 6, 50, 1000):
        assert partition_of_key(key, partitions) == (java_hash & 0x7FFFFFFF) % partitions


def test_the_cache_gives_the_same_partitions_and_stays_bounded() -> None:
    cache = KeyCache(7, max_keys=10)
    keys = [b"key-%d" % number for number in range(100)]
    for _ in range(2):
        assert [cache.partition(key) for key in keys] == [partition_of_key(key, 7) for key in keys]
    assert len(cache._partitions) <= 10


def test_long_keys_are_remembered_within_a_bound_of_bytes() -> None:
    cache = KeyCache(7, max_bytes=10_000)
    keys = [b"%d" % number + bytes(1_000) for number in range(95)]
    for key in [*keys, bytes(50_000), *keys]:
        assert cache.partition(key) == partition_of_key(key, 7)
        assert sum(map(len, cache._partitions)) <= max(10_000, len(key))
    assert len(cache._partitions) > 1


def test_round_robin_takes_turns_whatever_the_key() -> None:
    choose = make_partitioner("round_robin")
    assert choose is not None
    assert [choose(b"same", 3) for _ in range(6)] == [0, 1, 2, 0, 1, 2]


def test_random_reaches_every_partition() -> None:
    choose = make_partitioner("random")
    assert choose is not None
    assert {choose(b"same", 3) for _ in range(500)} == {0, 1, 2}


def test_murmur2_without_a_key_reaches_every_partition() -> None:
    choose = make_partitioner("murmur2")
    assert choose is not None
    assert {choose(None, 3) for _ in range(500)} == {0, 1, 2}
    assert choose(b"abc", 6) == partition_of_key(b"abc", 6)


def test_sticky_is_no_function_and_a_callable_is_itself() -> None:
    assert make_partitioner("sticky") is None

    def mine(key: bytes | None, partition_count: int) -> int:
        return 0

    assert make_partitioner(mine) is mine


@pytest.mark.parametrize("partition", [-1, 3, None, "0", True])
def test_a_partition_that_does_not_exist_is_refused(partition: object) -> None:
    with pytest.raises(InvalidConfiguration, match="expected a number from 0 to 2"):
        check_partition(partition, 3, "t")
