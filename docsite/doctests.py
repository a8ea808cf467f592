"""Extension for mkdocstrings: turn examples in docstrings (`>>>`) into code blocks. Markdown would read them as quotes."""

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^( *)>>> .*(?:\n\1\S.*)*", re.MULTILINE)


class Doctests(griffe.Extension):
    """Turn examples into code blocks."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:  # noqa: ARG002
        """Convert the docstring of every object, before it is parsed."""
        if obj.docstring:
            obj.docstring.value = as_code_blocks(obj.docstring.value)


def as_code_blocks(text: str) -> str:
    """Put the docstring's examples into code blocks."""
    return _EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", text)
