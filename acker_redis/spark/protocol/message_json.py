"""How Spark writes messages as JSON, and reads them again: in dead letters, for people."""

TO_JSON = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXXXX", "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"}
"""Spark's default leaves out microseconds, and the seconds of old time zones."""

FROM_JSON = {**TO_JSON, "columnNameOfCorruptRecord": "_acker_none"}
"""Spark would take a column `_corrupt_record` for its own, and leave it null."""
