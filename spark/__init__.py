"""Spark applications that show the library at work; see README.md."""
