"""Lines, split, lower case: a topology without state, and the same stages as an untracked Spark job."""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from acker_redis.storm import Bolt, Grouping, Topology, Tuple
from benchmarks.topologies.word_count import TEXTS, Sentences, Split


class Lower(Bolt):
    outputs = ["word string"]

    def process(self, tup: Tuple) -> None:
        self.emit([tup.values[0].lower()])


def lower_case(sentences: int, *, is_tracked: bool, max_pending: int) -> type[Topology]:
    """Make a topology that writes the words of so many sentences to the sink `lower`."""

    class LowerCase(Topology):
        config = {
            "sentences": sentences,
            "topology.acker.executors": 1 if is_tracked else 0,
            "topology.max.spout.pending": max_pending,
        }
        lines = Sentences.spec()
        split = Split.spec(inputs=[lines], par=2)
        lower = Lower.spec(inputs={split: Grouping.fields("word")}, par=2)

    return LowerCase


_WORD = pa.schema([("word", pa.string())])


def _split(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        words = [word for text in batch.column(0).to_pylist() for word in text.split()]
        yield pa.RecordBatch.from_arrays([pa.array(words, pa.string())], schema=_WORD)


def _lower(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        words = [word.lower() for word in batch.column(0).to_pylist()]
        yield pa.RecordBatch.from_arrays([pa.array(words, pa.string())], schema=_WORD)


def plain_job(spark: SparkSession, sentences: int) -> Callable[[], DataFrame]:
    """Return a function that makes the untracked job: both stages in Python, with the shuffle between them."""

    def job() -> DataFrame:
        texts: Any = pa.table({"sentence": [TEXTS[number % len(TEXTS)] for number in range(sentences)]})
        words = spark.createDataFrame(texts).mapInArrow(_split, "word string")
        return words.repartition(2, "word").mapInArrow(_lower, "word string")

    return job
