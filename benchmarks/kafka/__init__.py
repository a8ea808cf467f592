"""Kafka as source and sink: `run_kafka` against Spark's own source and sink, restarts, a killed driver, commits.

A real node of Kafka runs beside Spark on the same cores. Spark's source and sink need their connector, which Spark downloads
unless ACKER_JARS names a folder that has it.
"""

from collections.abc import Iterator

from benchmarks import harness
from benchmarks.harness import Bench, Row
from benchmarks.kafka import commits, kills, restarts, streams
from spark.support import kafka


@harness.benchmark("kafka")
def run(bench: Bench) -> Iterator[Row]:
    """Measure all with one node of Kafka."""
    with kafka.running({"log.cleaner.backoff.ms": 200}) as node:
        yield from streams.rows(bench, node)
        yield from restarts.rows(bench, node)
        yield from commits.rows(bench, node)
        yield from kills.rows(bench, node)
