"""Tables of one rank's memory: their rows are leaves of that rank, and what they open is all of it."""

import re
from dataclasses import replace

import pytest

from tests.support.full_memories import by_rule, full_memory
from tests.support.memories import HOSTILE, MIB, memory_of
from tests.support.tui_memory import on_a_device, with_memory
from zprof.model.memory import Allocation, FormulaCheck, Memory
from zprof.model.tenants import Tenant
from zprof.tui.figures import Figure
from zprof.tui.metric_help.metric import parse_indices
from zprof.tui.metric_help.registry import find_help
from zprof.tui.opening import describe_allocation, describe_formula_check
from zprof.tui.presenters.memory import build_stacks
from zprof.tui.presenters.memory_tables import (
    build_device_table,
    build_formula_table,
    build_modules_table,
    build_phases_table,
    build_top_table,
    find_telling_frame,
)
from zprof.tui.presenters.memory_timeline import build_point_table, find_curve
from zprof.tui.session import LoadedRun, Selection
from zprof.tui.tables import Mark, Opens, Table, select_columns

MAKERS = (build_top_table, build_formula_table, build_phases_table, build_modules_table, build_device_table)


def all_figures(loaded: LoadedRun, rank: int) -> list[Figure]:
    made = [make(loaded, rank) for make in MAKERS]
    figures = [number for table in made if table is not None for number in table.figures()]
    drawn, curve = build_stacks(loaded, Selection(rank=rank)), find_curve(loaded, rank)
    assert drawn is not None
    assert curve is not None
    notes = [cell for note in (drawn.total, *drawn.notes) for cell in note]
    figures += [drawn.whole, *drawn.legend.figures(), *(entry.peak for entry in drawn.bars)]
    return [*figures, *build_point_table(curve, 1).figures(), *(c for c in notes if isinstance(c, Figure))]


def texts(table: Table) -> list[list[str]]:
    return [[cell.text for cell in line.cells] for line in table.lines]


def test_every_number_of_the_screen_has_a_meaning(alone: LoadedRun) -> None:
    figures = all_figures(with_memory(alone, on_a_device()), 1)
    assert len(figures) > 100
    for number in figures:
        assert number.leaves
        assert all(find_help(leaf) for leaf in number.leaves), number.leaves


def test_numbers_of_a_rank_are_leaves_of_that_rank(alone: LoadedRun) -> None:
    full = with_memory(alone, on_a_device())
    for loaded, rank in ((full, 0), (full, 1), (alone, 0), (alone, 1)):
        for make in MAKERS:
            table = make(loaded, rank)
            for line in table.lines if table else ():
                leaves = [leaf for cell in line.cells if isinstance(cell, Figure) for leaf in cell.leaves]
                places = [re.fullmatch(r"memory\.(\w+)\[(\d+)\]\..+", leaf) for leaf in leaves]
                found = [(place[1], int(place[2])) for place in places if place]
                assert len(found) == len(leaves)
                assert {getattr(loaded.report.memory, name)[at].rank for name, at in found} <= {rank}
                if line.opens in (Opens.ALLOCATION, Opens.LAW):
                    assert {at for _, at in found} == {line.target}


def test_rows_behind_numbers_are_of_their_rank(alone: LoadedRun) -> None:
    full = with_memory(alone, on_a_device())
    for number in all_figures(full, 1):
        meaning = find_help(number.leaves[0])
        if meaning is not None and meaning.rows is not None:
            rows = meaning.rows(full.analysis, parse_indices(number.leaves[0]))
            assert len(rows) <= 20
    kinds = find_help("memory.per_rank[1].tenants.activations")
    assert kinds is not None
    assert kinds.rows is not None
    assert kinds.rows(full.analysis, (1,)).to_dict("records") == [
        {"tenant": "activations", "sub": "saved", "bytes": 24 * MIB, "basis": "tagged"}
    ]
    facts = find_help("memory.laws[0].law_bytes")
    assert facts is not None
    assert facts.rows is not None
    assert facts.rows(full.analysis, (0,))["stage"].tolist() == [full.analysis.training.stage]


def test_only_allocations_of_the_rank_and_each_opens_its_stack(alone: LoadedRun) -> None:
    loaded = with_memory(alone, full_memory())
    line = build_top_table(loaded, 1).lines[0]
    assert (line.opens, line.target) == (Opens.ALLOCATION, 1)
    assert len(build_top_table(loaded, 1).lines) == 1
    title, text = describe_allocation(loaded, 1)
    assert title == "6.0 MiB activations: saved"
    frames = loaded.report.memory.top[1].stack
    assert [row.strip() for row in text.splitlines()[-len(frames) :]] == list(frames)
    assert "aten::mm" in text


def test_the_telling_frame_is_the_innermost_of_the_program() -> None:
    torch = "/venv/lib/python3.11/site-packages/torch/nn/linear.py:1 forward"
    entry = Allocation(
        rank=0, bytes=1, tenant="activations", sub="", module="", stack=(torch, "/a/b/m.py:2 f")
    )
    assert find_telling_frame(entry) == "a/b/m.py:2 f"
    assert find_telling_frame(replace(entry, stack=(torch,))) == "torch/nn/linear.py:1 forward"
    assert find_telling_frame(replace(entry, stack=())) == ""


def test_an_allocation_without_a_stack_says_why(alone: LoadedRun) -> None:
    entry = Allocation(rank=0, bytes=5, tenant="untagged", sub="", module="")
    loaded = with_memory(alone, replace(full_memory(), top=(entry,)))
    assert "(no stack)" in texts(build_top_table(loaded, 0))[0]
    assert "made before it was watched" in describe_allocation(loaded, 0)[1]


