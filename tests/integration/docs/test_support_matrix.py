"""The support matrix names programs of the bed, and all of them."""

import re

from docs.tools.examples import ROOT
from tests.programs.bed import list_cells

PAGE = ROOT / "docs/frameworks/index.md"


def test_each_cell_of_the_matrix_is_a_program_of_the_bed() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.count("|") == 7]
    named = {name for row in rows for name in re.findall(r"`([^`]+)`", row.rsplit("|", 2)[-2])}
    assert named == {cell.name for cell in list_cells()}
