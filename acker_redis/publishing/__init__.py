"""Log that decides which messages' rows belong into tables, and puts files of such rows there.

It knows neither Redis nor Spark. Rows are staged by others.
"""
