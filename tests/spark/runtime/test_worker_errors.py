"""The library's errors in the errors that Spark makes of them, as text of PySpark 4.3."""

import pytest
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.errors.exceptions import connect

from acker_redis import (
    AckerError,
    BadBatchError,
    BadConfigError,
    ConnectionLostError,
    InexactPipelineError,
    PipelineError,
    RowFailedError,
    ServerOutOfMemoryError,
)
from acker_redis.spark.proof.blame import cause_of
from acker_redis.spark.runtime.worker_errors import acker_error_in, broke_in_a_job, is_of_java, own_errors

WORKER = (
    "[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):\n"
    '  File "/app/job.py", line 14, in f\n    raise E(...)\n{}\n SQLSTATE: 38000'
)
COMMIT = (
    "[PYTHON_DATA_SOURCE_ERROR] Failed to commit or abort Python data source write: Traceback (most recent call last):\n"
    '  File "/app/job.py", line 36, in commit\n    raise E("gone")\n          ^^^^^^^^^\n{}\n SQLSTATE: 38000'
)
JOB = (
    "An error occurred while calling o1.collect.\n: org.apache.spark.SparkException: Job aborted due to stage failure: "
    "Lost task 0.0 in stage 0.0: org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
    '  File "/app/job.py", line 3, in f\n{}\n\n\tat org.apache.spark.api.python.BasePythonRunner.x(PythonRunner.scala:1)\n'
    "Caused by: java.io.EOFException\n\t... 16 more\n"
)
JVM = (
    WORKER
    + "\n\nJVM stacktrace:\norg.apache.spark.api.python.PythonException: "
    + WORKER
    + "\n\tat java.base/x(X.java)"
)

QUERY = (
    "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Traceback (most recent call last):\n"
    '  File "/app/job.py", line 3, in handle\n{}\n\n=== Streaming Query ===\nIdentifier: [id = 1]\nLogical Plan:\nProject'
)


@pytest.mark.parametrize("text", [WORKER, COMMIT, JOB, JVM, QUERY])
@pytest.mark.parametrize("told", ["h:1 is above maxmemory", "two\nlines: of text", ""])
@pytest.mark.parametrize("kind", [ServerOutOfMemoryError, InexactPipelineError, AckerError])
def test_worker_error_is_raised_with_its_type_and_text(text: str, told: str, kind: type[AckerError]) -> None:
    last_line = f"acker_redis.errors.{kind.__name__}" + (f": {told}" if told else "")
    error = PySparkException(text.replace("{}", last_line))
    with pytest.raises(AckerError) as caught, own_errors():
        raise error
    assert (type(caught.value), str(caught.value), caught.value.__cause__) == (kind, told, error)


def test_worker_error_in_an_answer_of_a_connect_server_is_raised() -> None:
    error = connect.PythonException(message=WORKER.format("acker_redis.errors.InexactPipelineError: one row too many"))
    assert is_of_java(error)
    assert broke_in_a_job(error)
    with pytest.raises(InexactPipelineError, match=r"^one row too many$"), own_errors():
        raise error


IN_A_TASK = "java.lang.ArithmeticException\n\tat org.apache.spark.executor.Executor$TaskRunner.run(Executor.scala:906)"
IN_THE_SERVER = (
    "java.lang.ClassNotFoundException\n\tat org.apache.spark.sql.execution.jdbc.DriverRegistry$.register(x:1)"
)


@pytest.mark.parametrize(
    ("error", "in_a_job"),
    [
        (connect.ArithmeticException(message="overflow", server_stacktrace=IN_A_TASK), True),
        (connect.SparkException(message="Job aborted due to stage failure: Task 0 in stage 6.0 failed 4 times"), True),
        (connect.UnknownException(message="no.such.Driver", server_stacktrace=IN_THE_SERVER), False),
        (connect.AnalysisException(message="no such column", server_stacktrace=IN_THE_SERVER), False),
        (connect.SparkConnectGrpcException(message="no answer"), False),
    ],
)
def test_error_of_a_connect_server_tells_whether_a_job_failed(
    error: connect.SparkConnectGrpcException, in_a_job: bool
) -> None:
    assert is_of_java(error)
    assert broke_in_a_job(error) is in_a_job


def test_last_library_error_in_traceback_is_used() -> None:
    chained = (
        "acker_redis.errors.ConnectionLostError: gone\n\nDuring handling of the above exception, another exception "
        'occurred:\n\nTraceback (most recent call last):\n  File "x", line 1, in f\nacker_redis.errors.BadBatchError: wrong'
    )
    found = acker_error_in(PySparkException(WORKER.format(chained)))
    assert (type(found), str(found)) == (BadBatchError, "wrong")


class OfTheUsers(ConnectionLostError):
    def __init__(self, host: str, port: int) -> None:
        super().__init__(f"{host}:{port} is gone")


