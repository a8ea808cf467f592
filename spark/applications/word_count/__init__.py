"""Word count over real text with every line tracked: `python -m spark.applications.word_count`."""
