"""The development stack of `docker-compose.yml`: its configuration, and what runs the same services as plain processes."""
