"""The sink in Spark's workers: the rows of a task become record batches, which are delivered at least once.

A task that ends well has every record acknowledged; one that fails may have written some of its records, and
Spark's next attempt writes all of them again. The writers are pickled to the workers, so they hold plain
data and no connections. `write_task` is the common path: it opens a delivery with the first rows, and knows
nothing of how the delivery ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from barnabas.spark_connector.packages import check_packages, freeze_imports
from barnabas.spark_connector.sink.sink_options import SinkOptions, encoder_limits

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Row
    from pyspark.sql.types import StructType

    from barnabas.spark_connector.sink.delivery import Delivery

_ROWS: Final = 4096
_ROWS_BYTES: Final = 4 * 1024 * 1024

OpenDelivery = Callable[[SinkOptions], "Delivery"]


def write_task(
    batches: Iterable[pa.RecordBatch],
    options: SinkOptions,
    columns: Sequence[str],
    open_delivery: OpenDelivery,
) -> WriterCommitMessage:
    """Write the rows of a task. Without rows nothing is opened.

    Raises ImportError as `check_packages`, the errors of the delivery, MESSAGE_TOO_LARGE for a record, and
    InvalidConfiguration for a row that cannot be written.
    """
    check_packages()
    freeze_imports()
    from barnabas.spark_connector.columns.encode import BatchEncoder

    delivery: Delivery | None = None
    encoder: BatchEncoder | None = None
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            if delivery is None or encoder is None:
                delivery = open_delivery(options)
                config = delivery.producer.config
                encoder = BatchEncoder(
                    columns, options.topic, delivery.find_topic, encoder_limits(config), config.compression
                )
            for encoded in encoder.encode(batch):
                delivery.send(encoded)
        if delivery is None or encoder is None:
            return WriterCommitMessage()
        for encoded in encoder.finish():
            delivery.send(encoded)
        return delivery.finish()
    except BaseException:
        if delivery is not None:
            delivery.abandon()
        raise


def open_at_least_once(options: SinkOptions) -> Delivery:
    from barnabas.spark_connector.sink.delivery import Delivery

    return Delivery.open(options)


class BarnabasWriter(DataSourceArrowWriter):
    """Writes a DataFrame."""

    def __init__(self, options: SinkOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_task(iterator, self._options, self._columns, open_at_least_once)


_TAKES_ARROW: Final = hasattr(datasource, "DataSourceStreamArrowWriter")
"""PySpark 4.0 hands rows to the writers of streams."""
_StreamWriter: Any = getattr(datasource, "DataSourceStreamArrowWriter", datasource.DataSourceStreamWriter)


# The base depends on PySpark's version.
class BarnabasStreamWriter(_StreamWriter):  # type: ignore[misc]
    """Writes the micro-batches of a query."""

    def __init__(self, options: SinkOptions, schema: StructType, columns: Sequence[str]) -> None:
        self._options = options
        self._schema = schema
        self._columns = columns

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return write_task(self._batches(iterator), self._options, self._columns, open_at_least_once)

    def _batches(self, iterator: Iterator[Any]) -> Iterator[pa.RecordBatch]:
        return iterator if _TAKES_ARROW else arrow_batches(iterator, self._schema, self._columns)


def arrow_batches(
    rows: Iterable[Row], schema: StructType, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """These columns of rows, a few thousand rows or some MiB at a time."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_type

    names = [field.name for field in schema.fields]
    places = [names.index(name) for name in columns]
    arrow_schema = pa.schema(
        [
            pa.field(name, to_arrow_type(schema.fields[place].dataType))
            for name, place in zip(columns, places, strict=True)
        ]
    )
    value = names.index("value")
    held: list[Row] = []
    size = 0

    def to_batch() -> pa.RecordBatch:
        arrays = [
            pa.array([row[place] for row in held], field.type)
            for place, field in zip(places, arrow_schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema)

    for row in rows:
        held.append(row)
        size += len(row[value] or b"")
        if len(held) >= _ROWS or size >= _ROWS_BYTES:
            yield to_batch()
            held, size = [], 0
    if held:
        yield to_batch()
