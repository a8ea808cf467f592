"""Complete programs with tracked pipelines."""
