"""The report as HTML: one file that needs no network and no script to be read.

A Content-Security-Policy lets nothing be loaded, and runs only the scripts whose hashes it names.
"""

from zprof.model.report import Report
from zprof.reports.html.view import page


def render(report: Report) -> str:
    """The whole document."""
    from zprof.reports.html.document import document

    return document(page(report))
