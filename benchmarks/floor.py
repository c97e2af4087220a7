"""The floor: a raw loopback socket into a file by `pwrite`, one thread, nothing else.

What no broker can beat: the receiver, a process of its own, takes what comes into one buffer and writes it
where the last write ended. And the price of memory on this machine: a new file of 1 GB written three times,
since a virtual machine pays for each page of page cache that it touches for the first time.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.support import GB, MB, Figure, Options, recycle_memory, run, temporary_folder, write_file

CHUNK_BYTES = 1 << 20


class Moved(NamedTuple):
    """The figures of one round."""

    mb_per_s: float
    cpu_s_per_gb: float


def receive(file: Path, total_bytes: int) -> None:
    """The receiver's process: prints its port, then, when all has come, its CPU seconds."""
    with socket.create_server(("127.0.0.1", 0)) as server, file.open("wb") as out:
        print(server.getsockname()[1], flush=True)
        connection, _ = server.accept()
        used = time.process_time()
        buffer = bytearray(CHUNK_BYTES)
        view = memoryview(buffer)
        position = filled = 0
        with connection:
            while position + filled < total_bytes:
                received = connection.recv_into(view[filled:])
                if not received:
                    raise ConnectionError(
                        f"the sender ended after {position + filled} of {total_bytes} bytes"
                    )
                filled += received
                if filled == CHUNK_BYTES or position + filled == total_bytes:
                    position += os.pwrite(out.fileno(), view[:filled], position)
                    filled = 0
            connection.sendall(b"!")
        print(json.dumps(time.process_time() - used), flush=True)


def move(folder: Path, total_bytes: int) -> Moved:
    """Send a number of bytes to a receiver that writes them to a file, which stays in the folder."""
    file = folder / f"floor-{time.monotonic_ns()}"
    command = [sys.executable, "-m", "benchmarks.floor", "--receive", str(file), "--bytes", str(total_bytes)]
    block = os.urandom(CHUNK_BYTES)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]) as child:
        try:
            if child.stdout is None:
                raise RuntimeError("the receiver has no output")
            port = int(child.stdout.readline())
            with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
                started = time.perf_counter()
                for position in range(0, total_bytes, len(block)):
                    connection.sendall(block[: total_bytes - position])
                if connection.recv(1) != b"!":
                    raise ConnectionError("the receiver did not confirm")
                seconds = time.perf_counter() - started
            cpu = json.loads(child.stdout.readline())
        except BaseException:
            child.kill()
            raise
    return Moved(total_bytes / seconds / MB, cpu / total_bytes * GB)


def memory_figures(options: Options) -> list[Figure]:
    """The machine's price of page cache: the same file written, deleted and written again."""
    size = options.amount(1 << 30, 1 << 28)
    costs, rates = [], []
    with temporary_folder(options) as folder:
        for _ in range(3):
            seconds, cpu = write_file(folder / "fresh", size)
            costs.append(cpu / size * GB)
            rates.append(size / seconds / MB)
    note = "the first may be of fresh memory, the next two are of memory given back just before"
    return [
        Figure(
            name="a file written, deleted and written again: CPU",
            measured=costs[0],
            unit="CPU s/GB",
            rounds=costs,
            note=note,
        ),
        Figure(
            name="a file written, deleted and written again: rate",
            measured=rates[0],
            unit="MB/s",
            rounds=rates,
        ),
    ]


def measure(options: Options) -> list[Figure]:
    memory = memory_figures(options)
    size = options.amount(1 << 30, 1 << 28)
    rounds = []
    with temporary_folder(options) as folder:
        for _ in range(options.rounds):
            if options.recycled:
                recycle_memory(folder, size)
            rounds.append(move(folder, size))
    return [
        *memory,
        Figure.of("floor: socket into file, one thread", [one.mb_per_s for one in rounds], "MB/s"),
        Figure.of("floor: CPU of the receiver", [one.cpu_s_per_gb for one in rounds], "CPU s/GB"),
    ]


if __name__ == "__main__":
    if "--receive" in sys.argv:
        parser = argparse.ArgumentParser()
        parser.add_argument("--receive", type=Path)
        parser.add_argument("--bytes", type=int)
        chosen = parser.parse_args()
        receive(chosen.receive, chosen.bytes)
    else:
        run(__doc__, measure)
