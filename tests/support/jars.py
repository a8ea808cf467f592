"""Jars of tables and databases that Spark doesn't bring: from `spark.jars.packages`, or from a folder.

ACKER_JARS names the folder. It has a folder per set of jars, such as `delta-4.1`, as a machine without a registry needs them.
"""

import os
from pathlib import Path

import pyspark

SPARK = ".".join(pyspark.__version__.split(".")[:2])

PACKAGES = {
    "delta-4.0": "io.delta:delta-spark_2.13:4.0.0",
    "delta-4.1": "io.delta:delta-spark_4.1_2.13:4.3.1",
    "iceberg-4.0": "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.10.1",
    "iceberg-4.1": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0",
    "kafka-4.0": "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0,org.apache.spark:spark-avro_2.13:4.0.0",
    "kafka-4.1": "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.1,org.apache.spark:spark-avro_2.13:4.1.1",
    "kafka-4.2": "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0,org.apache.spark:spark-avro_2.13:4.2.0",
    "kafka-4.3": "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0,org.apache.spark:spark-avro_2.13:4.2.0",
    "postgresql": "org.postgresql:postgresql:42.7.14",
}
"""Set of jars, for one version of Spark or for all -> packages. Kafka's has Avro's, which `kafka.md` decodes values with.

Kafka's for Spark 4.2 work on 4.3. No others were published for Spark 4.0 to 4.3.
"""


def jars_of(name: str) -> str | None:
    """The set of jars for this version of Spark, or None if there is none."""
    return next((jars for jars in (f"{name}-{SPARK}", name) if jars in PACKAGES), None)


def settings(jars: str) -> dict[str, str]:
    """Spark's setting that loads a set of jars."""
    folder = os.environ.get("ACKER_JARS")
    if folder is None:
        return {"spark.jars.packages": PACKAGES[jars]}
    return {"spark.jars": ",".join(sorted(map(str, (Path(folder) / jars).glob("*.jar"))))}
