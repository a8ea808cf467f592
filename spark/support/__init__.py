"""Services and sessions for the applications and examples."""
