"""Benchmarks of speed and memory. Run `python -m benchmarks [names]` or `make bench`.

Every figure with a target is a ratio within one run on one server, so it is valid on a slow or busy machine, too. Absolute
figures beside it are context. Each module is one benchmark and registers a function.
"""
