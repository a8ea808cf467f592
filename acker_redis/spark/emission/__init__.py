"""One emission: its messages, its roots, and the run of the pipeline over them."""
