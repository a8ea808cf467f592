"""How to install the optional packages. The library is in no package index yet, so pip takes it from a clone."""


def pip_install(extra: str) -> str:
    """Return the command that installs an extra of pyproject.toml.

    >>> pip_install("kafka")
    "pip install '/path/to/acker-redis[kafka]'"
    """
    return f"pip install '/path/to/acker-redis[{extra}]'"


def install_hint(extra: str) -> str:
    """Return the sentence that ends an error about a missing package.

    >>> install_hint("kafka")
    "Run `pip install '/path/to/acker-redis[kafka]'` with the path of your clone."
    """
    return f"Run `{pip_install(extra)}` with the path of your clone."
