"""Access to JVM classes by their full names, and the errors by which that access fails."""

from functools import cache
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from pyspark import SparkContext

_found: "WeakKeyDictionary[Any, dict[tuple[str, str], Any]]" = WeakKeyDictionary()
"""JVM -> class and name -> its static method, or the class."""

_contexts: "WeakKeyDictionary[SparkContext, Any]" = WeakKeyDictionary()
"""Context -> the one that Java has."""


def java_class(context: "SparkContext", name: str) -> Any:
    """Return a class in one call of Java.

    The chain `jvm.org.apache...` would call Java once per part of the name.
    """
    return getattr(context._jvm, name)  # noqa: SLF001


def java_static(context: "SparkContext", name: str, method: str = "") -> Any:
    """Return a static method of a class, or without one the class, looked up once per JVM."""
    jvm = context._jvm  # noqa: SLF001
    found = _found.setdefault(jvm, {})
    if (name, method) not in found:
        of_class = getattr(jvm, name)
        found[name, method] = getattr(of_class, method) if method else of_class
    return found[name, method]


def java_context(context: "SparkContext") -> Any:
    """Return Java's own context, which PySpark asks for anew each time."""
    if context not in _contexts:
        _contexts[context] = context._jsc.sc()  # noqa: SLF001
    return _contexts[context]


@cache
def java_errors() -> tuple[type[Exception], ...]:
    """Return all errors of a call of Java, for `except`.

    Where only the client of Spark Connect is installed, nothing calls Java, and there are none.
    """
    try:
        from py4j.protocol import Py4JError
    except ModuleNotFoundError:
        return ()
    return (Py4JError,)


@cache
def java_exceptions() -> tuple[type[Exception], ...]:
    """Return those errors of a call of Java that Java raised, rather than the connection to it."""
    from pyspark.errors.exceptions.captured import CapturedException

    try:
        from py4j.protocol import Py4JJavaError
    except ModuleNotFoundError:
        return (CapturedException,)
    return (CapturedException, Py4JJavaError)
