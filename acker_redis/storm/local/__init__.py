"""Runner of topologies in this process: an interpreter of Storm's semantics on a ledger, for tests and for small services."""
