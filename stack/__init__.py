"""The development stack of `docker-compose.yml`: its configuration, and its services as plain processes."""
