"""Measurements of speed and memory: `python -m benchmarks [names]`, or `make bench`.

Every figure that has a target is a ratio within one run on one server, so that it holds on a slow or busy machine too;
absolute figures stand beside it as context. One module per benchmark; a module joins by registering a function.
"""
