"""Programs in which nothing is wrong: their steps are found, and nobody is accused."""

from pathlib import Path

import pytest

from benchmarks.healthy import INHERENT, STEPS
from tests.programs.bed import Cell, list_healthy_cells, record_cell

#: The others are recorded by test_programs.py.
OWN = ("optimizers", "pipeline", "experts", "tensor_or_context")
FAST = (
    "optimizers --form finder",
    "optimizers --form layers",
    "pipeline --schedule 1f1b",
    "tensor_or_context --split context",
)


@pytest.mark.ranks
@pytest.mark.parametrize(
    "cell",
    [
        pytest.param(cell, id=cell.name, marks=() if cell.name in FAST else pytest.mark.slow)
        for cell in list_healthy_cells()
        if cell.program in OWN
    ],
)
def test_steps_are_the_programs_and_nobody_is_accused(cell: Cell, tmp_path: Path) -> None:
    outcome = record_cell(cell, tmp_path, schedule=(), steps=STEPS)
    assert outcome.code == 0
    assert outcome.are_steps_right()
    # On a busy machine the recording may be disturbed, which is said, and is nothing that the program does.
    assert set(outcome.confident) <= {"measurement_artifact", *INHERENT.get(cell.name, ())}
