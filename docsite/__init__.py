"""The site of the docs: pages of the repository under one roof, and a reference made of docstrings, help texts and headers."""
