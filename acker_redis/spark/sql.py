"""Names and texts as parts of Spark's SQL."""

_SPECIAL = ("'", "\\", "${")
"""What a literal of Spark's SQL may not hold, whatever the session's settings are."""


def quoted(column: str) -> str:
    """Quote a column's name for a Spark expression, so that dots and backticks are part of the name."""
    return "`" + column.replace("`", "``") + "`"


def literal(text: str) -> str:
    """Quote a text for Spark's SQL.

    Settings decide what a backslash means in a literal, and whether a variable in it is replaced. So such a text is written
    as bytes.
    """
    if any(special in text for special in _SPECIAL):
        return f"cast(X'{text.encode().hex()}' AS string)"
    return f"'{text}'"
