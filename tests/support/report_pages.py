"""Pages of every kind made by hand, and what a reader sees of each output."""

import html as html_escapes
import re
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from msgspec.structs import replace

from tests.support import diagnosis_reports, plans
from tests.support.hang_lines import write_default, write_signal
from tests.support.hung_runs import import_hung_job
from tests.support.judged_checks import CHECKS
from tests.support.markdown_reading import visible
from tests.support.pipelines import order_1f1b, play, write_timeline
from tests.support.reports import memory_only, slower, trace
from tests.support.snapshot_reports import snapshot_pair, snapshot_report
from zprof.analysis.analysis import analyse
from zprof.analysis.compare.rows import build_finding_section, build_memory_section, build_time_sections
from zprof.collectors.read.imports.import_paths import import_paths
from zprof.diagnosis.diagnose import diagnose
from zprof.model.comparison import Setting, SideBySide
from zprof.model.report import Report
from zprof.reports.formats import render_page_html, render_page_markdown, render_page_text
from zprof.reports.page import Block, Page
from zprof.reports.pages.check import build_check_page
from zprof.reports.pages.compare import build_compare_page
from zprof.reports.pages.diagnosis import build_diagnosis_page
from zprof.reports.pages.plan import build_plan_page
from zprof.reports.pages.report import build_report_page
from zprof.reports.pages.whatif import build_whatif_page
from zprof.run.reader import Run

SETTINGS = (
    Setting(where="run", name="world_size", a="2", b="2"),
    Setting(where="training", name="stage", a="0", b="3"),
    Setting(where="environment", name="NCCL_ALGO", a="Ring", b=None),
    Setting(where="training", name="modelled", a="nothing", b="a link of 50.0 MB/s with a latency of 50 µs"),
)


def both_runs() -> SideBySide:
    """Return two runs side by side, made from a report against a baseline."""
    b = diagnosis_reports.against_baseline()
    assert b.comparison is not None
    assert b.comparison.baseline_run is not None
    time = replace(
        b.time, per_rank=b.comparison.baseline_time, collectives=b.time.collectives[:1], blame=None, fits=()
    )
    memory = replace(b.memory, per_rank=b.comparison.baseline_memory)
    a = replace(b, time=time, memory=memory, run=b.comparison.baseline_run, findings=(), volume=None)
    return SideBySide(
        zprof_version="0",
        a=a.run,
        b=b.run,
        verdict=b.verdict,
        comparison=b.comparison,
        sections=(*build_time_sections(a, b), build_memory_section(a, b), build_finding_section(a, b)),
        settings=SETTINGS,
    )


@cache
def hung_report() -> Report:
    """The report of a job that hangs, from simulated dumps."""
    with tempfile.TemporaryDirectory() as name:
        return diagnose(analyse(Run(import_hung_job(Path(name)))))


@cache
def logged_report() -> Report:
    """The report of a job that hangs, from the lines of three of its ranks."""
    with tempfile.TemporaryDirectory() as name:
        log = Path(name, "job.log")
        log.write_text(write_default(0, 212) + write_default(2, 212) + write_signal(1, 0, 211, 211))
        return diagnose(analyse(Run(import_paths([log], Path(name, "job.zprof")).run)))


@cache
def slowdown_report() -> Report:
    """The report of a pipeline of four stages and four replicas with one slow worker, from its timeline."""
    rows = play(
        [order_1f1b(4, 6, stage) for stage in range(4)],
        lambda replica, step, kind, chunk, number: (
            (1.8 if (replica, chunk) == (2, 1) else 1.0) * (20.0 if kind == "forward" else 40.0)
        ),
        replicas=4,
        steps=3,
        with_transfers=True,
    )
    with tempfile.TemporaryDirectory() as name:
        path = write_timeline(Path(name, "job.parquet"), rows)
        return diagnose(Run(import_paths([path], Path(name, "job.zprof")).run))


def _report(make: Callable[[], Report]) -> Callable[[], Page]:
    return lambda: build_report_page(replace(make(), zprof_version="0.0.0"))


#: A page of each kind; of reports one with both sides, and one with each.
PAGES: dict[str, Callable[[], Page]] = {
    "report": _report(slower),
    "report_memory": _report(memory_only),
    "report_time": _report(trace),
    "diagnosis": lambda: build_diagnosis_page(
        replace(diagnosis_reports.against_baseline(), zprof_version="0.0.0")
    ),
    "hang": lambda: build_diagnosis_page(replace(hung_report(), zprof_version="0.0.0")),
    "hang_log": lambda: build_diagnosis_page(replace(logged_report(), zprof_version="0.0.0")),
    "plan": lambda: build_plan_page(plans.full()),
    "plan_search": lambda: build_plan_page(plans.searched()),
    "plan_too_large": lambda: build_plan_page(plans.too_large()),
    "whatif": lambda: build_whatif_page(plans.whatif()),
    "check": lambda: build_check_page(CHECKS["failed"], replace(slower(), zprof_version="0.0.0")),
    "compare": lambda: build_compare_page(both_runs()),
    "slowdown": _report(slowdown_report),
    "snapshot": lambda: build_diagnosis_page(replace(snapshot_report(), zprof_version="0.0.0")),
    "snapshot_report": lambda: build_report_page(replace(snapshot_report(), zprof_version="0.0.0")),
    "snapshot_compare": lambda: build_compare_page(replace(snapshot_pair(), zprof_version="0.0.0")),
}
RENDERERS: dict[str, Callable[[Page], str]] = {
    "txt": render_page_text,
    "md": render_page_markdown,
    "html": render_page_html,
}


def seen(output: str, document: str) -> str:
    """Return what a reader sees of a document, on one line."""
    if output == "md":
        document = visible(document)
    elif output == "html":
        document = re.sub(r"<(script|style)\b.*?</\1>", " ", document, flags=re.DOTALL)
        document = html_escapes.unescape(re.sub(r"<[^>]+>", " ", document))
    return " ".join(document.split())


def shown(output: str, page: Page) -> str:
    """Return what a reader sees of a page in one output."""
    return seen(output, RENDERERS[output](page))


def blocks_of(page: Page, kind: type[Block]) -> list[Block]:  # type: ignore[valid-type]
    """Return the blocks of one kind, of the head and of all sections."""
    every = [*page.head, *(block for section in page.sections for block in section.blocks)]
    return [block for block in every if isinstance(block, kind)]
