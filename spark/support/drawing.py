"""SVG pictures of trees for the tour: a message, the rows derived from it, and its root in the ledger."""

from collections.abc import Mapping, Sequence
from html import escape

from acker_redis import Acker

COLOURS = {"pending": "#f4b942", "acked": "#5aa469", "failed": "#d1495b", "gone": "#b8b8b8"}
_WIDTH, _ROW, _BOX, _HEIGHT = 620, 78, 132, 34


class Picture:
    """SVG picture for notebooks."""

    def __init__(self, svg: str) -> None:
        self.svg = svg

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        """Return a placeholder for places that can't show a picture."""
        return "a tree"


def tree(root: int, levels: Sequence[Mapping[str, str]], acker: Acker) -> Picture:
    """Draw a tree with the name and state of each tuple, and the state of its root in the ledger below.

    Args:
        root: root id.
        levels: names and states per level, from the source on. A tuple's parent is the one above it.
        acker: acker that looks up the root.
    """
    shapes: list[str] = []
    above: list[tuple[float, int]] = []
    for depth, level in enumerate(levels):
        y = 24 + depth * _ROW
        boxes = []
        for place, (name, state) in enumerate(level.items()):
            x = _WIDTH * (place + 0.5) / len(level)
            boxes.append((x, y))
            if above:
                px, py = above[place * len(above) // len(level)]
                shapes.append(f'<path d="M{px},{py + _HEIGHT} L{x},{y}" stroke="#777" stroke-width="1.5"/>')
            shapes.append(
                f'<rect x="{x - _BOX / 2}" y="{y}" width="{_BOX}" height="{_HEIGHT}" rx="6" fill="{COLOURS[state]}"/>'
                f'<text x="{x}" y="{y + 22}" text-anchor="middle" font-size="14" fill="#111">{escape(name)}</text>'
            )
        above = boxes
    entry = acker.inspect(root)
    text = f"in the ledger: value {entry.val & (1 << 64) - 1:x}, {entry.state}" if entry else "in the ledger: nothing"
    bottom = 24 + len(levels) * _ROW
    shapes.append(f'<text x="12" y="{bottom}" font-size="14" font-family="monospace" fill="#555">{text}</text>')
    return Picture(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{bottom + 16}" font-family="sans-serif">'
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(shapes)}</svg>'
    )
