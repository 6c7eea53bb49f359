"""The tables that SQL can ask: those of the analysis, lists of the report, and what was recorded.

A list of the report becomes a table with one column per field; fields of a nested record are joined with
``_``. Times are nanoseconds, sizes bytes, as in the report's JSON. An unknown value is NULL, never 0.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import Struct
from msgspec import inspect as kinds

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns
from zprof.analysis.tables import (
    COLLECTIVE_TABLE_COLUMNS,
    MEMORY_GROUP_COLUMNS,
    MEMORY_TABLE_COLUMNS,
    MEMORY_TIMELINE_COLUMNS,
    STEP_TABLE_COLUMNS,
    make_collective_table,
    make_memory_group_table,
    make_memory_table,
    make_memory_timeline_table,
    make_step_table,
)
from zprof.analysis.time.rank import KERNEL_COLUMNS
from zprof.model.findings import Evidence, Finding
from zprof.model.gaps import Gap
from zprof.model.memory import Allocation, ModulePeak
from zprof.model.mesh import MeshGroup, RoleTime
from zprof.model.metrics import METRICS
from zprof.model.report import Report
from zprof.model.time import CollectiveTime, LinkFit, MessageSizes, RankTime, UnitTime
from zprof.run.reader import Run
from zprof.run.schema import JOB_TABLES, TABLES

#: Each SQL type that a column can have.
_ARROW = {
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "VARCHAR": pa.string(),
    "BIGINT[]": pa.list_(pa.int64()),
    "DOUBLE[]": pa.list_(pa.float64()),
    "VARCHAR[]": pa.list_(pa.string()),
}
_SQL_TYPES: Sequence[tuple[type[kinds.Type], str]] = (
    (kinds.BoolType, "BOOLEAN"),
    (kinds.IntType, "BIGINT"),
    (kinds.FloatType, "DOUBLE"),
    (kinds.StrType, "VARCHAR"),
    (kinds.EnumType, "VARCHAR"),
)
#: Columns of the analysis by type; all others are whole numbers.
_TEXTS = frozenset(
    {"kind", "group", "unit", "phase", "dtype", "late_reason", "tenant", "device", "sub", "where", "operator"}
    | {"basis", "confidence", "reason", "name", "role"}
)
_FLAGS = frozenset({"bound", "upper_bound", "matched", "first_of_window", "before"})
_FLOATS = frozenset(
    {"total_ns", "beside_ns", "alone_median_ns", "overlapped_median_ns", "judged_beside_ns", "excess_ns"}
    | {"uncovered_ns", "median_ns"}
)
#: What the catalogue says of sums is left out: a row of steps or collectives is not a sum.
_OF_SUMS = " Sum per step"
#: Columns of several tables that the catalogue does not explain.
_MEANINGS: Mapping[str, str] = {
    "rank": "Global rank.",
    "step": "Number of the step.",
    "start_ns": "Start on the clock that all ranks share; of recorded tables, on the clock of the rank.",
    "end_ns": "End on the clock of the rank.",
    "start_in_step_ns": "Start, counted from the start of the rank's step.",
    "duration_ns": "Length, wait and transfer together.",
    "exposed_ns": "exposed_wait_ns + exposed_transfer_ns: time in which the rank computed nothing.",
    "hidden_ns": "The part that compute hides.",
    "wait_ns": "Before the last rank of the group arrived, exposed or hidden.",
    "transfer_ns": "After the last rank of the group arrived, exposed or hidden.",
    "launch_delay_ns": "From the launch by the host to the start.",
    "last_rank": "The rank that arrived last.",
    "origin_rank": "The rank where that delay began.",
    "late_reason": "Why that rank was late.",
    "upper_bound": "True if the figure is an upper bound.",
    "lower_bound": "True if the figure is a lower bound.",
    "bound": "True if ranks are missing: waits are lower bounds, transfers upper bounds.",
    "matched": "True if it was found on all ranks of its group.",
    "first_of_window": "True for the first one, whose wait includes the start of the profiler.",
    "group": "Process group, by its ranks.",
    "group_size": "Ranks of the group.",
    "unit": "Wrapped module; of evidence: ns, bytes, bytes_per_s, count, ratio, times.",
    "phase": "forward, recompute, backward or optimizer.",
    "bytes": "Size of the full tensor, or of the allocation.",
    "tenant": "parameters, gradients, optimizer_state, activations, temporary, communication or untagged.",
    "saving_ns": "Least and most that the fix gains per step.",
    "saving_bytes": "Least and most by which the memory of the largest rank shrinks.",
    "disprove": "How to show that the finding is wrong.",
    "stack": "Frames, innermost first; of recorded tables, the number of the stack.",
}
#: Prefix of the tables that were recorded; their times are on the clock of each rank.
RECORDED = "recorded_"


class MeasuredRun:
    """A run with its analysis and its report, each made on first use: recorded tables need neither."""

    def __init__(self, run: Run, analyse: Callable[[], RunAnalysis], diagnose: Callable[[], Report]) -> None:
        self.run = run
        self._analyse, self._diagnose = analyse, diagnose

    @cached_property
    def analysis(self) -> RunAnalysis:
        """All measurements of the run."""
        return self._analyse()

    @cached_property
    def report(self) -> Report:
        """The report on the run."""
        return self._diagnose()


class QueryTable(Struct, frozen=True, kw_only=True):
    """A table: its name, what a row is, its columns, and how it is made.

    ``columns``: name and SQL type in order. ``metrics``: path of the rows in the catalogue of numbers, whose
    entries explain the columns; "" if they have none.
    """

    name: str
    title: str
    make: Callable[[MeasuredRun], pa.Table]
    columns: tuple[tuple[str, str], ...]
    metrics: str = ""

    def load(self, run: MeasuredRun) -> pa.Table:
        """Return the table of a run with exactly its columns and types; what was not measured is NULL.

        Raises:
            BadInput: A table of the run is damaged.
        """
        found = self.make(run)
        types = {name: _ARROW[sql] for name, sql in self.columns}
        return pa.table(
            {
                name: found[name].cast(kind) if name in found.column_names else pa.nulls(len(found), kind)
                for name, kind in types.items()
            }
        )


def list_tables() -> tuple[QueryTable, ...]:
    """Return all tables; those that were recorded come last."""
    return (*_MEASURED, *_OF_REPORT, *(_make_recorded(name) for name in TABLES))


def explain_column(table: QueryTable, name: str) -> str:
    """Return what a column means, from the catalogue of numbers; "" if its name says it."""
    if name in _MEANINGS:
        return _MEANINGS[name]
    metric = METRICS.get(f"{table.metrics}.{name}")
    return metric.help.split(_OF_SUMS)[0] if metric is not None else ""


def make_struct_table(kind: type[Struct], rows: Iterable[Struct]) -> pa.Table:
    """Return records as a table with a column for each field that has one; see :func:`list_columns`."""
    fields = [pa.field(name, _ARROW[sql]) for name, sql in list_columns(kind)]
    return pa.Table.from_pylist([_flatten(msgspec.to_builtins(row)) for row in rows], pa.schema(fields))


def list_columns(kind: type[Struct], prefix: str = "") -> tuple[tuple[str, str], ...]:
    """Return name and SQL type of each field that is a number, a text, a list of these, or a record.

    Other fields (mappings, lists of records) have tables of their own, or none.
    """
    info = kinds.type_info(kind)
    assert isinstance(info, kinds.StructType)
    columns: list[tuple[str, str]] = []
    for field in info.fields:
        found = _strip_none(field.type)
        name = f"{prefix}{field.encode_name}"
        if isinstance(found, kinds.StructType):
            columns += list_columns(found.cls, f"{name}_")
        elif sql := _name_sql_type(found):
            columns.append((name, sql))
    return tuple(columns)


def _strip_none(kind: kinds.Type) -> kinds.Type:
    if not isinstance(kind, kinds.UnionType):
        return kind
    others = [each for each in kind.types if not isinstance(each, kinds.NoneType)]
    is_number = all(isinstance(each, kinds.IntType | kinds.FloatType) for each in others)
    return others[0] if len(others) == 1 else kinds.FloatType() if is_number else kind


def _name_sql_type(kind: kinds.Type) -> str:
    """Return the SQL type of a field, "" for a field without a column."""
    for found, name in _SQL_TYPES:
        if isinstance(kind, found):
            return name
    if isinstance(kind, kinds.VarTupleType | kinds.TupleType):
        item = _name_sql_type(kind.item_type if isinstance(kind, kinds.VarTupleType) else kind.item_types[0])
        return f"{item}[]" if item and not item.endswith("[]") else ""
    return ""


def _flatten(row: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            values |= _flatten(value, f"{prefix}{name}_")
        else:
            values[f"{prefix}{name}"] = value
    return values


def _list_evidence(run: MeasuredRun) -> pa.Table:
    """Return the evidence of all findings, with the finding's id as an additional column."""
    rows = [
        {"finding": finding.id} | msgspec.to_builtins(each)
        for finding in run.report.findings
        for each in finding.evidence
    ]
    return pa.Table.from_pylist(rows, pa.schema([(name, _ARROW[sql]) for name, sql in _EVIDENCE]))


