"""Word count over real text, with every line tracked: `python -m spark.word_count`."""
