"""Explicit-state model of the state of topologies: redo logs, a commit, epochs."""
