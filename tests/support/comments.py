"""Checks as the comment of a pull request has them: both sides, and the cause of what failed."""

from msgspec.structs import replace

from tests.support.check_runs import Made
from tests.support.hostile_names import poisoned
from tests.support.judged_checks import BASE, CHECKS, RUN
from tests.support.reports import slower
from zprof.model.comparison import Check
from zprof.reports.formats import Checked


def checked(check: Check = CHECKS["failed"], run: Made = RUN, base: Made | None = BASE) -> Checked:
    """A check of a run, with the findings of a slow one."""
    return Checked(
        check=check,
        report=slower(),
        baseline=None if base is None else base.baseline,
        current=run.baseline,
        causes=slower().findings,
    )


def poisoned_check(name: str) -> Checked:
    """A check in which every name is ``name``; the names of tenants and terms are zprof's own."""
    kept = checked()
    return replace(
        kept,
        check=poisoned(kept.check, name),
        report=poisoned(kept.report, name),
        causes=poisoned(kept.causes, name),
    )
