"""The public names with their parameters, read from the source by griffe. `make api` writes them to tests/data/api.txt."""

import difflib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import griffe

import acker_redis
from acker_redis import spark, storm, testing
from acker_redis.ops import tracing
from acker_redis.store.dead_letters import DeadLetters
from acker_redis.testing import server

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "tests" / "data" / "api.txt"

MODULES: tuple[ModuleType, ...] = (acker_redis, spark, storm, testing, tracing, server)
"""Where users import from."""

REACHED = {"acker_redis.Acker.dead_letters": DeadLetters}
"""Classes that users meet as attributes, by that place."""

_CALLED_BY_USERS = ("__init__", "__call__", "__enter__")
_MARKS = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}


def public_names(module: ModuleType) -> list[str]:
    """Those in `__all__`; of a module without it, those that it defines."""
    defined = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    return sorted(name for name in getattr(module, "__all__", defined) if not name.startswith("_"))


def lines() -> list[str]:
    """A line per name, parameter and result; parameters stay in their order, all else is sorted."""
    package = griffe.load(
        acker_redis.__name__,
        search_paths=[ROOT],
        extensions=griffe.load_extensions("unpack_typeddict"),
        resolve_aliases=True,
        allow_inspection=False,
    )
    places = {
        f"{module.__name__}.{name}": f"{module.__name__}.{name}" for module in MODULES for name in public_names(module)
    }
    places |= {place: f"{cls.__module__}.{cls.__qualname__}" for place, cls in REACHED.items()}
    return [
        line
        for place, source in places.items()
        for line in _described(place, package[source.removeprefix(f"{acker_redis.__name__}.")])
    ]


def difference() -> str:
    """How the names differ from those that were written; empty: they do not."""
    written = FILE.read_text(encoding="utf-8").splitlines()
    return "\n".join(difflib.unified_diff(written, lines(), "written", "now", lineterm="", n=0))


def _described(place: str, item: griffe.Object | griffe.Alias) -> Iterator[str]:
    item = item.final_target if isinstance(item, griffe.Alias) else item
    if isinstance(item, griffe.Function):
        yield from _function(place, item)
    elif isinstance(item, griffe.Class):
        yield f"{place}: class({', '.join(map(str, item.bases))})"
        for name, member in sorted(item.all_members.items()):
            if (name in _CALLED_BY_USERS and member.is_function) or not name.startswith("_"):
                yield from _described(f"{place}.{name}", member)
    elif isinstance(item, (griffe.Attribute, griffe.TypeAlias)):
        is_property, is_set_by_init = "property" in item.labels, item.labels == {"instance-attribute"}
        value = f" = {item.value}" if item.value is not None and not (is_property or is_set_by_init) else ""
        annotation = getattr(item, "annotation", None) or "untyped"
        yield f"{place}: {annotation}{value}{' (read only)' if is_property else ''}"


def _function(place: str, function: griffe.Function) -> Iterator[str]:
    yield f"{place}() -> {function.returns}"
    for parameter in function.parameters:
        if parameter.name in ("self", "cls") or parameter.name.startswith("_"):
            continue
        by_name = "*, " if parameter.kind is griffe.ParameterKind.keyword_only else ""
        by_position = ", /" if parameter.kind is griffe.ParameterKind.positional_only else ""
        mark = _MARKS.get(parameter.kind, "")
        annotation = "" if parameter.annotation is None else f": {parameter.annotation}"
        default = "" if parameter.default is None or mark else f" = {parameter.default}"
        yield f"{place}({by_name}{mark}{parameter.name}{annotation}{default}{by_position})"


if __name__ == "__main__":
    FILE.write_text("\n".join([*lines(), ""]), encoding="utf-8")
