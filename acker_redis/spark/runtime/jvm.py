"""Access to JVM classes by their full names."""

from typing import Any

from pyspark import SparkContext


def java_class(context: SparkContext, name: str) -> Any:
    """Return a class in one call of Java.

    The chain `jvm.org.apache...` would call Java once per part of the name.
    """
    return getattr(context._jvm, name)  # noqa: SLF001
