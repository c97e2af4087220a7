"""The speed of building, decoding and checking record batches: prints figures, asserts nothing.

Run: python benchmarks/record_batch.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

from barnabas.protocol.batch_builder import RecordBatchBuilder
from barnabas.protocol.compression import Compression
from barnabas.protocol.record_batch import check_produced_batch, iter_batches
from barnabas.protocol.records import decode_fields, decode_records
from tests.support.batches import stamp

RECORDS = 1000
VALUE = b"v" * 100
NOW_MS = 1_700_000_000_000


def best_seconds(work: Callable[[], object], repeats: int = 7, loops: int = 30) -> float:
    """Seconds of one call: the best of several rounds, so that noise from elsewhere counts least."""
    rounds = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(loops):
            work()
        rounds.append((time.perf_counter() - start) / loops)
    return min(rounds)


def build(compression: Compression = Compression.NONE, key: bytes | None = None) -> bytearray:
    builder = RecordBatchBuilder(max_bytes=1 << 30, compression=compression)
    append = builder.append
    for _ in range(RECORDS):
        append(key, VALUE, None, NOW_MS)
    return builder.build()


def main() -> None:
    for key in (None, b"a-key"):
        name = "no key" if key is None else "a key"
        batch = build(key=key)
        seconds = best_seconds(lambda key=key: build(key=key))
        print(f"build, {name:8} {RECORDS / seconds / 1e6:6.2f} M records/s")
        for decode in (decode_fields, decode_records):
            seconds = best_seconds(lambda decode=decode, batch=batch: decode(batch))
            print(f"{decode.__name__}, {name:8} {RECORDS / seconds / 1e6:6.2f} M records/s")
    for compression in Compression:
        batch = build(compression)
        building = best_seconds(lambda compression=compression: build(compression), loops=5)
        decoding = best_seconds(lambda batch=batch: decode_records(batch), loops=5)
        print(
            f"{compression.name.lower():7} build {RECORDS / building / 1e6:6.2f}, decode "
            f"{RECORDS / decoding / 1e6:6.2f} M records/s, {len(batch)} bytes"
        )
    for count in (10, 150, 1000):
        builder = RecordBatchBuilder(max_bytes=1 << 30)
        for _ in range(count):
            builder.append(None, VALUE, None, NOW_MS)
        one = builder.build()
        checking = best_seconds(lambda one=one: check_produced_batch(one), loops=1000)
        stamping = best_seconds(lambda one=one: stamp(one, 0, 12345, 7), loops=1000)
        walking = best_seconds(lambda one=one: list(iter_batches(one)), loops=1000)
        print(
            f"batch of {len(one):6} bytes: check {checking * 1e6:5.2f}, stamp {stamping * 1e6:5.2f}, "
            f"walk {walking * 1e6:5.2f} µs"
        )


if __name__ == "__main__":
    main()
