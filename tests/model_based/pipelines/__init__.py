"""Pipelines drawn from a seed, run on real Spark and a real server, and held against what is really in the sinks.

data: messages. operators: the tracker's; sparks: Spark's own, harmless and harmful. sinks. faults: what goes wrong on
purpose.
pipeline: draws and prints one. truth: what must be in its sinks, in plain Python. play: runs it. judge: compares. reduce:
makes a smaller one that shows the same fault. session: Spark, where pytest's isn't at hand.

`python -m tests.model_based.pipelines --reduce SEED` runs one, and reduces it if it shows a fault.
"""
