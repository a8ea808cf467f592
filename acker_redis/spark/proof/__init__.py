"""Prove that every row of an emission reached its sinks."""
