"""How faces say which run it was, which steps the report is about, and what of a recording was measured."""

from collections.abc import Sequence

from zprof.model.printable import printable
from zprof.model.report import Report, RunFacts
from zprof.model.time import Time, WindowPolicy
from zprof.model.units import format_ns
from zprof.reports.shown.presenter import missing_ranks, named_ranks

_NAMED = 4
#: What stands for a backend or an engine that nobody named.
_NOT_SAID = frozenset({"", "none", "unknown"})
#: The source of a window whose steps the program marked itself, and of one over a trace without steps.
_MARKED, _NO_STEPS = "recorder", "whole trace"


def describe_run(run: RunFacts, steps: str) -> str:
    """A run in one line: ranks, backend, engine, steps."""
    stage = "" if run.stage is None else f" stage {run.stage}"
    where = run.device if run.backend in _NOT_SAID else f"{run.backend} on {run.device}"
    engine = [] if run.engine in _NOT_SAID else [f"{run.engine} engine{stage}"]
    return printable(f"{run.name}: {', '.join([ranks_text(run), where, *engine, steps])}")


def ranks_text(run: RunFacts) -> str:
    """``4 ranks``, or how many of them were loaded and which are missing."""
    ranks = f"{run.world_size} ranks" if run.world_size != 1 else "1 rank"
    missing = missing_ranks(run)
    if not missing:
        return ranks
    return f"{len(run.ranks_loaded)} of {ranks} (missing: {named_ranks(missing, _NAMED)})"


def reported_steps(report: Report, run: RunFacts) -> str:
    """The steps of ``run``, the report's own or its baseline, that the report is about."""
    if not report.time.per_rank and run.memory_steps:
        return f"memory of {steps_text(run.memory_steps)}"
    return "from a snapshot" if run.source == "snapshot" else steps_text(run.steps)


def steps_text(steps: Sequence[int]) -> str:
    """``steps 3-10``, or how many and from where to where if some are left out."""
    if not steps:
        return "no timed step"
    if len(steps) == 1:
        return f"step {steps[0]}"
    low, high = min(steps), max(steps)
    whole = len(set(steps)) == high - low + 1
    return f"steps {low}-{high}" if whole else f"{len(steps)} steps of {low}-{high}"


def window_text(time: Time) -> str:
    """What was measured, where that is not the steps as a recorder marked them; else empty."""
    window = time.window
    if window is None:
        return ""
    if window.policy is WindowPolicy.TRACE:
        return "measured: the whole recording as one stretch (--window trace)"
    outside = window.pre_window_ns
    left_out = f"; {format_ns(outside)} of device work outside the steps, left out" if outside else ""
    if window.source == _MARKED:
        return left_out.removeprefix("; ")
    if window.source == _NO_STEPS:
        return f"measured: the whole trace as one step, since it marks none{left_out}"
    return printable(f"measured: steps by {window.source}{left_out}")
