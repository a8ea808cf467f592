"""Collect metrics from the responses of Spark Connect.

Each response to a request carries the metrics of all meters in that request's plan, for commands too. So a user's `show` is
another request and disturbs nothing, and there is nothing to wait for.
"""

import threading
from collections.abc import Iterable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

from pyspark.sql import DataFrame, SparkSession

from acker_redis.errors import PipelineError
from acker_redis.spark.proof import requests
from acker_redis.spark.proof.executions import Execution, HasMeter
from acker_redis.spark.proof.meters import PREFIX
from acker_redis.spark.proof.plans import METER, analyzed_text
from acker_redis.spark.runtime.sessions import is_connect, set_required, version_of

_PLAN_CACHE = "spark.connect.session.planCache.enabled"

_KEPT = 1000
"""Number of executions kept that no proof has requested, such as a user's `show`. Older ones are dropped."""

_responses: "WeakKeyDictionary[Any, Responses]" = WeakKeyDictionary()
_lock = threading.Lock()


class Responses:
    """Collector of the executions of one client of Spark Connect. Several threads may use the client.

    Attributes:
        started: number of requests that ran jobs, or that may have.
    """

    def __init__(self, client: Any, *, forgets_repeated: bool = False) -> None:
        """Watch the client's requests from now on. PySpark has no public hook for that (4.0 to 4.3).

        Args:
            client: client of a session.
            forgets_repeated: whether the server loses the sums of a meter whose name it has heard before.
        """
        self.started = 0
        self._executions: list[Execution] = []
        self._lock = threading.Lock()
        fetch = client._execute_and_fetch_as_iterator  # noqa: SLF001

        def watched(request: Any, *args: Any, **options: Any) -> Iterator[Any]:
            metrics: dict[str, dict[str, Any]] = {}
            if requests.runs(request.plan):
                self._count()
            if forgets_repeated:
                requests.rename(request.plan)
            for response in fetch(request, *args, **options):
                if _has_run(response):
                    self._count()
                name = getattr(response, "name", None)
                if isinstance(name, str) and name.startswith(PREFIX) and (sums := _sums(response)):
                    metrics[name] = sums
                yield response
            written = frozenset(requests.written(request.plan))  # reached only if no response was an error
            if metrics or written:
                self._keep(Execution(requests.by_meter(metrics), written))

        client._execute_and_fetch_as_iterator = watched  # noqa: SLF001

    def expect(self, meter: str) -> None:
        """Do nothing: the server sends each meter by its name."""

    def find(self, has_meter: HasMeter, session: SparkSession, *, every: bool = False) -> list[Execution]:  # noqa: ARG002
        """Return the executions that `has_meter` selects."""
        with self._lock:
            return [execution for execution in self._executions if has_meter(execution)]

    def forget(self, meters: str) -> None:
        """Drop the executions with meters whose names begin with `meters`."""
        with self._lock:
            self._executions = [
                execution
                for execution in self._executions
                if not any(name.startswith(meters) for name in {*execution.metrics, *execution.written})
            ]

    def _count(self) -> None:
        with self._lock:
            self.started += 1

    def _keep(self, execution: Execution) -> None:
        with self._lock:
            self._executions = [*self._executions[-_KEPT:], execution]


def responses_of(session: Any) -> Responses:
    """Return the collector of a session's client, which is created on first use."""
    with _lock:
        client = session.client
        if client not in _responses:
            is_oldest = _is_oldest(session)
            if is_oldest:  # it executes a plan that it has cached without its meters
                set_required(session, _PLAN_CACHE, "false")
            _responses[client] = Responses(client, forgets_repeated=is_oldest)
        return _responses[client]


def check_reported(frame: DataFrame, meters: Iterable[str], operator: str) -> None:
    """Check that the server reports the meters below a frame. Spark 4.0 reports none of a view when its rows are written.

    Raises:
        PipelineError: it doesn't report one of them.
    """
    session: Any = frame.sparkSession
    if not is_connect(session) or not _is_oldest(session):
        return
    plan = frame._plan.to_proto(session.client).root  # type: ignore[operator]  # noqa: SLF001
    if not requests.has_hidden_plans(plan):
        return
    hidden = set(meters).difference(requests.meters_in(plan))
    text = analyzed_text(frame) if hidden else ""
    if any(f"{METER} {meter}" in text for meter in hidden):  # else a table has the rows
        raise PipelineError(
            f"{operator!r}: the rows come through a temporary view. Over Spark Connect, Spark {version_of(session)} doesn't "
            "report which of them were dropped before, so nothing could be proven. Pass the DataFrame to SQL, as in "
            "session.sql(query, rows=rows) with {rows} in the query."
        )


def _is_oldest(session: SparkSession) -> bool:
    return version_of(session).startswith("4.0.")


def _sums(observed: Any) -> dict[str, Any]:
    """Return the sums of a meter by name; nothing if Spark knows none, as of a stage that it removed."""
    from pyspark.sql.connect.expressions import LiteralExpression

    return {
        key: LiteralExpression._to_value(value)  # noqa: SLF001
        for key, value in zip(observed.keys, observed.metrics, strict=True)
    }


def _has_run(response: Any) -> bool:
    """Return True if this is the response to a command in SQL. Of a query it is the query, which runs later."""
    relation = response.get("sql_command_result") if isinstance(response, dict) else None
    return relation is not None and bool(relation.WhichOneof("rel_type") == "local_relation")
