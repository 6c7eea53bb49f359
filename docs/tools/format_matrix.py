"""Write the matrix of the files that zprof reads into README.md and docs/support.md, from their table.

python -m docs.tools.format_matrix
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from zprof.collectors.read.formats import FORMATS, Answer, Format

ROOT = Path(__file__).parents[2]
README, SUPPORT = ROOT / "README.md", ROOT / "docs/support.md"
_MATRIX = re.compile(r"(<!-- formats -->\n).*?(<!-- end of formats -->)", re.DOTALL)


def render_pages() -> Mapping[Path, str]:
    """Return each page with today's matrix in it."""
    matrices = {README: render_answers("docs/"), SUPPORT: render_matrix()}
    return {
        page: _MATRIX.sub(lambda match, text=text: match[1] + text + match[2], page.read_text("utf-8"))
        for page, text in matrices.items()
    }


def render_answers(prefix: str) -> str:
    """Return a table of the files by what they answer; links to the documentation begin with ``prefix``."""
    rows = []
    for answer in Answer:
        files = [_link(entry, prefix) for entry in FORMATS.values() if answer in entry.answers]
        rows.append([answer.value, "; ".join(files)])
    return _render_table(["answers", "files"], rows)


def render_matrix() -> str:
    """Return a table with a row for each kind of file, and on what reading it was tested."""
    rows = [
        [_link(entry, ""), *("yes" if answer in entry.answers else "" for answer in Answer), entry.tested]
        for entry in FORMATS.values()
        if entry.title
    ]
    return _render_table(["file", *(answer.value for answer in Answer), "tested on"], rows)


def _link(entry: Format, prefix: str) -> str:
    return f"[{entry.title}]({prefix}{entry.page})" if entry.page else entry.title


def _render_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in (heads, ["---"] * len(heads), *rows))


if __name__ == "__main__":
    for path, text in render_pages().items():
        path.write_text(text, encoding="utf-8")
