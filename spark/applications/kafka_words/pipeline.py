"""The pipeline: lines as JSON in, one record per word out."""

from pyspark.sql import DataFrame

from acker_redis.spark import Tracker

_WORD = "(word, position) -> struct(line.line AS line, position, word)"


def pipeline(servers: str, topic: str, tracker: Tracker, records: DataFrame) -> None:
    """Split lines into words, and write them to a topic. A line that is no valid JSON fails alone."""
    lines = records.selectExpr("from_json(string(value), 'line long, text string') AS line", "_share", "_roots")
    lines = tracker.fail_where(lines, "line.line IS NULL OR line.text IS NULL", "no valid JSON")
    words = tracker.explode(lines, f"transform(split(line.text, ' '), {_WORD})")
    written = words.selectExpr(
        "concat(line, '-', position) AS key", "to_json(struct(line, position, word)) AS value", "_share", "_roots"
    )  # a reader can drop repeats by the key
    tracker.write_kafka(written, topic=topic, kafka={"bootstrap.servers": servers, "log_level": 0})