def test_names_from_the_run_do_not_steer(alone: LoadedRun) -> None:
    loaded = with_memory(alone, full_memory(HOSTILE))
    for text in describe_allocation(loaded, 1):
        assert not set(text) & set("\x1b\x07\r\u202e\u200d\u2028")
    said = " ".join(
        cell for make in MAKERS if (table := make(loaded, 1)) for row in texts(table) for cell in row
    )
    assert "\\x1b[2J" in said
    assert not set(said) & set("\x1b\x07\r\n\u202e\u200d\u2028")


def test_guessed_owners_are_marked(alone: LoadedRun) -> None:
    loaded = with_memory(alone, by_rule(full_memory()))
    assert texts(build_top_table(loaded, 1))[0][2] == "~activations"


def test_the_law_sums_and_what_is_not_explained_is_doubtful(alone: LoadedRun) -> None:
    law = FormulaCheck(
        rank=0,
        tenant=Tenant.GRADIENTS,
        law_bytes=4 * MIB,
        measured_bytes=9 * MIB,
        padding_bytes=MIB,
        scalar_bytes=0,
        unexplained_bytes=4 * MIB,
        cause="twice the law: gradients and a full copy",
    )
    loaded = with_memory(alone, replace(full_memory(), laws=(law,)))
    table = build_formula_table(loaded, 0)
    assert texts(table) == [
        ["gradients", "4.0 MiB", "9.0 MiB", "1.0 MiB", "0 B", "+4.0 MiB", law.cause],
    ]
    assert table.lines[0].cells[-1].mark is Mark.DOUBTFUL  # type: ignore[union-attr]
    title, text = describe_formula_check(loaded, 0)
    assert title == "gradients of rank 0 against the law"
    assert law.cause in text
    assert "p Psi + (g + k) Psi / N" in text
    assert f"{loaded.analysis.training.stage}" in text


def test_phases_before_the_first_step_and_of_the_host(alone: LoadedRun) -> None:
    rows = texts(build_phases_table(with_memory(alone, full_memory()), 1))
    assert [row[0] for row in rows] == ["forward", "backward", "optimizer", "before step 1", "host memory"]
    assert rows[-1][2] == "5.0 MiB"


def test_modules_are_in_the_order_of_what_they_hold_at_the_peak(alone: LoadedRun) -> None:
    memory = full_memory()
    turned = replace(memory, modules=memory.modules[::-1])
    rows = texts(build_modules_table(with_memory(alone, turned), 1))
    assert [row[0] for row in rows] == ["(the whole model)", "blocks.3.mlp"]


def test_terms_of_the_device_sum_and_unknown_ones_are_left_out(alone: LoadedRun) -> None:
    table = build_device_table(with_memory(alone, on_a_device()), 1)
    assert table is not None
    sizes = {line.key: line.cells[1].value for line in table.lines}  # type: ignore[union-attr]
    inside = ("live", "rounding", "awaiting_free", "split", "free_segments", "private_pools")
    assert sum(sizes[f"{name}_bytes"] or 0 for name in inside) == sizes["reserved_bytes"]
    assert "other_processes_bytes" not in sizes
    assert build_device_table(alone, 0) is None


def test_a_table_without_rows_says_what_helps(alone: LoadedRun) -> None:
    plain = memory_of(3)
    loaded = with_memory(alone, Memory(per_rank=plain.per_rank))
    for make in (build_top_table, build_formula_table, build_phases_table, build_modules_table):
        table = make(loaded, 0)
        assert "what helps" in " ".join(row[0] for row in texts(table))
        assert {line.opens for line in table.lines} == {Opens.GAP}


@pytest.mark.parametrize("width", [76, 78, 160])
def test_the_law_is_a_sum_of_columns_in_any_width(alone: LoadedRun, width: int) -> None:
    """It takes half a screen of 160 columns: no term of the sum is left out there."""
    table = build_formula_table(with_memory(alone, full_memory()), 0)
    shown = {table.columns[place].title for place in select_columns(table, width)}
    assert {"law", "measured", "padding", "counters", "unexplained"} <= shown
    assert table.note == "each state where it is complete, not at the peak"


def test_modules_are_called_as_on_other_screens_without_wrappers(alone: LoadedRun) -> None:
    names = {"module.blocks.5": "blocks.5", "_orig_mod.module.head": "head", "modules.a": "modules.a"}
    memory = full_memory()
    for raw, name in names.items():
        entry = replace(memory.top[0], rank=0, module=raw)
        peak = replace(memory.modules[0], rank=0, module=raw)
        loaded = with_memory(alone, replace(memory, top=(entry,), modules=(peak,)))
        assert texts(build_top_table(loaded, 0))[0][0] == name
        assert texts(build_modules_table(loaded, 0))[0][0] == name
        assert f"module    {name}" in describe_allocation(loaded, 0)[1]
    rows = tuple(replace(memory.modules[0], rank=0, module=module) for module in ("", "module"))
    shown = texts(build_modules_table(with_memory(alone, replace(memory, modules=rows)), 0))
    assert [row[0] for row in shown] == ["(the whole model)", "(the model in its wrapper)"]


def test_memory_of_no_module_says_its_kind(alone: LoadedRun) -> None:
    entry = replace(full_memory().top[0], rank=0, module="", sub="backend_scratch")
    for sub, name in (("backend_scratch", "(backend scratch)"), ("", "(no module)")):
        memory = replace(full_memory(), top=(replace(entry, sub=sub),))
        assert texts(build_top_table(with_memory(alone, memory), 0))[0][0] == name
