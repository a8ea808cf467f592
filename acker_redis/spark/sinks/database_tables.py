"""Tables of databases that JDBC reads and replaces: may two of them be the same one?

A database folds names in ways of its own, and a URL says more than which database it is. So names are compared without case
and quotes, and URLs without parameters.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

_NAME, _PACKAGES = "jdbc", ("org.apache.spark.sql.jdbc", "org.apache.spark.sql.execution.datasources.jdbc")
"""Names of the source."""

_PART = r'[\w$#@]+|"[^"]+"|`[^`]+`|\[[^\]]+\]'
_PARTS = re.compile(_PART)
_PLAIN = re.compile(rf"\s*(?:{_PART})(?:\s*\.\s*(?:{_PART}))*\s*")
"""Names of tables, with their schemas. Everything else is a query, such as `(SELECT ...) t`, or `a JOIN b`."""

_LOGIN = re.compile(r"(?<=//)[^/?;]*@|(?<=:thin:)[^@]*(?=@)")
_PARAMETERS = re.compile(r"[?;].*|[:/,]\w+=.*", re.DOTALL)
_EMBEDDED = re.compile(r"jdbc:(derby|sqlite|h2|hsqldb|duckdb):(?!.*//)")
"""URLs of databases that are files. One has many names, such as relative ones."""
_NAMED_IN = re.compile(r"[?;&:/,](?:databasename|database|db)=([^;&,]*)")
"""Parameter that names the database, as in URLs of SQL Server."""

_PORTS = {"postgresql": 5432, "mysql": 3306, "mariadb": 3306, "sqlserver": 1433, "oracle": 1521}
"""Ports that a URL may omit."""


class DatabaseTable(NamedTuple):
    """A table of a database, or a query of some of its tables.

    Attributes:
        url: URL of JDBC; None: it isn't known.
        table: name of the table, or text of the query.
    """

    url: str | None
    table: str

    def __str__(self) -> str:
        """Without parameters and logins, which may be secrets."""
        return self.table if self.url is None else f"{self.table} at {_plain(self.url)}"

    @property
    def is_query(self) -> bool:
        """True if only the database knows which tables are read."""
        return _PLAIN.fullmatch(self.table) is None

    def may_be(self, other: "DatabaseTable") -> bool:
        """Return True if both may be the same table, or one may be a query of the other."""
        return self._is_beside(other) and (self.is_query or other.is_query or self._is_called_like(other))

    def is_surely(self, other: "DatabaseTable") -> bool:
        """Return True if both name one table in the same way, without case, quotes, logins and parameters."""
        if self.url is None or other.url is None or self.is_query or other.is_query:
            return False
        urls = [_plain(url.strip()).rstrip("/") for url in (self.url, other.url)]
        return urls[0] == urls[1] and self._is_beside(other) and _parts(self.table) == _parts(other.table)

    def _is_beside(self, other: "DatabaseTable") -> bool:
        if self.url is None or other.url is None:
            return True
        named = [_NAMED_IN.search(url.lower()) for url in (self.url, other.url)]
        names = {match[1] for match in named if match is not None}  # a login without one has a database of its own
        return _server(self.url) == _server(other.url) and len(names) < 2  # noqa: PLR2004

    def _is_called_like(self, other: "DatabaseTable") -> bool:
        """Return True if the parts that both names have are the same. The schema may be missing in one of them."""
        both = zip(reversed(_parts(self.table)), reversed(_parts(other.table)), strict=False)
        return all(a == b for a, b in both)


def is_jdbc(source: str | None) -> bool:
    """Return True if a format of a reader or writer is JDBC."""
    return source is not None and (source.lower() == _NAME or source.lower().startswith(_PACKAGES))


def table_of(options: Mapping[str, str]) -> DatabaseTable:
    """Return what JDBC reads or writes with options, by their names in lower case."""
    table = options.get("dbtable") or f"({options.get('query', '')})"
    return DatabaseTable(options.get("url"), table.strip())


def _plain(url: str) -> str:
    """Return a URL without its login and parameters."""
    if _EMBEDDED.match(url):
        return re.sub(r"[?;].*", "", url, flags=re.DOTALL)
    return _PARAMETERS.sub("", _LOGIN.sub("", url))


def _server(url: str) -> str:
    """Return what a URL says about where a database is."""
    plain = _plain(url.strip().lower()).rstrip("/")
    if embedded := _EMBEDDED.match(plain):
        return f"{embedded[1]} {re.split('[:/]', plain)[-1]}"
    kind = plain.split(":")[1] if plain.count(":") > 1 else ""
    return re.sub(rf":{_PORTS[kind]}(?=[/:]|$)", "", plain) if kind in _PORTS else plain


def _parts(name: str) -> list[str]:
    return [part.strip('"`[]').lower() for part in _PARTS.findall(name)]
