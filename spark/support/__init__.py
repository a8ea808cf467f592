"""Services and sessions of the applications and examples."""
