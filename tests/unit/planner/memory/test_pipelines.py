"""Pipelines' worst device, by hand: two stages or four, bytes of units that are easy to sum."""

from dataclasses import replace

import pytest

from zprof.model.job import Batch, Degrees, ElementBytes, Job, Residual, Shape, Unit
from zprof.model.plan import Scheme, Term
from zprof.model.tenants import Tenant
from zprof.planner.memory.closed_forms import pick_highest_moment, sum_known_bytes
from zprof.planner.memory.pipelines import has_unit_bytes, pipeline_terms, stage_bytes


def block(name: str, *, saved: int = 10_000) -> Unit:
    return Unit(
        name=name,
        elements=100,
        saved_bytes=saved,
        checkpoint_bytes=1_000,
        forward_work_bytes=50,
        backward_work_bytes=70,
    )


ROOT = Unit(
    name="root",
    elements=30,
    encloses=True,
    saved_bytes=4_000,
    checkpoint_bytes=4_000,
    forward_work_bytes=90,
    backward_work_bytes=60,
)
JOB = Job(
    parameters=430,
    units=(ROOT, *(block(f"block{n}") for n in range(4))),
    degrees=Degrees(pp=2, mp=2),
    batch=Batch(samples=1, sequence=8, micro_batches=6),
)
CHECKPOINTED = replace(JOB, residual=Residual(checkpointing=True))


def sizes(job: Job, scheme: Scheme) -> dict[str, int | None]:
    terms, _ = pipeline_terms(job, scheme)
    return {term.sub: term.bytes for term in terms}


def test_gpipe_keeps_all_micro_batches_and_the_loss() -> None:
    assert sizes(JOB, Scheme.GPIPE) == {
        "weight": 2 * 230,
        "grad": 2 * 230,
        "state": 12 * 230,
        "in_flight": 6 * (2 * 10_000 + 4_000),
        "op_output": 90,
    }


def test_gpipe_checkpointed_keeps_the_inputs_and_one_micro_batch() -> None:
    assert sizes(CHECKPOINTED, Scheme.GPIPE)["in_flight"] == 6 * 1_000 + 24_000
    split = replace(JOB, residual=Residual(checkpointing=True, partition=True))
    assert sizes(split, Scheme.GPIPE)["in_flight"] == 6 * 500 + 24_000
    away = replace(JOB, residual=Residual(checkpointing=True, partition=True, offload=True))
    assert sizes(away, Scheme.GPIPE)["in_flight"] == 24_000


def test_pipedreams_first_stage_stashes_weights_and_two_micro_batches() -> None:
    assert sizes(JOB, Scheme.PIPEDREAM) == {
        "weight": 2 * 230,
        "grad": 2 * 230,
        "state": 12 * 230,
        "stashed_versions": 2 * 230,
        "in_flight": 2 * 2 * 10_000,
        "op_output": 70,
    }
    light = replace(CHECKPOINTED, units=(replace(ROOT, saved_bytes=0), *JOB.units[1:]))
    assert sizes(light, Scheme.PIPEDREAM)["in_flight"] == 2 * 2 * 1_000 + 10_000
    assert sizes(CHECKPOINTED, Scheme.PIPEDREAM)["in_flight"] == 2 * 1_000 + 10_000 + 4_000


def test_pipedreams_worst_stage_is_the_last_where_the_loss_is_large() -> None:
    heavy = replace(ROOT, saved_bytes=10**6)
    job = replace(JOB, units=(heavy, *JOB.units[1:]))
    last = sizes(job, Scheme.PIPEDREAM)
    assert "stashed_versions" not in last
    assert last["in_flight"] == 20_000 + 10**6


def test_one_stage_is_no_pipeline() -> None:
    alone = replace(JOB, degrees=Degrees(pp=1))
    assert sizes(alone, Scheme.PIPEDREAM)["in_flight"] == 44_000
    assert "stashed_versions" not in sizes(alone, Scheme.PIPEDREAM)


def test_stages_are_cut_at_units() -> None:
    uneven = (ROOT, block("a"), block("b"), block("c", saved=90_000), block("d"))
    stage = stage_bytes(replace(JOB, units=uneven), with_head=False)
    assert stage is not None
    assert (stage.saved, stage.largest_saved, stage.checkpoints, stage.input) == (
        100_000,
        90_000,
        2_000,
        1_000,
    )


def test_by_the_paper_where_units_do_not_know() -> None:
    job = Job(
        parameters=10**6,
        shape=Shape(layers=8, hidden=10),
        degrees=Degrees(pp=4),
        batch=Batch(samples=3, sequence=5, micro_batches=7),
        element_bytes=ElementBytes(gradient_copy=0),
    )
    row = 10 * 15 * 2
    assert sizes(job, Scheme.GPIPE)["in_flight"] == 7 * 2 * 12 * row
    assert sizes(job, Scheme.PIPEDREAM)["in_flight"] == 4 * 2 * 12 * row
    again = replace(job, residual=Residual(checkpointing=True))
    assert sizes(again, Scheme.GPIPE)["in_flight"] == 7 * row + 2 * 12 * row
    assert sizes(again, Scheme.PIPEDREAM)["in_flight"] == 4 * 2 * row + 12 * row


def test_unknown_where_there_is_no_batch() -> None:
    job = Job(parameters=8_000, degrees=Degrees(pp=4))
    for scheme, versions in ((Scheme.GPIPE, 1), (Scheme.PIPEDREAM, 4)):
        terms, _ = pipeline_terms(job, scheme)
        assert sum_known_bytes(terms) == 2_000 * (14 + 2 * versions)
        assert [term.tenant for term in terms if term.bytes is None] == [
            Tenant.ACTIVATIONS,
            Tenant.TEMPORARY_BUFFERS,
        ]


def test_the_optimizer_may_be_the_highest_moment() -> None:
    small = tuple(
        replace(unit, saved_bytes=1, forward_work_bytes=0, backward_work_bytes=0) for unit in JOB.units
    )
    terms, peak_at = pipeline_terms(replace(JOB, units=small), Scheme.GPIPE)
    assert peak_at == "optimizer"
    assert {term.sub: term.bytes for term in terms}["optimizer"] == 4 * 100
    assert "in_flight" not in {term.sub for term in terms}


@pytest.mark.parametrize(
    "field", ["saved_bytes", "checkpoint_bytes", "forward_work_bytes", "backward_work_bytes"]
)
def test_units_know_all_their_bytes_or_not(field: str) -> None:
    assert has_unit_bytes(JOB.units)
    assert not has_unit_bytes(())
    assert not has_unit_bytes((*JOB.units, replace(ROOT, **{field: None})))


def term(sub: str, size: int | None) -> Term:
    return Term(tenant=Tenant.ACTIVATIONS, sub=sub, bytes=size, assumption="")


def test_an_unknown_term_of_a_lower_moment_stays() -> None:
    """Else the sum of a moment that is known in full would pass for the peak."""
    terms, at = pick_highest_moment(
        {"backward": (term("a", 3), term("b", None)), "optimizer": (term("a", 5),)}
    )
    assert (at, [each.sub for each in terms], sum_known_bytes(terms)) == ("optimizer", ["a", "b"], 5)
    terms, at = pick_highest_moment(
        {"backward": (term("a", 5), term("b", None)), "optimizer": (term("a", 5),)}
    )
    assert (at, [each.sub for each in terms]) == ("backward", ["a", "b"])
