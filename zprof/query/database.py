"""Ask SQL of a run: DuckDB in memory, without access to files, extensions or other settings."""

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from zprof.base.errors import BadInput, Extra, ask_for_name, require_extra
from zprof.base.formatting import format_bytes, printable, shorten
from zprof.query.tables import MeasuredRun, QueryTable, list_tables

if TYPE_CHECKING:
    import pyarrow as pa

_MAX_MESSAGE = 300
_MAX_SQL = 100_000
#: Nothing outside the registered tables can be read, nothing written, and no setting changed afterwards.
_CONFIG: Mapping[str, Any] = {
    "enable_external_access": False,
    "python_enable_replacements": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "allow_community_extensions": False,
    "temp_directory": "",
    "lock_configuration": True,
}


class QueryLimits(Struct, frozen=True, kw_only=True):
    """Limits of a query: the rows that it returns, its time, its memory and its threads."""

    max_rows: int = 10_000
    wall_s: float = 30.0
    memory_bytes: int = 2 << 30
    threads: int = 2


class Answer(Struct, frozen=True, kw_only=True):
    """The rows of a query; ``is_cut``: there are more than the limit."""

    rows: "pa.Table"
    is_cut: bool


_LIMITS = QueryLimits()


def ask(run: MeasuredRun, sql: str, limits: QueryLimits = _LIMITS) -> Answer:
    """Return the answer of one SELECT; only the tables that it names are loaded.

    Raises:
        BadInput: The query is not one SELECT, is wrong, or exceeds a limit.
        MissingPackage: DuckDB is not installed.
    """
    require_extra(Extra.SQL, "SQL")
    import duckdb

    if len(sql) > _MAX_SQL:
        raise BadInput(f"the query has {len(sql)} characters", hint=f"use at most {_MAX_SQL}")
    config = {**_CONFIG, "memory_limit": f"{limits.memory_bytes >> 20}MB", "threads": limits.threads}
    with duckdb.connect(":memory:", config=config) as connection:
        try:
            statements = connection.extract_statements(sql)
            if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
                raise BadInput("SQL: not one SELECT", hint="tables can be read, and nothing else")
            for table in _list_used(connection.get_table_names(sql)):
                connection.register(table.name, table.load(run))
            return _fetch(connection, sql, limits)
        except duckdb.Error as error:
            raise _explain(error, limits) from None


def _list_used(names: set[str]) -> list[QueryTable]:
    """Return the tables that a query names; other names may be its own."""
    lowered = {name.lower() for name in names}
    return [table for table in list_tables() if table.name in lowered]


def _fetch(connection: Any, sql: str, limits: QueryLimits) -> Answer:
    timer = threading.Timer(limits.wall_s, connection.interrupt)
    timer.start()
    try:
        rows = connection.sql(sql).limit(limits.max_rows + 1).to_arrow_table()
    finally:
        timer.cancel()
    return Answer(rows=rows.slice(0, limits.max_rows), is_cut=len(rows) > limits.max_rows)


def _explain(error: Exception, limits: QueryLimits) -> BadInput:
    """Return a DuckDB error as one line; a missing table with the names of similar ones."""
    import duckdb

    if isinstance(error, duckdb.InterruptException):
        return BadInput(f"SQL: not done in {limits.wall_s:g} s", hint="ask for less, or raise --seconds")
    if isinstance(error, duckdb.OutOfMemoryException):
        limit = format_bytes(limits.memory_bytes)
        return BadInput(f"SQL: needs more than {limit}", hint="ask for less, or select fewer columns")
    message = " ".join(str(error).split("\n\nLINE", 1)[0].split())
    text = f"SQL: {shorten(printable(message), _MAX_MESSAGE)}"
    missing = _find_missing_table(message)
    hint = ask_for_name(missing, (table.name for table in list_tables())) if missing else ""
    return BadInput(
        text.split(" Did you mean")[0], hint=hint or "zprof query --tables lists tables and columns"
    )


def _find_missing_table(message: str) -> str:
    _, found, rest = message.partition("Table with name ")
    return rest.split(" ", 1)[0] if found else ""
