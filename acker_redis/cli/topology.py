"""The commands below `topology`: run a topology on Spark, draw it, show its counts, and move or empty its state."""

import importlib
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any

import typer

from acker_redis.acker import Acker, app_of
from acker_redis.cli import help_pages, output
from acker_redis.cli.exit_status import UNHEALTHY, exit_on_error
from acker_redis.cli.options import DEFAULT_URL, AsJson, OneApp, Url, UrlFile, confirmed, connected, server_url
from acker_redis.client.client import Client
from acker_redis.errors import AckerError, AppNotFoundError, BadConfigError
from acker_redis.extras import install_hint
from acker_redis.store import topology_counts, topology_sizes
from acker_redis.store.apps import stored_config
from acker_redis.store.topology_counts import COUNTED, DIED, FAILED, Counts
from acker_redis.store.topology_sizes import TaskSize
from acker_redis.storm.definition.graph import Graph
from acker_redis.storm.definition.mermaid import draw
from acker_redis.storm.local.interrupts import noted
from acker_redis.storm.state import stopped
from acker_redis.storm.state.rescale import rescale as rescale_state
from acker_redis.storm.topology import Topology

app = typer.Typer(
    cls=help_pages.Group,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Run topologies on Spark, draw them, show their counts, and move or empty their state.",
)

Which = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:TOPOLOGY", help="Module and name of a Topology, such as words:Words.", show_default=False
    ),
]


@dataclass
class _Drawn:
    """Counts of a component, as the drawing needs them."""

    emitted: Counter[str] = field(default_factory=Counter)
    acked: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    timed_out: Counter[str] = field(default_factory=Counter)


@app.command()
def run(
    context: typer.Context,
    which: Which,
    app_name: OneApp,
    redis: Url = DEFAULT_URL,
    redis_file: UrlFile = None,
    master: Annotated[
        str | None,
        typer.Option("--master", help="Master of Spark, such as local[4]. Without it: that of spark-submit."),
    ] = None,
    remote: Annotated[
        str | None, typer.Option("--remote", help="Server of Spark Connect, such as sc://spark:15002.")
    ] = None,
    go_on: Annotated[
        bool, typer.Option("--go-on", help="Go on while the spouts emit nothing, until Ctrl-C or SIGTERM.")
    ] = False,
) -> None:
    """Run a topology on Spark until its spouts are done, or until Ctrl-C or SIGTERM, which drain it."""
    if master is not None and remote is not None:
        raise typer.BadParameter("--master and --remote exclude each other. Pass one of them.")
    with exit_on_error():
        topology = _topology(which)
        url = server_url(context, redis, redis_file)
        with _opened(url, app_name) as acker, _sigterm_as_interrupt():
            with noted() as interrupted:
                spark = _apart(lambda: _session(master, remote))
            try:
                if interrupted.is_set():
                    output.line("stopped before the topology began, nothing was emitted", err=True)
                    raise typer.Exit(UNHEALTHY)
                _activate(spark)
                result = topology.run(spark, acker=acker, stop=threading.Event() if go_on else None)
            finally:
                spark.stop()
        output.line(
            f"run {result.run_id}: {result.acked:,} acked, {result.failed:,} failed, {result.timed_out:,} timed out, "
            f"{result.dead_letters:,} dead letters, {result.unfinished:,} unfinished"
        )
        if result.unfinished:
            raise typer.Exit(UNHEALTHY)


@app.command()
def describe(
    context: typer.Context,
    which: Which,
    app_name: Annotated[
        str | None, typer.Option("--app", envvar="ACKER_APP", help="App whose counts are drawn. Without it: no counts.")
    ] = None,
    redis: Url = DEFAULT_URL,
    redis_file: UrlFile = None,
) -> None:
    """Draw a topology as Mermaid, with the counts of its last run and the sizes of its state if --app is given."""
    with exit_on_error():
        graph = _graph(_topology(which))
        if app_name is None:
            output.line(*draw(graph).rstrip("\n").split("\n"))
            return
        with connected(context, redis, redis_file) as client:
            sizes = topology_sizes.read(client, app_name, graph.name)
            found = _counts(client, app_name, graph.name, has_state=bool(sizes))
        drawn = {name: _drawn(counts, name) for counts in found for name in graph.components} or None
        output.line(*draw(graph, drawn, _notes(sizes)).rstrip("\n").split("\n"))


