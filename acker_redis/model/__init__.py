"""Names, ids and values that every layer shares. No I/O."""
