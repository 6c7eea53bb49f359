"""A plan: the job under every scheme, and what each figure rests on."""

from collections.abc import Mapping, Sequence

from zprof.model.gaps import Gap
from zprof.model.planning.assumption import Assumption
from zprof.model.planning.job import Job
from zprof.model.planning.plan import PIPELINES, ZERO_STAGES, Plan, PlanRow, Scheme, Term
from zprof.model.tenants import SHOWN, Tenant
from zprof.planner.degrees import spread
from zprof.planner.gaps import gaps_of_plan, is_one_unit
from zprof.planner.memory import largest, rows
from zprof.planner.memory.states import law_bytes
from zprof.planner.memory.walk import peak
from zprof.planner.models.units import with_units
from zprof.planner.refuse import refuse_impossible
from zprof.planner.sensitivity.series import sensitivity_of
from zprof.planner.step import ledger, traffic
from zprof.version import __version__

ASSUMPTIONS: Mapping[str, Assumption] = {
    **rows.ASSUMPTIONS,
    **peak.ASSUMPTIONS,
    **largest.ASSUMPTIONS,
    **ledger.ASSUMPTIONS,
    **traffic.ASSUMPTIONS,
}
#: What fits with less than this share of the device left is tight.  Our choice: the driver's context, the
#: network library's buffers and fragmentation are in no peak, and take about so much.
TIGHT_RATIO = 0.1


def plan(job: Job, *, schemes: Sequence[Scheme] = tuple(Scheme), with_sensitivity: bool = False) -> Plan:
    """Predict memory, traffic and step of a job under each scheme; a model of one unit is in no pipeline.

    Raises:
        BadInput: the job cannot be: degrees that do not divide, sizes below 1, a unit larger than a device.
    """
    refuse_impossible(job)
    divided = [scheme for scheme in schemes if scheme not in PIPELINES or not is_one_unit(job)]
    answers = [_row(with_units(spread(job, scheme)), scheme) for scheme in divided]
    made = tuple(row for row, _ in answers)
    return Plan(
        zprof_version=__version__,
        job=with_units(job),
        rows=made,
        assumptions=_used(made),
        sensitivity=sensitivity_of(job) if with_sensitivity else None,
        gaps=gaps_of_plan(job, answers),
    )


def _row(job: Job, scheme: Scheme) -> tuple[PlanRow, tuple[Gap, ...]]:
    memory = rows.memory_of(job, scheme)
    known = _by_tenant(memory.terms)
    least = sum(known.values())
    peak_bytes = None if any(term.bytes is None for term in memory.terms) else least
    left = _left(job, peak_bytes)
    row = PlanRow(
        scheme=scheme,
        stage=ZERO_STAGES.get(scheme),
        degrees=job.degrees,
        micro_batches=job.batch.micro_batches,
        terms=memory.terms,
        tenants=known,
        state_bytes=law_bytes(job, scheme),
        least_bytes=least,
        peak_bytes=peak_bytes,
        peak_at=memory.peak_at,
        fits=_fits(job, least, peak_bytes),
        largest_parameters=largest.largest_parameters(job, scheme),
        left_bytes=left,
        tight=job.hardware is not None and left is not None and _is_tight(left, job.hardware.memory_bytes),
        links=traffic.links_of(job, scheme),
        step=ledger.step_of(job, scheme),
    )
    return row, memory.gaps


def _fits(job: Job, least: int, peak_bytes: int | None) -> bool | None:
    """What is known may be too much already; else all must be known."""
    if job.hardware is None:
        return None
    if least > job.hardware.memory_bytes:
        return False
    return None if peak_bytes is None else True


def _left(job: Job, peak_bytes: int | None) -> int | None:
    return None if job.hardware is None or peak_bytes is None else job.hardware.memory_bytes - peak_bytes


def _is_tight(left: int, memory: int) -> bool:
    return 0 <= left < TIGHT_RATIO * memory


def _by_tenant(terms: Sequence[Term]) -> Mapping[Tenant, int]:
    """Sums of what is known, in the order in which tenants are shown."""
    known = {tenant: [term.bytes for term in terms if term.tenant is tenant] for tenant in SHOWN}
    return {
        tenant: sum(size for size in sizes if size is not None)
        for tenant, sizes in known.items()
        if any(size is not None for size in sizes)
    }


def _used(made: Sequence[PlanRow]) -> Mapping[str, Assumption]:
    """Those that a figure names."""
    named = {term.assumption for row in made for term in row.terms}
    named |= {link.assumption for row in made for link in row.links}
    named |= {key for row in made if row.step for key in row.step.assumptions.values()}
    named |= set(largest.ASSUMPTIONS) if any(row.largest_parameters is not None for row in made) else set()
    return {key: ASSUMPTIONS[key] for key in sorted(named)}
