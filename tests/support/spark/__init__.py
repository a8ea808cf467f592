"""Helpers of the tests that need Spark."""
