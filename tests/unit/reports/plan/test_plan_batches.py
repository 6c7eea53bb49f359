"""What columns share and what is each one's own: micro-batches, and how much of the device is left."""

from dataclasses import replace

from tests.support import plans
from zprof.model.planning.job import Batch, Degrees
from zprof.model.planning.plan import PIPELINES, Plan, Scheme
from zprof.planner.plan import TIGHT_RATIO
from zprof.reports.plan.grid import Grid
from zprof.reports.plan.head import answers, facts, key_figures
from zprof.reports.plan.memory import memory_grid
from zprof.reports.plan.time import degree_grid, step_grid


def with_micro_batches(*counts: int) -> Plan:
    plan = plans.full()
    rows = [replace(row, micro_batches=n) for row, n in zip(plan.rows, counts, strict=True)]
    job = replace(plan.job, batch=Batch(samples=4, sequence=1024, micro_batches=2))
    return replace(plan, job=job, rows=tuple(rows))


def cells(grid: Grid, name: str) -> tuple[str, ...]:
    return next(row.cells for row in grid.rows if row.name.startswith(name))


def test_micro_batches_of_a_replica_stand_under_the_degrees() -> None:
    grid = degree_grid(with_micro_batches(2, 2, 2, 2, 32, 32, 4))
    assert cells(grid, "micro-batches") == ("2", "2", "2", "2", "32", "32", "4")
    assert "as far as whole micro-batches allow" in grid.notes[0]
    assert not degree_grid(with_micro_batches(*[2] * 7)).notes


def test_the_batch_says_for_which_columns_it_holds() -> None:
    def batch(*counts: int) -> str:
        return dict(facts(with_micro_batches(*counts)))["batch"]

    assert "2 micro-batches a step in the columns DP and ZeRO; other" in batch(2, 2, 2, 2, 32, 32, 4)
    assert "a step in the columns GPipe and PipeDream;" in batch(1, 1, 1, 1, 8, 2, 2)
    assert "a step as you spread it; other" in batch(1, 1, 1, 1, 8, 4, 4)
    assert batch(*[2] * 7).endswith("(4,096), 2 micro-batches a step")


def test_tight_is_said_in_its_row_in_the_headline_and_in_a_note() -> None:
    plan = plans.full()
    tight = tuple(replace(row, fits=True, tight=row.scheme is Scheme.ZERO_2) for row in plan.rows)
    made = replace(plan, rows=tight)
    grid = memory_grid(made)
    assert cells(grid, "fits")[:4] == ("yes", "yes", "tight", "yes")
    assert any(said.endswith("(tight: ZeRO-2).") for said in answers(made))
    assert [note.rpartition(" ")[2] for _, _, note in key_figures(made)].count("tight") == 1
    assert TIGHT_RATIO == 0.1, "as the note says"
    assert any(note.startswith("tight: ") and "a tenth of the device" in note for note in grid.notes)
    assert any("NCCL's buffers and fragmentation are not in the peak" in note for note in grid.notes)


def test_one_data_parallel_rank_is_said_to_shard_nothing() -> None:
    def said(dp: int) -> bool:
        plan = plans.full()
        rows = tuple(replace(row, degrees=Degrees(dp=dp)) for row in plan.rows)
        return any("ZeRO shards nothing" in note for note in memory_grid(replace(plan, rows=rows)).notes)

    assert said(1)
    assert not said(2)


def test_a_pipeline_says_whose_compute_it_has() -> None:
    [grid] = step_grid(plans.full())
    [note] = grid.notes
    assert note.startswith("GPipe and PipeDream: compute is that of the slowest stage")
    without = tuple(row for row in plans.full().rows if row.scheme not in PIPELINES)
    [grid] = step_grid(replace(plans.full(), rows=without))
    assert not grid.notes


def test_no_model_that_fits_is_no_model_of_size_0() -> None:
    plan = plans.full()
    rows = tuple(replace(row, largest_parameters=0 if row.stage == 0 else 10**9) for row in plan.rows)
    grid = memory_grid(replace(plan, rows=rows))
    assert cells(grid, "largest")[:2] == ("-", "1.0B")
    assert any("with this batch not even the smallest fits" in note for note in grid.notes)
    assert any("of its layers with another" in note for note in grid.notes)
    assert not any("not even the smallest" in note for note in memory_grid(plan).notes)


def test_frozen_parameters_are_shown() -> None:
    plan = plans.full()
    assert "frozen" not in dict(facts(plan))["model"]
    frozen = replace(plan, job=replace(plan.job, frozen_parameters=1_500_000_000))
    assert "7,500,000,000 parameters, 1,500,000,000 of them frozen: 36" in dict(facts(frozen))["model"]


def test_what_does_not_fit_is_not_tight() -> None:
    plan = plans.full()
    rows = tuple(replace(row, fits=False, tight=False) for row in plan.rows)
    notes = memory_grid(replace(plan, rows=rows)).notes
    assert not any("tight" in note or "NCCL" in note for note in notes)
