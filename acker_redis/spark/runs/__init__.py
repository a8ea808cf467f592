"""The calls that run a pipeline over a source until every message is done."""
