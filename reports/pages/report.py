"""The full report as a page: the answer, then what it rests on, what is not known, and the run."""

from zprof.model.cursor import Cursor
from zprof.model.report import Report
from zprof.reports.page import Page
from zprof.reports.pages.collectives import build_collective_section
from zprof.reports.pages.compare import build_difference_section, build_run_section
from zprof.reports.pages.endings import build_ending_section
from zprof.reports.pages.findings import build_finding_section, build_gap_section
from zprof.reports.pages.hang import build_hang_section
from zprof.reports.pages.head import build_head_blocks
from zprof.reports.pages.ledger import build_ledger_section
from zprof.reports.pages.memory import build_memory_detail_section, build_memory_section
from zprof.reports.pages.memory_allocations import build_stack_section
from zprof.reports.pages.memory_changes import build_group_change_section, build_rank_spread_section
from zprof.reports.pages.memory_device import build_device_section, build_out_of_memory_section
from zprof.reports.pages.memory_snapshots import build_history_sections
from zprof.reports.pages.memory_timeline import build_timeline_section
from zprof.reports.pages.ranks import build_rank_section
from zprof.reports.pages.second_opinion import build_second_opinion_section
from zprof.reports.pages.time_detail import build_time_detail_section
from zprof.reports.pages.whatif import build_outlook_sections


def build_report_page(report: Report) -> Page:
    """Return all sections that have something to say.

    Details of time are part of the short outputs if the report has nothing of memory, and the other way
    round.
    """
    has_time, has_memory = bool(report.time.per_rank), bool(report.memory.per_rank)
    return Page(
        kind="zprof report",
        subject=report.run.name,
        head=build_head_blocks(report),
        sections=(
            *build_ending_section(report),
            *build_finding_section(report),
            *build_hang_section(report),
            *build_ledger_section(report),
            *build_out_of_memory_section(report),
            *build_memory_section(report, with_largest=has_time),
            *build_group_change_section(Cursor(report).comparison),
            *build_history_sections(report),
            *build_rank_spread_section(report),
            *build_timeline_section(report),
            *build_stack_section(report),
            *build_rank_section(report),
            *build_collective_section(report),
            *build_difference_section(report),
            *build_time_detail_section(report, detail=has_memory),
            *build_memory_detail_section(report, detail=has_time),
            *build_device_section(report, detail=has_time),
            *build_second_opinion_section(report),
            *build_outlook_sections(report),
            *build_gap_section(report.gaps),
            *build_run_section(report),
        ),
        made_by=f"zprof {report.zprof_version}, {report.schema}",
        data_command="zprof report RUN -f json",
    )