def _list_groups(run: MeasuredRun) -> Sequence[MeshGroup]:
    mesh = run.report.time.mesh
    return mesh.groups if mesh is not None else ()


def _list_roles(run: MeasuredRun) -> Sequence[RoleTime]:
    mesh = run.report.time.mesh
    return mesh.roles if mesh is not None else ()


def _make_of_report(
    name: str,
    title: str,
    kind: type[Struct],
    pick: Callable[[MeasuredRun], Sequence[Struct]],
    metrics: str = "",
) -> QueryTable:
    return QueryTable(
        name=name,
        title=title,
        make=lambda run: make_struct_table(kind, pick(run)),
        columns=list_columns(kind),
        metrics=metrics,
    )


def _make_recorded(name: str) -> QueryTable:
    schema = TABLES[name]
    columns = [(field.name, _name_arrow_type(field.type)) for field in schema if field.name != "rank"]
    return QueryTable(
        name=f"{RECORDED}{name}",
        title=f"the recorded table {name}, as in each rank's Parquet file",
        make=lambda measured: _join_ranks(measured.run, name, schema),
        columns=(("rank", "BIGINT"), *columns),
    )


def _make_measured(
    name: str,
    title: str,
    columns: Sequence[str],
    make: Callable[[MeasuredRun], Columns],
    metrics: str = "",
) -> QueryTable:
    return QueryTable(
        name=name,
        title=title,
        make=lambda run: make(run).to_arrow(),
        columns=tuple((each, _name_type_of_analysis(each)) for each in columns),
        metrics=metrics,
    )


