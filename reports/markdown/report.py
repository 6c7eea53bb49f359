"""The report as Markdown: the answer first, then what it rests on, unknowns last; under 65,000 characters."""

from zprof.model.report import Report
from zprof.reports.markdown.collectives import collective_blocks
from zprof.reports.markdown.differences import difference_blocks
from zprof.reports.markdown.document import Part, joined
from zprof.reports.markdown.findings import finding_blocks, gap_blocks
from zprof.reports.markdown.head import foot, head
from zprof.reports.markdown.memory import memory_blocks, memory_detail_blocks
from zprof.reports.markdown.outlook import outlook_blocks, outlook_detail_blocks
from zprof.reports.markdown.time import ledger_blocks, rank_blocks


def render(report: Report) -> str:
    """The whole report; parts without rows are left out."""
    parts = [
        Part(blocks=head(report)),
        Part(title="Where the time goes", blocks=ledger_blocks(report)),
        Part(title="Memory at each rank's peak", blocks=memory_blocks(report)),
        Part(title="What else differs", blocks=difference_blocks(report)),
        Part(title="Findings", blocks=finding_blocks(report.findings)),
        Part(title="What if", blocks=outlook_blocks(report)),
        Part(title="Not measured", blocks=gap_blocks(report.gaps)),
        Part(title="Collectives", blocks=collective_blocks(report)),
        Part(title="Ranks", blocks=rank_blocks(report)),
        Part(title="Memory in detail", blocks=memory_detail_blocks(report), is_folded=True),
        Part(title="What if, term by term", blocks=outlook_detail_blocks(report), is_folded=True),
    ]
    return joined([part for part in parts if part.blocks], foot(report))
