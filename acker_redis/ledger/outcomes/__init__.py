"""Outcomes, from the streams of a shard to the spout."""
