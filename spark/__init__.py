"""Spark applications that show the library in use; see README.md."""
