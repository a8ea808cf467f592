"""Spark's options to write messages as JSON in dead letters, and to read them."""

TO_JSON = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXXXX", "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"}
"""Spark's defaults omit microseconds, and the seconds of old time zones."""

MISFIT = "_acker_none"
"""Column that has the text of JSON of which a value doesn't fit its column, if a schema has it."""

FROM_JSON = {**TO_JSON, "columnNameOfCorruptRecord": MISFIT}
"""By default Spark would treat a user's column `_corrupt_record` as its own, and leave it null."""
