"""Micro-batches of Structured Streaming, and the messages that outlive them."""
