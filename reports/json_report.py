"""The report as JSON (schema ``zprof.report/1``): the leaves as they are, in ASCII."""

from zprof.model.json_tree import to_json
from zprof.model.report import Report


def render(report: Report) -> str:
    """The report as one indented JSON object; unknown numbers are null."""
    return to_json(report)