def test_library_error_behind_wrapper_is_raised() -> None:
    wrapper = RuntimeError("the program's own")
    wrapper.__cause__ = OfTheUsers("h", 1)
    with pytest.raises(ConnectionLostError, match="h:1 is gone") as caught, own_errors():
        raise wrapper
    assert caught.value.__cause__ is wrapper


def test_library_error_is_raised_unchanged() -> None:
    ours = OfTheUsers("h", 1)
    with pytest.raises(OfTheUsers) as caught, own_errors():
        raise ours
    assert caught.value is ours
    assert ours.__cause__ is None


class JavaIsGone(Py4JError):  # type: ignore[misc]
    def __str__(self) -> str:
        raise Py4JNetworkError("no answer")


@pytest.mark.parametrize(
    "error",
    [
        PySparkException(WORKER.format("OSError: disk full")),
        PySparkException(WORKER.format("ValueError: said acker_redis.errors.BadBatchError: no")),
        PySparkException(WORKER.format("acker_redis.errors.EvictionPolicyWarning: no error of ours")),
        PySparkException(WORKER.format("acker_redis.errors.Unknown: x")),
        ValueError("acker_redis.errors.BadBatchError: a text that looks alike"),
        JavaIsGone(),
    ],
)
def test_foreign_errors_are_raised_unchanged(error: Exception) -> None:
    assert acker_error_in(error) is None
    with pytest.raises(type(error)) as caught, own_errors():
        raise error
    assert caught.value is error


class Counting(Py4JJavaError):  # type: ignore[misc]
    asked = 0

    def __init__(self) -> None:
        pass

    def __str__(self) -> str:
        self.asked += 1
        return WORKER.format("OSError: disk full")


def test_text_of_java_error_is_requested_once() -> None:
    error = Counting()
    assert acker_error_in(error) is None
    assert cause_of(error).text == cause_of(error).text == "OSError: disk full"
    assert error.asked == 1


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (PySparkException(WORKER.format("OSError: disk full")), "OSError: disk full"),
        (OSError("disk full"), "OSError: disk full"),
        (RowFailedError("no such customer"), "no such customer"),
        (JavaIsGone(), "JavaIsGone"),
    ],
)
def test_cause_of_error_has_its_text_without_traceback(error: Exception, told: str) -> None:
    assert cause_of(error).text == told


@pytest.mark.parametrize("text", [WORKER, JOB])
def test_session_made_in_a_worker_is_a_mistake_that_no_row_is_blamed_for(text: str) -> None:
    session = (
        "pyspark.errors.exceptions.base.PySparkRuntimeError: [CONTEXT_ONLY_VALID_ON_DRIVER] It appears that you are "
        "attempting to reference SparkContext from a broadcast variable, action, or transformation."
    )
    with pytest.raises(PipelineError, match="Make the session in a function") as caught, own_errors():
        raise PySparkException(text.format(session))
    assert not broke_in_a_job(caught.value)


CALLED = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/app/job.py", line 3, in parse
    import lxml
  File "/app/lxml/__init__.py", line 1, in <module>
    import _lxml
ModuleNotFoundError: No module named '_lxml'
"""
LOADED = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/spark/pyspark.zip/pyspark/worker.py", line 4207, in invoke_udf
    func, profiler, deserializer, serializer = read_udfs(
                                               ^^^^^^^^^^
  File "/spark/pyspark.zip/pyspark/worker.py", line 1883, in read_udfs
    udfs = [
  File "/spark/pyspark.zip/pyspark/cloudpickle/cloudpickle.py", line 469, in subimport
    __import__(name)
ModuleNotFoundError: No module named 'prices'
 SQLSTATE: 38000

JVM stacktrace:
org.apache.spark.api.python.PythonException: none
"""
SHORT = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/app/acker_redis/__init__.py", line 51, in <module>
    from acker_redis.ledger.outcomes.outcome import Outcome, OutcomeBatch
  File "/app/acker_redis/ledger/outcomes/outcome.py", line 13, in <module>
    import numpy as np
ModuleNotFoundError: No module named 'numpy'
"""


@pytest.mark.parametrize(("text", "module"), [(LOADED, "prices"), (SHORT, "numpy")])
def test_workers_that_lack_a_module_fail_no_row(text: str, module: str) -> None:
    """Each message became a dead letter after five attempts, if there were fewer than seven."""
    error = acker_error_in(PySparkException(text))
    assert isinstance(error, BadConfigError)
    assert f"can't import a module: No module named {module!r}. So they" in str(error)


TOOL = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/app/job.py", line 3, in convert
    raise RuntimeError(process.stderr)
RuntimeError: tool failed:
Traceback (most recent call last):
  File "/app/tool.py", line 1, in <module>
    import nosuch
ModuleNotFoundError: No module named 'nosuch'
"""


@pytest.mark.parametrize("text", [CALLED, TOOL])
def test_function_that_imports_a_missing_module_may_be_its_row(text: str) -> None:
    assert acker_error_in(PySparkException(text)) is None
