"""State of bolts on Spark, as their tasks see it: read when it is asked for, and written at the end of an execution."""
