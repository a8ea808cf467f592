"""The ledger of an app: its shards, updates, expiry, and what they hold."""
