"""Classes of the JVM by their full names."""

from typing import Any

from pyspark import SparkContext


def java_class(context: SparkContext, name: str) -> Any:
    """Get a class in one call; `jvm.org.apache...` asks Java for each part of the name, a millisecond each."""
    return getattr(context._jvm, name)  # noqa: SLF001
