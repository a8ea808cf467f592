"""Applications: whole programs with tracked pipelines."""
