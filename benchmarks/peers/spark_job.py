"""A Spark session that runs what it is told: ``python -m benchmarks.peers.spark_job [JARS]``, on local[2].

A process of its own, so that sessions of two releases of PySpark take turns in one run. A command is a line
of JSON on stdin, the answer another on stdout, as `tests.compat.clients.Driver` has them; what Spark prints
goes to stderr. Every job counts its records. One thread.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psutil
from pyspark.sql import DataFrame, SparkSession

from barnabas.spark_connector import worker_python
from benchmarks.peers.processes import MB, memory_of

_TASKS: Final = 4
"""The tasks of a write."""
_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
}
_PAUSE_S: Final = 0.02


def _value(number: str, value_bytes: int) -> str:
    return f"cast(rpad(cast({number} as string), {value_bytes}, 'x') as binary) as value"


class Job:
    """The session; each public function is a command, its arguments those of the command."""

    def __init__(self, jars: str, folder: Path) -> None:
        # The workers have to be this very Python.
        os.environ["PYSPARK_PYTHON"] = worker_python()
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        builder = SparkSession.builder.master("local[2]").appName("barnabas benchmark")
        for name, value in _SETTINGS.items():
            builder = builder.config(name, value)
        if jars:
            builder = builder.config("spark.jars", jars)
        self._session = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse")).getOrCreate()
        self._session.sparkContext.setLogLevel("ERROR")
        self._folder = folder
        self._query: Any = None
        self._checkpoints = 0

    def read(self, source: str, options: dict[str, str]) -> dict[str, float]:
        """Batch read of the values: seconds, rows and the bytes of all values."""
        started = time.perf_counter()
        frame = self._session.read.format(source).options(**options).load()
        [[rows, size]] = frame.selectExpr("count(*)", "sum(length(value))").collect()
        return {"seconds": time.perf_counter() - started, "rows": rows, "bytes": size or 0}

    def stream(self, source: str, options: dict[str, str]) -> dict[str, float]:
        """Streaming read of all columns, AvailableNow, to noop: seconds and rows."""
        return self._run(self._stream(source, options), "noop", {})

    def write(self, sink: str, options: dict[str, str], rows: int, value_bytes: int) -> dict[str, float]:
        """Batch write of values: seconds."""
        frame = self._session.range(0, rows, 1, _TASKS).selectExpr(_value("id", value_bytes))
        started = time.perf_counter()
        frame.write.format(sink).options(**options).mode("append").save()
        return {"seconds": time.perf_counter() - started, "rows": rows}

    def stream_write(
        self, sink: str, options: dict[str, str], rows: int, value_bytes: int
    ) -> dict[str, float]:
        """Streaming write of values in one micro-batch, AvailableNow: seconds and rows."""
        rate = {"rowsPerBatch": str(rows), "numPartitions": str(_TASKS)}
        frame = self._stream("rate-micro-batch", rate).selectExpr(_value("value", value_bytes))
        return self._run(frame, sink, options)

    def start(self, source: str, options: dict[str, str]) -> dict[str, float]:
        """Start a stream of micro-batches to noop, one after another; seconds until the first is finished."""
        started = time.perf_counter()
        writer = self._stream(source, options).writeStream.format("noop")
        self._query = writer.option("checkpointLocation", self._checkpoint()).start()
        self._wait_for_batch(1)
        return {"seconds": time.perf_counter() - started}

    def more(self, batches: int) -> dict[str, float]:
        """Wait for so many more micro-batches of the started stream: seconds a batch."""
        first = self._wait_for_batch(self._finished() + 1)
        started = time.perf_counter()
        last = self._wait_for_batch(first + batches)
        return {"seconds": (time.perf_counter() - started) / (last - first), "batches": last}

    def memory(self) -> dict[str, Any]:
        """MB: the driver's heap after a collection, and by pid what no file backs of its Python processes."""
        jvm: Any = self._session.sparkContext._jvm
        jvm.System.gc()
        runtime = jvm.java.lang.Runtime.getRuntime()
        python = {}
        for process in psutil.Process().children(recursive=True):
            # A worker may end meanwhile.
            with suppress(psutil.NoSuchProcess, OSError, LookupError):
                if "python" in process.name():
                    memory = memory_of(Path(f"/proc/{process.pid}/status").read_text())
                    python[str(process.pid)] = memory.anonymous_mb
        return {"heap_mb": (runtime.totalMemory() - runtime.freeMemory()) / MB, "python_mb": python}

    def stop(self) -> None:
        """End the started stream."""
        query, self._query = self._query, None
        query.stop()
        query.awaitTermination(60)

    def end(self) -> None:
        """End the session; there is no command after this one."""
        self._session.stop()

    def _stream(self, source: str, options: dict[str, str]) -> DataFrame:
        return self._session.readStream.format(source).options(**options).load()

    def _run(self, frame: DataFrame, sink: str, options: dict[str, str]) -> dict[str, float]:
        checkpoint = self._checkpoint()
        started = time.perf_counter()
        writer = frame.writeStream.format(sink).options(**options).option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        seconds = time.perf_counter() - started
        shutil.rmtree(checkpoint)
        return {"seconds": seconds, "rows": sum(each["numInputRows"] for each in query.recentProgress)}

    def _checkpoint(self) -> str:
        self._checkpoints += 1
        return str(self._folder / f"checkpoint-{self._checkpoints}")

    def _finished(self) -> int:
        """How many micro-batches are finished."""
        if not self._query.isActive:
            raise RuntimeError(f"the stream ended: {self._query.exception()}")
        # A trigger without a batch makes progress too.
        executed = [
            each["batchId"] for each in self._query.recentProgress if "addBatch" in each["durationMs"]
        ]
        return max(executed, default=-1) + 1

    def _wait_for_batch(self, number: int) -> int:
        """Wait until so many are finished; the answer's deadline is the asker's."""
        while (finished := self._finished()) < number:
            time.sleep(_PAUSE_S)
        return finished


def main() -> None:
    # Stdout belongs to the answers: the JVM and its workers inherit stderr for it.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory(prefix="spark-job-") as folder:
        job = Job(sys.argv[1] if len(sys.argv) > 1 else "", Path(folder))
        for line in sys.stdin:
            arguments = json.loads(line)
            command = arguments.pop("command")
            try:
                answer = {"answer": getattr(job, command)(**arguments)}
            except Exception as error:  # noqa: BLE001 - answered to the asker
                answer = {"error": {"code": -1, "name": type(error).__name__, "text": str(error)}}
            print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    main()
