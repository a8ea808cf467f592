"""For mkdocstrings: examples in docstrings, which begin with `>>>`, become blocks of code; Markdown takes them for quotes."""

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^( *)>>> .*(?:\n\1\S.*)*", re.MULTILINE)


class Doctests(griffe.Extension):
    """Makes blocks of code of examples."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:  # noqa: ARG002
        """Called for everything that has a docstring, before it is parsed."""
        if obj.docstring:
            obj.docstring.value = as_code_blocks(obj.docstring.value)


def as_code_blocks(text: str) -> str:
    """Put the docstring's examples into blocks of code."""
    return _EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", text)
