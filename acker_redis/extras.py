"""How to install the optional packages. The library is in no package index yet, so pip takes it from a clone."""


def install_hint(extra: str) -> str:
    """Return the sentence that ends an error about a missing package. It names an extra of pyproject.toml.

    >>> install_hint("kafka")
    "Run `pip install '/path/to/acker-redis[kafka]'` with the path of your clone."
    """
    return f"Run `pip install '/path/to/acker-redis[{extra}]'` with the path of your clone."
