"""Read tables of an SQLite file of strangers: only plain tables, only by SELECT, whatever columns it has."""

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from zprof.base.errors import BadInput
from zprof.collectors.read.kineto.trace import ABSENT, Int64s

#: Rows that are converted at once.
_CHUNK_ROWS = 1 << 16
_MAX_ROWS = 100_000_000
_MAX_TEXT, _MAX_TEXTS = 2_000, 5_000_000
_CACHE_KIB = 16 << 10
HINT = "export the report again: nsys export --type sqlite REPORT.nsys-rep"


#: SQLite's own number of each row.
ROW = "rowid"


class NsightDatabase:
    """An open file. Unknown tables and columns read as absent; a damaged page ends with ``BadInput``."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True, isolation_level=None)
        for pragma in ("query_only=ON", "trusted_schema=OFF", "mmap_size=0", f"cache_size=-{_CACHE_KIB}"):
            self._connection.execute(f"PRAGMA {pragma}")
        self._connection.set_authorizer(_allow_reading)
        self._columns = self._read_schema()

    def has(self, table: str, column: str) -> bool:
        """Return True if the file has this column."""
        return column in self._columns.get(table, ())

    def read_numbers(self, table: str, columns: Sequence[str], where: str = "") -> dict[str, Int64s]:
        """Return columns as whole numbers; ``ABSENT`` for NULL, for text, and for a column that is missing.

        ``where``: a condition on the rows, of columns that the table has.

        Raises:
            BadInput: The file is damaged, or the table has too many rows.
        """
        known = [column for column in columns if column in self._columns.get(table, ())]
        if not known:
            return {column: np.zeros(0, dtype=np.int64) for column in columns}
        fields = ", ".join(
            f'CASE typeof("{name}") WHEN \'integer\' THEN "{name}" ELSE {ABSENT} END' for name in known
        )
        parts = [np.zeros((0, len(known)), dtype=np.int64)]
        try:
            cursor = self._connection.execute(f'SELECT {fields} FROM "{table}" WHERE 1 {_join(where)}')
            while rows := cursor.fetchmany(_CHUNK_ROWS):
                parts.append(np.array(rows, dtype=np.int64))
                if len(parts) * _CHUNK_ROWS > _MAX_ROWS:
                    raise BadInput(f"table {table} has more than {_MAX_ROWS:,} rows", hint=HINT)
        except sqlite3.Error as error:
            raise BadInput(f"table {table} is damaged ({type(error).__name__})", hint=HINT) from None
        found = np.concatenate(parts)
        absent = np.full(len(found), ABSENT, dtype=np.int64)
        return {name: found[:, known.index(name)] if name in known else absent for name in columns}

    def read_texts(self, table: str, key: str, value: str, where: str = "") -> dict[int, str]:
        """Return a text by its number; long texts are cut.

        Raises:
            BadInput: The file is damaged.
        """
        if not {key, value} <= set(self._columns.get(table, ())):
            return {}
        query = (
            f'SELECT "{key}", substr("{value}", 1, {_MAX_TEXT}) FROM "{table}" '
            f"WHERE typeof(\"{key}\") = 'integer' AND typeof(\"{value}\") = 'text' {_join(where)}"
            f"LIMIT {_MAX_TEXTS}"
        )
        try:
            words: dict[str, str] = {}
            return {number: words.setdefault(text, text) for number, text in self._connection.execute(query)}
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise BadInput(f"table {table} is damaged ({type(error).__name__})", hint=HINT) from None

    def _read_schema(self) -> Mapping[str, tuple[str, ...]]:
        """Return the columns of each plain table: no view, and no table that a module computes."""
        try:
            rows = self._connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0 LIMIT 10000"
            ).fetchall()
            return {
                name: (ROW, *(row[1] for row in self._connection.execute(f'PRAGMA table_info("{name}")')))
                for (name,) in rows
                if isinstance(name, str) and name.isidentifier()
            }
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise BadInput(f"its list of tables is damaged ({type(error).__name__})", hint=HINT) from None


def _join(where: str) -> str:
    return f"AND ({where}) " if where else ""


def _allow_reading(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    """Allow reading, and the functions that the queries here use."""
    if action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ):
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION:
        return sqlite3.SQLITE_OK if second in ("typeof", "substr") else sqlite3.SQLITE_DENY
    is_schema = action == sqlite3.SQLITE_PRAGMA and first == "table_info"
    return sqlite3.SQLITE_OK if is_schema else sqlite3.SQLITE_DENY
