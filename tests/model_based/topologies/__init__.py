"""Random topologies, and an oracle that counts their edges."""
