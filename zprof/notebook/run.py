"""Open anything that zprof can read, as a run that is measured on first use."""

import logging
from contextlib import nullcontext
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Self

from zprof.base.errors import BadInput
from zprof.base.formatting import printable, shorten
from zprof.model.time import WindowPolicy
from zprof.model.training import TrainingFacts
from zprof.notebook.plots import RunPlots
from zprof.run.reader import Run

if TYPE_CHECKING:
    import pandas as pd

    from zprof.analysis.analysis import RunAnalysis
    from zprof.model.report import RunFacts
    from zprof.notebook.report import DiagnosedRun

#: Properties computed from the training facts.
_MEASURED = ("analysis", "report")
_MAX_NAME = 120


class AnalysedRun(Run):
    """A run with tables and charts. It is measured once, on first use of a number.

    It is accepted wherever a ``Run`` is. The raw tables are :meth:`frame` and :meth:`table`.
    """

    def __init__(self, path: str | Path, *, policy: WindowPolicy = WindowPolicy.STEP) -> None:
        super().__init__(path)
        self.policy = policy

    @cached_property
    def analysis(self) -> "RunAnalysis":
        """All measurements of this run.

        Raises:
            BadInput: a table of the run is damaged.
        """
        from zprof.analysis.analysis import analyse

        return analyse(self, self.policy)

    @cached_property
    def report(self) -> "DiagnosedRun":
        """The report of :func:`zprof.diagnose` without a baseline."""
        from zprof.notebook.report import diagnose

        return diagnose(self)

    def steps(self) -> "pd.DataFrame":
        """Return the step ledger: one row per rank and step.

        wall_ns = compute_ns + exposed_wait_ns + exposed_transfer_ns + exposed_memcpy_ns + idle_ns +
        unexplained_ns. The mean over the rows of a rank is the report's ``time.per_rank``.
        """
        from zprof.analysis.tables import make_step_table

        return make_step_table(self.analysis).to_frame()

    def collectives(self) -> "pd.DataFrame":
        """Return one row per rank, step and collective, with its exposed, hidden, wait and transfer time.

        To plot lost time, use ``exposed_ns``: ``wait_ns`` and ``transfer_ns`` are partly hidden.
        """
        from zprof.analysis.tables import make_collective_table

        return make_collective_table(self.analysis).to_frame()

    def memory(self) -> "pd.DataFrame":
        """Return the bytes of each tenant at each rank's peak; the rows of a rank add up to its peak."""
        from zprof.analysis.tables import make_memory_table

        return make_memory_table(self.analysis.memory).to_frame()

    def memory_groups(self) -> "pd.DataFrame":
        """Return the live memory at each rank's peak by owner and allocation site, largest first."""
        from zprof.analysis.tables import make_memory_group_table

        return make_memory_group_table(self.analysis.memory).to_frame()

    def memory_timeline(self, rank: int | None = None) -> "pd.DataFrame":
        """Return live bytes over time, one column per tenant, for one rank or all ranks in the report."""
        from zprof.analysis.tables import make_memory_timeline_table

        table = make_memory_timeline_table(self.analysis.memory)
        is_part = rank is not None and len(table) > 0
        return (table.at(table.ints("rank") == rank).renumber() if is_part else table).to_frame()

    def sql(self, query: str) -> "pd.DataFrame":
        """Return the answer of one SELECT over the tables that ``zprof query --tables`` lists.

        Raises:
            BadInput: The query is not one SELECT, is wrong, or takes too much time, memory or rows.
            MissingPackage: DuckDB is not installed.
        """
        from zprof.query.database import QueryLimits, ask
        from zprof.query.tables import MeasuredRun

        limits = QueryLimits()
        answer = ask(MeasuredRun(self, lambda: self.analysis, lambda: self.report), query, limits)
        if answer.is_cut:
            raise BadInput(f"SQL: more than {limits.max_rows} rows", hint="add a LIMIT, or sum them up")
        return answer.rows.to_pandas()

    @property
    def plot(self) -> RunPlots:
        """Charts of the run."""
        return RunPlots(self)

    def described(self, training: TrainingFacts) -> Self:
        """Return the run with training facts that replace its manifest's; it is not measured yet."""
        other = super().described(training)
        for name in _MEASURED:
            other.__dict__.pop(name, None)
        return other

    def __repr__(self) -> str:
        """Return one line: name, ranks, backend, engine and steps."""
        from zprof.reports.pages.names import describe_run

        facts = self._describe()
        return f"<zprof run {printable(describe_run(facts, _format_windows(facts)))}>"

    def _repr_html_(self) -> str:
        """Return the manifest facts as a small table, without reading any table of the run."""
        from zprof.reports.pages.names import format_rank_count

        facts = self._describe()
        rows = {
            "run": facts.name,
            "from": facts.source,
            "ranks": format_rank_count(facts),
            "window": _format_windows(facts),
            "device": facts.device,
            "backend": facts.backend,
            "engine": facts.engine,
            "ZeRO stage": "unknown" if facts.stage is None else str(facts.stage),
        }
        lines = (
            f'<tr><th style="text-align:left">{name}</th>'
            f'<td style="text-align:left">{escape(shorten(printable(value), _MAX_NAME))}</td></tr>'
            for name, value in rows.items()
        )
        return f"<table>{''.join(lines)}</table>"

    def _describe(self) -> "RunFacts":
        from zprof.analysis.facts import describe_run

        return describe_run(self)


def load(path: str | Path, *, window: str = WindowPolicy.STEP.value) -> AnalysedRun:
    """Open a run, a Kineto trace, a CUDA memory snapshot, or a folder of traces or snapshots.

    Traces and snapshots are imported into the user's cache once, which the logger ``zprof`` reports at level
    INFO. Nothing is measured before the first use of a number.

    Args:
        path: What to open.
        window: ``"step"`` measures each step, ``"trace"`` the full recording as one interval.

    Raises:
        BadInput: The path has no run and no file to import, or is damaged.
        MissingData: No rank finished its recording.
    """
    from zprof.collectors.read.imports.options import ImportProgress
    from zprof.collectors.read.imports.run_folder import find_run_folder, refuse_empty

    policy = parse_window(window)
    path = Path(path).expanduser()
    log = logging.getLogger("zprof").info
    folder = find_run_folder(path, log, lambda: nullcontext(ImportProgress()))
    run = AnalysedRun(folder, policy=policy)
    refuse_empty(run, path)
    return run


def _format_windows(facts: "RunFacts") -> str:
    """Format the steps with recorded time and the steps with recorded memory."""
    from zprof.reports.pages.names import format_steps

    memory = f"memory of {format_steps(facts.memory_steps)}" if facts.memory_steps else ""
    if facts.source == "snapshot":
        return memory or "from a snapshot"
    return ", ".join(filter(None, [format_steps(facts.steps), memory]))


def parse_window(window: str) -> WindowPolicy:
    """Return the policy with this name.

    Raises:
        BadInput: no policy has this name.
    """
    policies = {policy.value: policy for policy in WindowPolicy}
    if window not in policies:
        raise BadInput(f"window {window!r} is unknown", hint=f"use one of {', '.join(policies)}")
    return policies[window]


def as_run(run: str | Path | Run, window: str | None = None) -> Run:
    """Return an open run unchanged, else the run that :func:`load` opens."""
    return load(run, window=window or WindowPolicy.STEP.value) if isinstance(run, str | Path) else run
