"""Drawing of a topology in Mermaid, with counts if there are any."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from acker_redis.storm.definition.graph import Graph


class Counts(Protocol):
    """Counters of one component."""

    @property
    def emitted(self) -> Mapping[str, int]:
        """Tuples emitted, by stream."""

    @property
    def acked(self) -> Mapping[str, int]:
        """Tuples acked, by stream."""

    @property
    def failed(self) -> Mapping[str, int]:
        """Tuples failed, by stream, without timeouts."""

    @property
    def timed_out(self) -> Mapping[str, int]:
        """Messages that timed out, by stream."""


def draw(
    graph: Graph, counts: Mapping[str, Counts] | None = None, notes: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Draw components as boxes and subscriptions as arrows. Spouts are round. Notes stand below the counts."""
    ids = {name: f"c{number}" for number, name in enumerate(graph.components)}
    lines = ["flowchart LR"]
    for name, component in graph.components.items():
        label = _quoted(name if component.tasks == 1 else f"{name} x{component.tasks}")
        if counts is not None:
            of = counts[name]
            label += f"<br/>acked {sum(of.acked.values())}, failed {sum(of.failed.values())}"
            timed_out = sum(of.timed_out.values())
            label += f", timed out {timed_out}" if timed_out else ""
        label += f"<br/>{notes[name]}" if name in notes else ""
        box = f'(["{label}"])' if component.kind == "spout" else f'["{label}"]'
        lines.append(f"    {ids[name]}{box}")
    for component in graph.components.values():
        for subscription in component.inputs:
            label = _quoted(f"{subscription.stream}: {subscription.grouping}")
            if counts is not None:
                label += f"<br/>{counts[subscription.source].emitted.get(subscription.stream, 0)}"
            lines.append(f'    {ids[subscription.source]} -->|"{label}"| {ids[subscription.target]}')
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return re.sub(r'["<>&|#`\r\n]', lambda found: f"#{ord(found[0])};", text)
