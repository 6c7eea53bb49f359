"""The report as the values of a page: the answer first, then what it rests on, unknowns and the run last."""

from collections.abc import Callable, Sequence

from zprof.model.report import Report
from zprof.reports.html import words
from zprof.reports.html.blocks import Block, Page, Section
from zprof.reports.html.sections.communication import communication
from zprof.reports.html.sections.communication_detail import communication_detail
from zprof.reports.html.sections.findings import findings
from zprof.reports.html.sections.gaps import gaps
from zprof.reports.html.sections.head import head
from zprof.reports.html.sections.ledger import ledger
from zprof.reports.html.sections.memory import memory
from zprof.reports.html.sections.memory_detail import memory_detail
from zprof.reports.html.sections.memory_device import memory_device
from zprof.reports.html.sections.outlook import outlook
from zprof.reports.html.sections.ranks import ranks
from zprof.reports.html.sections.run_facts import run_facts
from zprof.reports.html.sections.second_opinion import second_opinion
from zprof.reports.html.sections.timeline import timeline

#: A section: its place, its title, what it says in a line, and what fills it.
_Part = tuple[str, str, str, Callable[[Report], Sequence[Block]]]
_PARTS: tuple[_Part, ...] = (
    ("findings", "Findings", "What costs time or memory, how we know, what to change.", findings),
    ("ledger", "Where a step goes", "The terms sum to the step.", ledger),
    ("memory", "Memory", "Who owns the bytes at each rank's peak.", memory),
    (
        "timeline",
        "Memory over time",
        "Live bytes by tenant; a point is the highest of its stretch.",
        timeline,
    ),
    ("communication", "Communication", "Collectives by kind and group.", communication),
    ("ranks", "Ranks", "Who was late, and who paid for it.", ranks),
    (
        "communication-detail",
        "Communication in detail",
        "By unit and message size, the link and the clocks.",
        communication_detail,
    ),
    (
        "memory-detail",
        "Memory in detail",
        "By kind, phase and module; the largest allocations; the law of the stage.",
        memory_detail,
    ),
    (
        "device",
        "Memory beside the allocator",
        "The whole device, the host, before the first step.",
        memory_device,
    ),
    ("second-opinion", "Second opinion", "What another program makes of the same ranks.", second_opinion),
    ("outlook", "What if", "What single changes would make of this run; ~ is predicted.", outlook),
    ("gaps", "Not measured", "Unknown is never zero: what could not be measured, and why.", gaps),
    ("run", "The run", "What was recorded, and by what.", run_facts),
)


def page(report: Report) -> Page:
    """All sections that have something to say."""
    made = [(part, tuple(part[3](report))) for part in _PARTS]
    return Page(
        head=head(report),
        sections=tuple(
            Section(anchor=anchor, title=title, lead=lead, blocks=blocks)
            for (anchor, title, lead, _), blocks in made
            if blocks
        ),
        made_by=words.name(f"zprof {report.zprof_version}, {report.schema}"),
    )