@app.command()
def metrics(
    context: typer.Context,
    app_name: OneApp,
    which: Annotated[
        str | None,
        typer.Argument(
            metavar="[TOPOLOGY]", help="Name of a topology, such as Words, or words:Words. Without it: all of the app."
        ),
    ] = None,
    redis: Url = DEFAULT_URL,
    redis_file: UrlFile = None,
    as_json: AsJson = False,
) -> None:
    """Print the counts of the last run of an app's topologies, and the size of their state by task.

    Runs write counts each second at most, and they are kept for a week. State has its size as of the last committed turn, and
    is kept until it is emptied. It exits with 1 if a run failed, or died without a word.
    """
    with exit_on_error():
        with connected(context, redis, redis_file) as client:
            name = None if which is None else _name(which)
            sizes: dict[str, list[TaskSize]] = {}
            for size in topology_sizes.read(client, app_name, name):
                sizes.setdefault(size.topology, []).append(size)
            shown = _counts(client, app_name, name, has_state=bool(sizes))
        for counts in shown:
            own = sizes.pop(counts.topology, [])
            if as_json:
                output.json_line({**asdict(counts), "state_sizes": list(map(asdict, own))})
            else:
                rows = (_row(component, of) for component, of in counts.components.items())
                output.line(_head(counts), *rows, *map(_size, own))
        for topology, own in sizes.items():
            if as_json:
                without = dict.fromkeys((of.name for of in fields(Counts)), None)
                output.json_line({**without, "topology": topology, "state_sizes": list(map(asdict, own))})
            else:
                output.line(f"{topology} has not run within the last week", *map(_size, own))
        if any(counts.state in (FAILED, DIED) for counts in shown):
            raise typer.Exit(UNHEALTHY)


@app.command()
def rescale(
    context: typer.Context,
    which: Which,
    app_name: OneApp,
    redis: Url = DEFAULT_URL,
    redis_file: UrlFile = None,
) -> None:
    """Move the state of a stopped topology to the tasks that it has now.

    Without it, a bolt with another number of tasks is refused. An interrupted move is completed if you repeat the command.
    """
    with exit_on_error():
        graph = _graph(_topology(which))
        with Acker.open_existing(server_url(context, redis, redis_file), app_name) as acker:
            moved = rescale_state(graph, acker)
        for of in moved:
            output.line(f"{of.component}: {of.tasks} tasks, {of.moved:,} of {of.keys:,} keys moved")
        if not moved:
            output.line("nothing to move")


@app.command(name="empty-state")
def empty_state(
    context: typer.Context,
    which: Annotated[
        str,
        typer.Argument(
            metavar="TOPOLOGY", help="Name of a topology, such as Words, or words:Words.", show_default=False
        ),
    ],
    app_name: OneApp,
    bolt: Annotated[
        str | None, typer.Option("--bolt", help="Name of a bolt. Without it: all state of the topology.")
    ] = None,
    redis: Url = DEFAULT_URL,
    redis_file: UrlFile = None,
    yes: Annotated[bool, typer.Option("--yes", help="Skip the confirmation.")] = False,
) -> None:
    """Delete the state of a stopped topology, in one step, or that of one bolt. Its next run begins without it."""
    with exit_on_error():
        name = _name(which)
        with Acker.open_existing(server_url(context, redis, redis_file), app_name) as acker:
            sizes = topology_sizes.read(app_of(acker).client, app_name, name)
            sizes = [size for size in sizes if bolt in (None, size.component)]
            shapes = app_of(acker).topology_state(name).shapes()  # a run that committed nothing leaves these alone
            if not sizes and not (shapes if bolt is None else bolt in shapes):
                of = "" if bolt is None else f" of the bolt {bolt!r}"
                output.line(f"Topology {name!r} has no state{of} in app {app_name!r}.", err=True)
                raise typer.Exit(UNHEALTHY)
            output.line(*(map(_size, sizes) if sizes else ["  no keys, only their number of tasks and groupings"]))
            if not yes and not confirmed("Delete this state?"):
                output.line("Nothing was deleted.", err=True)
                raise typer.Exit(UNHEALTHY)
            emptied = stopped.empty(name, acker, bolt)
        output.line(f"{name}: {emptied.keys:,} keys and {emptied.bytes:,} bytes deleted")


def _head(counts: Counts) -> str:
    turns = "" if counts.turns is None else f"{counts.turns:,} turns, "
    error = "" if counts.error is None else f" with {counts.error.removesuffix('.')}"
    return f"{counts.topology} {counts.state}{error}: run {counts.run_id}: {turns}{counts.pending:,} pending"


def _row(name: str, of: Any) -> str:
    sums = {count: sum(of.get(count, {}).values()) for count in COUNTED}
    shown = [f"{count.replace('_', ' ')} {number:,}" for count, number in sums.items() if number]
    if of.get("errors"):
        shown.append(f"errors {of['errors']:,}")
    return f"  {name}: {', '.join(shown) or 'nothing yet'}"


def _size(size: TaskSize) -> str:
    return f"  state of {size.component}, task {size.index}: {size.keys:,} keys, {size.bytes:,} bytes"


def _drawn(counts: Counts, name: str) -> _Drawn:
    of = counts.components.get(name, {})
    return _Drawn(*(Counter(of.get(count, {})) for count in ("emitted", "acked", "failed", "timed_out")))


