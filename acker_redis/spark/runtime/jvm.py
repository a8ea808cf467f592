"""Classes of the JVM by their whole names."""

from typing import Any

from pyspark import SparkContext


def of(context: SparkContext, name: str) -> Any:
    """A class: at once, where `jvm.org.apache...` asks Java for each part of the name, a millisecond each."""
    return getattr(context._jvm, name)  # noqa: SLF001
