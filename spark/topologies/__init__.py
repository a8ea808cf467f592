"""Six topologies of at most forty lines that show one idea each. They need no Spark.

`python -m spark.topologies.NAME` runs one. Each docstring has the program's output.
"""
