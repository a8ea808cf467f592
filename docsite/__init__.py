"""The documentation site: the repository's pages, and a reference made of docstrings, help texts and headers."""
