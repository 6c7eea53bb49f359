"""OLD: the gaps of rules that are no records yet."""

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.time import host_time
from zprof.model.findings import Cause
from zprof.model.gaps import Gap
from zprof.rules.rule import untested_gap


def find_missing_host_gap(analysis: RunAnalysis, cause: Cause) -> Gap | None:
    """OLD."""
    missing = host_time.find_missing_host(analysis)
    return untested_gap(cause, missing.reason, missing.remedy) if missing else None


def find_single_occurrence_gap(
    analysis: RunAnalysis, cause: Cause, min_ratio: float, *columns: str, what: str = ""
) -> Gap | None:
    """OLD."""
    missing = host_time.find_single_occurrence(analysis, min_ratio, *columns, what=what)
    return untested_gap(cause, missing.reason, missing.remedy) if missing else None
