"""The PySpark data source ``barnabas``: ``spark.read.format("barnabas")``.

A user's schema selects columns of Spark's Kafka source; others are neither decoded nor moved.

A batch read is planned once for each ``load()``: a DataFrame is a snapshot; load again to see newer records.
Filters are not pushed down, because Spark 4.3 shares their state between queries of one DataFrame; choose
partitions and offsets by options instead.

Spark imports this module in every process that looks for sources; so the others are imported when used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from barnabas.spark_connector.sink.sink_options import SinkOptions
    from barnabas.spark_connector.sink.writer import BarnabasStreamWriter, BarnabasWriter
    from barnabas.spark_connector.source.batch_reader import BarnabasReader
    from barnabas.spark_connector.source.stream_reader import BarnabasStreamReader, RefusedStream


class BarnabasSource(DataSource):
    """Register with ``spark.dataSource.register(BarnabasSource)`` if discovery is switched off."""

    @classmethod
    def name(cls) -> str:
        return "barnabas"

    def schema(self) -> StructType:
        from barnabas.spark_connector.options import parse_options
        from barnabas.spark_connector.source.schema import source_schema

        # Spark does not say whether it is for a batch or for a stream.
        return source_schema(include_headers=parse_options(self.options, streaming=None).include_headers)

    def reader(self, schema: StructType) -> BarnabasReader:
        """Raises ImportError if packages are missing here, before a worker needs them."""
        from barnabas.spark_connector.options import parse_options
        from barnabas.spark_connector.packages import check_packages
        from barnabas.spark_connector.source.batch_reader import BarnabasReader

        check_packages()
        return BarnabasReader(parse_options(self.options), schema)

    def streamReader(self, schema: StructType) -> BarnabasStreamReader | RefusedStream:
        """Errors of `reader`, and a limit that this PySpark lacks, are raised when Spark asks for offsets."""
        from barnabas.protocol.errors import BarnabasError
        from barnabas.spark_connector.options import parse_options
        from barnabas.spark_connector.packages import check_packages
        from barnabas.spark_connector.source.stream_reader import (
            BarnabasStreamReader,
            RefusedStream,
            check_limits,
        )

        try:
            check_packages()
            check_limits(self.options)
            return BarnabasStreamReader(parse_options(self.options, streaming=True), schema)
        except (BarnabasError, ImportError) as error:
            return RefusedStream(error)

    def writer(self, schema: StructType, overwrite: bool) -> BarnabasWriter:
        """Raises InvalidConfiguration, UNKNOWN_TOPIC_OR_PARTITION, NoBrokerReachable, and as `reader`."""
        from barnabas.protocol.errors import InvalidConfiguration
        from barnabas.spark_connector.sink.writer import BarnabasWriter

        if overwrite:
            raise InvalidConfiguration(
                'mode "overwrite": expected .mode("append"), because a topic is a log and is never replaced'
            )
        options, columns = self._sink(schema)
        if options.transactional_id is None:
            return BarnabasWriter(options, columns)
        from barnabas.spark_connector.sink.transactional_sink import TransactionalWriter

        return TransactionalWriter(options, columns)

    def streamWriter(self, schema: StructType, overwrite: bool) -> BarnabasStreamWriter:
        """As `writer`. With output mode complete each micro-batch is appended, as in Spark's Kafka sink."""
        from barnabas.spark_connector.sink.writer import BarnabasStreamWriter

        options, columns = self._sink(schema)
        if options.transactional_id is None:
            return BarnabasStreamWriter(options, schema, columns)
        from barnabas.spark_connector.sink.transactional_sink import TransactionalStreamWriter

        return TransactionalStreamWriter(options, schema, columns)

    def _sink(self, schema: StructType) -> tuple[SinkOptions, tuple[str, ...]]:
        from barnabas.spark_connector.packages import check_packages
        from barnabas.spark_connector.sink.sink_options import parse_sink_options, sink_columns

        check_packages()
        options = parse_sink_options(self.options)
        columns = sink_columns(schema, options)
        # After the checks that need no connection.
        from barnabas.spark_connector.sink.delivery import check_topic

        check_topic(options)
        return options, columns
