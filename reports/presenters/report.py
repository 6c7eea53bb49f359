"""The full report as a page: the answer, then what it rests on, what is not known, and the run."""

from zprof.model.report import Report
from zprof.reports.page import Page
from zprof.reports.presenters.communication import communication_section
from zprof.reports.presenters.comparison import difference_section, run_section
from zprof.reports.presenters.findings import finding_section, gap_section
from zprof.reports.presenters.head import head_blocks
from zprof.reports.presenters.ledger import ledger_section
from zprof.reports.presenters.memory import memory_section
from zprof.reports.presenters.memory_detail import device_section, memory_detail_section
from zprof.reports.presenters.ranks import rank_section
from zprof.reports.presenters.second_opinion import second_opinion_section
from zprof.reports.presenters.time_detail import time_detail_section
from zprof.reports.presenters.timeline import timeline_section
from zprof.reports.presenters.whatif import outlook_sections


def report_page(report: Report) -> Page:
    """Return all sections that have something to say.

    Details of time are part of the short outputs if the report has nothing of memory, and the other way
    round.
    """
    has_time, has_memory = bool(report.time.per_rank), bool(report.memory.per_rank)
    return Page(
        kind="zprof report",
        subject=report.run.name,
        head=head_blocks(report),
        sections=(
            *finding_section(report),
            *ledger_section(report),
            *memory_section(report, with_largest=has_time),
            *timeline_section(report),
            *rank_section(report),
            *communication_section(report),
            *difference_section(report),
            *time_detail_section(report, detail=has_memory),
            *memory_detail_section(report, detail=has_time),
            *device_section(report, detail=has_time),
            *second_opinion_section(report),
            *outlook_sections(report),
            *gap_section(report.gaps),
            *run_section(report),
        ),
        made_by=f"zprof {report.zprof_version}, {report.schema}",
        data_command="zprof report RUN -f json",
    )