def _name_type_of_analysis(name: str) -> str:
    if name in _TEXTS:
        return "VARCHAR"
    return "BOOLEAN" if name in _FLAGS else "DOUBLE" if name in _FLOATS else "BIGINT"


def _join_ranks(run: Run, name: str, schema: pa.Schema) -> pa.Table:
    """Return a recorded table of all ranks, with the rank as an additional column."""
    if name in JOB_TABLES:  # of the whole job, with ranks
        return run.job_table(name) or schema.empty_table()
    parts = []
    for rank in run.ranks:
        if run.has_table(rank, name):
            table = run.table(rank, name)
            parts.append(table.add_column(0, "rank", pa.repeat(pa.scalar(rank, pa.int64()), table.num_rows)))
    return (
        pa.concat_tables(parts) if parts else pa.schema([pa.field("rank", pa.int64()), *schema]).empty_table()
    )


def _name_arrow_type(kind: pa.DataType) -> str:
    if pa.types.is_integer(kind):
        return "BIGINT"
    if pa.types.is_floating(kind):
        return "DOUBLE"
    return "BOOLEAN" if pa.types.is_boolean(kind) else "VARCHAR"


_MEASURED: Sequence[QueryTable] = (
    _make_measured(
        "steps",
        "a step of a rank: the ledger",
        STEP_TABLE_COLUMNS,
        lambda run: make_step_table(run.analysis),
        "time.per_rank[]",
    ),
    _make_measured(
        "collectives",
        "a collective or message on a rank",
        COLLECTIVE_TABLE_COLUMNS,
        lambda run: make_collective_table(run.analysis),
        "time.collectives[]",
    ),
    _make_measured(
        "kernels",
        "all kernels of a name on a rank, in its steps",
        KERNEL_COLUMNS,
        lambda run: run.analysis.kernels,
    ),
    _make_measured(
        "memory",
        "a tenant at the peak of a rank",
        MEMORY_TABLE_COLUMNS,
        lambda run: make_memory_table(run.analysis.memory),
    ),
    _make_measured(
        "memory_groups",
        "live memory of a snapshot by owner and place of allocation, at the peak of a rank",
        MEMORY_GROUP_COLUMNS,
        lambda run: make_memory_group_table(run.analysis.memory),
    ),
    _make_measured(
        "memory_timeline",
        "live bytes of a rank by tenant, until the next row",
        MEMORY_TIMELINE_COLUMNS,
        lambda run: make_memory_timeline_table(run.analysis.memory),
    ),
)
_EVIDENCE = (("finding", "VARCHAR"), *list_columns(Evidence))
_OF_REPORT: Sequence[QueryTable] = (
    _make_of_report(
        "ranks", "a rank, means per step", RankTime, lambda run: run.report.time.per_rank, "time.per_rank[]"
    ),
    _make_of_report(
        "collective_kinds",
        "the collectives of a kind, group and element type, per step",
        CollectiveTime,
        lambda run: run.report.time.collectives,
        "time.collectives[]",
    ),
    _make_of_report(
        "units", "a wrapped module, per step", UnitTime, lambda run: run.report.time.units, "time.units[]"
    ),
    _make_of_report(
        "messages",
        "messages of a kind, group and size",
        MessageSizes,
        lambda run: run.report.time.messages,
        "time.messages[]",
    ),
    _make_of_report(
        "links", "latency and bandwidth of a group", LinkFit, lambda run: run.report.time.fits, "time.fits[]"
    ),
    _make_of_report("groups", "a process group of a mesh, with its role", MeshGroup, _list_groups),
    _make_of_report("roles", "a kind of parallelism, per step", RoleTime, _list_roles, "time.mesh.roles[]"),
    _make_of_report(
        "allocations",
        "a large allocation at the peak of a rank",
        Allocation,
        lambda run: run.report.memory.top,
        "memory.top[]",
    ),
    _make_of_report(
        "modules",
        "memory that a module allocated, at the peak of a rank",
        ModulePeak,
        lambda run: run.report.memory.modules,
        "memory.modules[]",
    ),
    _make_of_report("findings", "a cause that was found", Finding, lambda run: run.report.findings),
    QueryTable(
        name="evidence", title="a measured fact behind a finding", make=_list_evidence, columns=_EVIDENCE
    ),
    _make_of_report("gaps", "what is unknown, and why", Gap, lambda run: run.report.gaps),
)
