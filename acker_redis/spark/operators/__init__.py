"""Operators as frames in, frames out. Each keeps the sum of shares."""