def _notes(sizes: Sequence[TaskSize]) -> dict[str, str]:
    """Describe the state of each component that has any."""
    notes = {}
    for name in {size.component for size in sizes}:
        own = [size for size in sizes if size.component == name]
        most = f", {max(size.bytes for size in own)} in one task" if len(own) > 1 else ""
        keys = sum(size.keys or 0 for size in own)
        notes[name] = f"state {keys} keys, {sum(size.bytes for size in own)} bytes{most}"
    return notes


def _name(which: str) -> str:
    """Return the name of a topology. One that is given with its module is imported, because its settings may name it."""
    return _graph(_topology(which)).name if ":" in which else which


def _counts(client: Client, app_name: str, topology: str | None, *, has_state: bool = False) -> list[Counts]:
    """Read the counts of one topology, or of all. With `has_state`, there need not be any.

    Raises:
        AckerError: the app does not exist.
        Exit: there are none.
    """
    stored_config(client, app_name)
    known = topology_counts.read_all(client, app_name)
    found = [counts for counts in known if topology in (None, counts.topology)]
    if found or has_state:
        return found
    if topology is None or not known:
        text = f"No topology has run in app {app_name!r} within the last week. List the apps with `acker-redis apps`."
    else:
        names = ", ".join(repr(counts.topology) for counts in known)
        text = f"Topology {topology!r} has not run in app {app_name!r} within the last week. The app has counts of {names}."
    output.line(text, err=True)
    raise typer.Exit(UNHEALTHY)


def _opened(url: str, app_name: str) -> Acker:
    try:
        return Acker.open_existing(url, app_name)
    except AppNotFoundError:
        return Acker.connect(url, app=app_name)


def _topology(which: str) -> Any:
    """Import a topology.

    Raises:
        BadConfigError: there is none by this name.
    """
    module_name, colon, name = which.partition(":")
    if not (module_name and colon and name):
        raise BadConfigError(f"{which!r} names no topology. Pass the module and the name, such as words:Words.")
    if module_name.endswith(".py") or "/" in module_name:
        raise BadConfigError(
            f"{module_name!r} is a file. Pass the name of the module, such as words:Words, and run the command in its folder."
        )
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` does
    try:
        module = importlib.import_module(module_name)
    except AckerError:
        raise
    except ImportError as exc:
        raise BadConfigError(
            f"The topology {which!r} can't be imported ({exc}). Run the command in its folder, or set PYTHONPATH."
        ) from exc
    except Exception as exc:  # of the user's module
        raise BadConfigError(
            f"The module {module_name!r} raised {type(exc).__name__} when it was imported ({exc}). Correct it, or check that "
            "it is the right one."
        ) from exc
    found = getattr(module, name, None)
    if found is None:
        names = sorted(one for one, value in vars(module).items() if _is_topology(value) and value is not Topology)
        known = f"Its topologies are {', '.join(names)}" if names else "It has no topology"
        raise BadConfigError(f"The module {module_name!r} has no {name!r}. {known}. Name one after the colon.")
    if _is_topology(found):
        return found
    raise BadConfigError(f"{which!r} is not a topology, but {found!r:.100}. Name a class derived from Topology.")


def _is_topology(value: object) -> bool:
    return isinstance(value, Topology) or (isinstance(value, type) and issubclass(value, Topology))


def _graph(topology: Any) -> Graph:
    graph: Graph = topology._checked_graph()  # noqa: SLF001
    return graph


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _apart(start: Callable[[], Any]) -> Any:
    """Call a function in another thread, where PySpark has no handler of its own for Ctrl-C."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(start())
        except BaseException as exc:
            results.append(exc)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join()
    if isinstance(results[0], BaseException):
        raise results[0]
    return results[0]


def _activate(spark: Any) -> None:
    """Let the code of spouts find the session, which another thread has made."""
    from acker_redis.spark.runtime.sessions import activate  # PySpark may be missing

    activate(spark)


def _session(master: str | None, remote: str | None) -> Any:
    try:
        from pyspark.sql import SparkSession

        from acker_redis.spark.runtime.environment import prepare_environment
    except ImportError as exc:
        raise BadConfigError(f"topology run needs PySpark, which is not installed. {install_hint('spark')}") from exc
    if remote is None:
        prepare_environment()
    builder = SparkSession.builder
    try:
        builder = builder if master is None else builder.master(master)
        return (builder if remote is None else builder.remote(remote)).getOrCreate()
    except Exception as exc:  # PySpark's own, or that of its JVM
        raise BadConfigError(
            f"No Spark session could be started ({str(exc).partition(chr(10))[0]:.300}). Nothing was run. Check --master or "
            "--remote, and Spark's output above."
        ) from exc
