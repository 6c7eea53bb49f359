"""``zprof query``: ask SQL of a run."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from zprof.base.errors import BadInput, suggest_names
from zprof.cli import console

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zprof.query.tables import QueryTable

_FORMATS = ("text", "csv", "json")
_MAX_ROWS, _MAX_SECONDS = 1_000_000, 3_600


class QueryCommand:
    """Ask SQL of a run: steps, collectives, findings, memory, and all that was recorded.

    One SELECT, answered by DuckDB in memory. It reads the tables of the run and nothing
    else: no file, no network, no extension. Times are nanoseconds, sizes bytes; what is
    unknown is NULL.

    examples:
      zprof query --tables                          tables, and what a row is
      zprof query --tables collectives              columns of a table
      zprof query zero3.zprof "select rank, avg(exposed_wait_ns) from steps group by rank"
      zprof query traces/ "select * from collectives order by exposed_ns desc limit 5"
      zprof query traces/ "from findings select id, cause, sentence" -f json
    """

    name = "query"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare RUN, the query, its limits and the output."""
        parser.add_argument("run", metavar="RUN", nargs="?", help="run, trace or folder of traces")
        parser.add_argument("sql", metavar="SQL", nargs="?", help="one SELECT; - reads it from stdin")
        parser.add_argument("--tables", action="store_true", help="list tables, or the columns of one")
        parser.add_argument(
            "--rows", metavar="N", type=int, default=1_000, help="at most N rows (default: 1000)"
        )
        parser.add_argument("--seconds", metavar="S", type=float, default=30, help="time limit (default: 30)")
        parser.add_argument("-f", "--format", choices=_FORMATS, default="text", help="format (default: text)")
        parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write to FILE")
        parser.add_argument("--force", action="store_true", help="overwrite FILE")

    def run(self, arguments: argparse.Namespace) -> int:
        """Print the tables, or ask and write the answer."""
        if arguments.tables:
            console.print_data(_describe_tables(arguments.run))
            return 0
        if arguments.run is None or arguments.sql is None:
            raise BadInput("no query given", hint='for example: zprof query RUN "select * from steps"')
        if not 0 < arguments.rows <= _MAX_ROWS or not 0 < arguments.seconds <= _MAX_SECONDS:
            raise BadInput("--rows or --seconds is too small or too large", hint=f"1 to {_MAX_ROWS} rows")
        from zprof.cli.output import check_output_target, write_document

        if arguments.output is not None:
            check_output_target(arguments.output, force=arguments.force)
        write_document(_answer(arguments), arguments.output, force=arguments.force)
        return 0


def _answer(arguments: argparse.Namespace) -> str:
    import sys

    from zprof.analysis.analysis import analyse
    from zprof.cli.inputs import diagnose_or_recall, open_run
    from zprof.query.database import QueryLimits, ask
    from zprof.query.rendering import render_csv, render_json, render_text
    from zprof.query.tables import MeasuredRun

    sql = sys.stdin.read() if arguments.sql == "-" else arguments.sql
    limits = QueryLimits(max_rows=arguments.rows, wall_s=arguments.seconds)
    run = open_run(Path(arguments.run))
    answer = ask(MeasuredRun(run, lambda: analyse(run), lambda: diagnose_or_recall(run)), sql, limits)
    if arguments.format == "text":
        return render_text(answer, console.get_columns() if arguments.output is None else None)
    return render_csv(answer) if arguments.format == "csv" else render_json(answer)


def _describe_tables(name: str | None) -> str:
    """Return the tables and what a row of each is, or the columns of one table."""
    from zprof.query.tables import list_tables

    tables = {table.name: table for table in list_tables()}
    if name is not None and name not in tables and Path(name).exists():
        tables, name = _select_recorded(tables, name), None
    if name is None:
        width = max(map(len, tables))
        lines = [f"{table.name:{width}}  {table.title}" for table in tables.values()]
        return "\n".join([*lines, "", "columns of one: zprof query --tables NAME", ""])
    if name not in tables:
        raise BadInput(f"no table {name!r}", hint=suggest_names(name, tables))
    return _describe_columns(tables[name])


def _select_recorded(tables: "Mapping[str, QueryTable]", path: str) -> "dict[str, QueryTable]":
    """Return the tables that a run has: of those that were recorded, only its own."""
    from zprof.cli.inputs import open_run
    from zprof.query.tables import RECORDED

    run = open_run(Path(path), is_analysed=False)
    absent = {
        name
        for name in tables
        if name.startswith(RECORDED)
        and not any(run.has_table(rank, name[len(RECORDED) :]) for rank in run.ranks)
    }
    return {name: table for name, table in tables.items() if name not in absent}


def _describe_columns(table: "QueryTable") -> str:
    from zprof.query.tables import explain_column

    width = max(len(name) for name, _ in table.columns)
    lines = [f"{table.name}: a row is {table.title}", ""]
    for name, sql in table.columns:
        lines.append(f"  {name:{width}}  {sql:9}  {explain_column(table, name)}".rstrip())
    return "\n".join([*lines, ""])
