"""Talk to Redis: connections, scripts, retries. Knows nothing of ackers."""
