"""The messages of one source: emitted, followed, retried, and dead-lettered."""
