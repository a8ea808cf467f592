"""Spark's options to write messages as JSON in dead letters, and to read them."""

TO_JSON = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXXXX", "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"}
"""Spark's defaults omit microseconds, and the seconds of old time zones."""

FROM_JSON = {**TO_JSON, "columnNameOfCorruptRecord": "_acker_none"}
"""By default Spark would treat a user's column `_corrupt_record` as its own, and leave it null."""
