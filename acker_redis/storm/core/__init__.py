"""Core that every runner of topologies shares: routing, anchoring and strictness. It knows no queue, process or server."""
