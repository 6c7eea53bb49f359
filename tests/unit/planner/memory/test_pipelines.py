"""Pipelines' worst device, by hand: two stages or four, bytes of units that are easy to sum."""

import pytest
from msgspec.structs import replace

from tests.support.planned_jobs import known_unit
from zprof.model.job import Batch, Degrees, ElementBytes, Job, ModelUnit, Residual, Shape
from zprof.model.plan import Scheme, Term
from zprof.model.tenants import Tenant
from zprof.planner.memory.closed_forms import pick_highest_moment, sum_known_bytes
from zprof.planner.memory.device_memory import make_pipeline_terms


def block(name: str, *, saved: int = 10_000) -> ModelUnit:
    return known_unit(name, 100, saved=saved, kept=1_000, forward=50, backward=70)


ROOT = known_unit("root", 30, encloses=True, saved=4_000, kept=4_000, forward=90, backward=60)
JOB = Job(
    parameters=430,
    units=(ROOT, *(block(f"block{n}") for n in range(4))),
    degrees=Degrees(pp=2, mp=2),
    batch=Batch(samples=1, sequence=8, micro_batches=6),
)
STATES = {"weight": 2 * 230, "grad": 2 * 230, "state": 12 * 230}


def sizes(job: Job, scheme: Scheme) -> dict[str, int | None]:
    return {term.sub: term.bytes for term in make_pipeline_terms(job, scheme)[0]}


def test_terms_of_both_pipelines() -> None:
    """GPipe keeps all micro-batches and the loss; PipeDream's first stage two of them and older weights."""
    gpipe = STATES | {"in_flight": 6 * (2 * 10_000 + 4_000), "op_output": 90}
    pipedream = STATES | {"stashed_versions": 2 * 230, "in_flight": 2 * 2 * 10_000, "op_output": 70}
    assert sizes(JOB, Scheme.GPIPE) == gpipe
    assert sizes(JOB, Scheme.PIPEDREAM) == pipedream


def with_root(saved: int, **residual: bool) -> Job:
    units = (replace(ROOT, saved_bytes=saved), *JOB.units[1:])
    return replace(JOB, units=units, residual=Residual(**residual))


@pytest.mark.parametrize(
    ("job", "scheme", "in_flight"),
    [
        (with_root(4_000, checkpointing=True), Scheme.GPIPE, 6 * 1_000 + 24_000),
        (with_root(4_000, checkpointing=True, partition=True), Scheme.GPIPE, 6 * 500 + 24_000),
        (with_root(4_000, checkpointing=True, partition=True, offload=True), Scheme.GPIPE, 24_000),
        (with_root(0, checkpointing=True), Scheme.PIPEDREAM, 2 * 2 * 1_000 + 10_000),
        (with_root(4_000, checkpointing=True), Scheme.PIPEDREAM, 2 * 1_000 + 10_000 + 4_000),
        (replace(JOB, degrees=Degrees(pp=1)), Scheme.PIPEDREAM, 44_000),
    ],
)
def test_activations_in_flight_on_the_worst_stage(job: Job, scheme: Scheme, in_flight: int) -> None:
    assert sizes(job, scheme)["in_flight"] == in_flight


def test_pipedreams_worst_stage_is_the_last_where_the_loss_is_large() -> None:
    found = sizes(with_root(10**6), Scheme.PIPEDREAM)
    assert found["in_flight"] == 20_000 + 10**6
    assert "stashed_versions" not in found


def test_a_shape_whose_units_are_unknown_goes_by_the_papers_closed_form() -> None:
    job = Job(
        parameters=10**6,
        shape=Shape(layers=8, hidden=10),
        degrees=Degrees(pp=4),
        batch=Batch(samples=3, sequence=5, micro_batches=7),
        element_bytes=ElementBytes(gradient_copy=0),
    )
    row = 10 * 15 * 2
    again = replace(job, residual=Residual(checkpointing=True))
    assert sizes(job, Scheme.GPIPE)["in_flight"] == 7 * 2 * 12 * row
    assert sizes(job, Scheme.PIPEDREAM)["in_flight"] == 4 * 2 * 12 * row
    assert sizes(again, Scheme.GPIPE)["in_flight"] == 7 * row + 2 * 12 * row
    assert sizes(again, Scheme.PIPEDREAM)["in_flight"] == 4 * 2 * row + 12 * row


@pytest.mark.parametrize(("scheme", "versions"), [(Scheme.GPIPE, 1), (Scheme.PIPEDREAM, 4)])
def test_without_a_batch_activations_are_unknown(scheme: Scheme, versions: int) -> None:
    terms, _ = make_pipeline_terms(Job(parameters=8_000, degrees=Degrees(pp=4)), scheme)
    assert sum_known_bytes(terms) == 2_000 * (14 + 2 * versions)
    unknown = [term.tenant for term in terms if term.bytes is None]
    assert unknown == [Tenant.ACTIVATIONS, Tenant.TEMPORARY_BUFFERS]


def test_an_unknown_term_of_a_lower_moment_stays() -> None:
    """Else the sum of a moment that is known in full would pass for the peak."""

    def term(sub: str, size: int | None) -> Term:
        return Term(tenant=Tenant.ACTIVATIONS, sub=sub, bytes=size, assumption="")

    for known, moment in ((3, "optimizer"), (5, "backward")):
        backward = (term("a", known), term("b", None))
        terms, at = pick_highest_moment({"backward": backward, "optimizer": (term("a", 5),)})
        assert (at, [each.sub for each in terms], sum_known_bytes(terms)) == (moment, ["a", "b"], 5)
