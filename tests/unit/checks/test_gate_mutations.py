"""Break a gate, and one of these few cases changes: no broken gate can pass.

Every comparison, condition and constant of the gates is changed in a copy, one at a time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.support.check_runs import ENVIRONMENT, MS, Made, at_least, limit
from tests.support.gate_mutants import MODULES, loaded, mutants
from zprof.model.baseline import Baseline
from zprof.model.check import Limit
from zprof.model.findings import Cause, Confidence
from zprof.model.memory import MemoryPart
from zprof.model.report import Report
from zprof.model.tenants import Tenant

BASE = Made()
SURE = {"confidence": 0.95}


def waves(low: int, high: int, steps: int = 8) -> tuple[int, ...]:
    return tuple((low, high)[step % 2] * MS for step in range(steps))


def few(made: Made, steps: int) -> Made:
    cut = {name: getattr(made, name)[:steps] for name in ("walls", "exposed", "collective")}
    return replace(made, **cut)


NOTHING = Made(memory=False, walls=())
ZERO = Made(peaks=(0, 0), tenants={Tenant.PARAMETERS: 0}, untagged=0)
SILENCE = Made(exposed=(0,) * 8, collective=(0,) * 8, wait=0)
UNMET = replace(SILENCE, collectives=(), seen=0)
HALF = replace(BASE, timed=(0,))
BASE4 = replace(BASE, world=4, timed=(0, 1, 2, 3), peaks=(1000,) * 4)
BASE7 = replace(BASE, world=7, timed=tuple(range(7)), peaks=(1000,) * 7)
BIG = 20 << 20
PEAK = limit("peak_memory", change_ratio=0.02)
BOUNDS = (
    ({"upper_memory": True}, {}),
    ({"lower_memory": True}, {}),
    ({}, {"upper_memory": True}),
    ({}, {"lower_memory": True}),
    ({"upper_memory": True, "lower_memory": True}, {}),
)
PARTS = (
    MemoryPart(tenant="parameters", sub="", bytes=9),
    MemoryPart(tenant="parameters", sub="master", bytes=5),
    MemoryPart(tenant="parameters", sub="shard", bytes=7),
    MemoryPart(tenant="activations", sub="saved", bytes=8),
)
EMPTY = (MemoryPart(tenant="parameters", sub="shard", bytes=0),)
PAIR = BASE.collectives
SILENT = (*PAIR, ("all_reduce", "float32", 1.0, 0))
COLLECTIVES = (
    PAIR,
    PAIR[:1],
    PAIR[1:],
    (PAIR[0], ("reduce_scatter", "float32", 10.0, 601)),
    (("all_gather", "float32", 19.5, 1300), ("reduce_scatter", "float32", 9.0, 700)),
    (("all_gather", "float32", 17.0, 1100), ("reduce_scatter", "float32", 9.0, 600)),
    (*PAIR, ("all_reduce", "float64", 1.0, 8), ("broadcast", "", 2.0, 80)),
    (("all_reduce", "float64", 1.0, 8),),
    (("all_gather", "bfloat16", 18.0, 1200), ("reduce_scatter", "bfloat16", 9.0, 600)),
    SILENT,
)
#: A limit, a run and its baseline.
CASES: Sequence[tuple[Limit, Made, Made | None]] = (
    # bytes: at the edge and beyond it, of the highest rank, with the words that go with it
    (limit("peak_memory", change_ratio=0.02), replace(BASE, peaks=(1020, 1)), BASE),
    (limit("peak_memory", change_ratio=0.02), replace(BASE, peaks=(1, 1021)), BASE),
    (limit("peak_memory", change_ratio=0.02), replace(BASE, peaks=(980, 1), untagged=20), BASE),
    (limit("peak_memory", change_ratio=0.0), BASE, BASE),
    (limit("peak_memory", change_ratio=0.02), BASE, None),
    (limit("peak_memory", value=1000.0), BASE, None),
    (limit("peak_memory", value=999.0), BASE, None),
    (limit("peak_memory", value=999.0, warns=True), BASE, None),
    (limit("peak_memory", value=1.0), replace(BASE, tenants={Tenant.PARAMETERS: 0}, untagged=0), None),
    (limit("peak_memory", change_ratio=0.0), Made(peaks=(BIG + 1,)), Made(peaks=(BIG,))),
    (limit("peak_memory", change_ratio=0.0), Made(peaks=(2001, 0)), Made(peaks=(2000, 0))),
    (limit("peak_memory", change_ratio=0.0), replace(BASE, peaks=(10, 0), tenants={}, untagged=0), ZERO),
    (at_least("peak_memory", value=1000.0), BASE, None),
    (at_least("peak_memory", value=1001.0), BASE, None),
    # bounds, missing ranks, missing windows
    *(
        (held, replace(BASE, peaks=(peak, 1), **run), replace(BASE, **base))
        for held in (PEAK, replace(PEAK, origin="default"))
        for run, base in BOUNDS
        for peak in (1020, 1021)
    ),
    *((at_least("peak_memory", value=1000.0), replace(BASE, **run), None) for run, _ in BOUNDS),
    *((at_least("peak_memory", value=1001.0), replace(BASE, **run), None) for run, _ in BOUNDS),
    (PEAK, replace(BASE, peaks=(1000,)), BASE),
    (PEAK, replace(BASE, peaks=(2000,)), BASE),
    (PEAK, BASE, replace(BASE, peaks=(1000,))),
    (PEAK, replace(BASE, peaks=(2000, 1)), replace(BASE, peaks=(1000,))),
    (PEAK, replace(BASE, peaks=(1000,)), replace(BASE, peaks=(1000,))),
    *(
        (held, *pair)
        for gate in (
            "peak_memory",
            "peak_memory.gradients",
            "peak_memory.untagged",
            "untagged_ratio",
            "exposed_ratio",
            "collective_bytes",
            "collective_count",
            "step_time",
            "exposed_wait",
        )
        for held in (limit(gate, change_ratio=0.0), limit(gate, change_ratio=0.0, origin="default"))
        for pair in ((NOTHING, BASE), (BASE, NOTHING), (NOTHING, NOTHING), (BASE, BASE))
    ),
    *(
        (limit(gate, value=1e12), replace(HALF, peaks=(1000,)), base)
        for gate in (
            "peak_memory",
            "peak_memory.parameters",
            "untagged_ratio",
            "collective_bytes",
            "step_time",
        )
        for base in (None, BASE, replace(HALF, peaks=(1000,)))
    ),
    (PEAK, replace(BASE, world=7, peaks=(1000,)), BASE7),
    (PEAK, replace(BASE, world=6, peaks=(1000,)), BASE7),
    (PEAK, replace(BASE, world=5, peaks=(1000,)), replace(BASE, world=5, peaks=(1000,) * 5)),
    (limit("peak_memory", change_ratio=0.0, said="x" * 99), BASE, BASE),
    # tenants, and what nobody owns
    (limit("peak_memory.gradients", change_ratio=0.0), BASE, replace(BASE, tenants={Tenant.PARAMETERS: 1})),
    (limit("peak_memory.parameters", value=1.0), replace(BASE, parts=EMPTY), None),
    (limit("untagged_ratio", value=0.02), replace(BASE, peaks=(0, 500), untagged=0), None),
    (limit("peak_memory.activations", change_ratio=0.0), replace(BASE, peaks=(1, 1001)), BASE),
    (limit("peak_memory.untagged", change_ratio=0.0), replace(BASE, untagged=11), BASE),
    (limit("peak_memory.parameters", value=1.0), replace(BASE, parts=PARTS), None),
    (limit("peak_memory.parameters", value=1.0), replace(BASE, parts=PARTS[:1]), None),
    (limit("peak_memory.gradients", value=1.0), replace(BASE, tenants={Tenant.PARAMETERS: 1}), BASE),
    *(
        (limit("peak_memory.activations", change_ratio=0.0), replace(BASE, **run), replace(BASE, **base))
        for run, base in BOUNDS
    ),
    (limit("peak_memory.activations", change_ratio=0.0), replace(BASE, peaks=(1000,)), BASE),
    (limit("untagged_ratio", value=0.02), replace(BASE, peaks=(1000, 500)), None),
    (limit("untagged_ratio", value=0.02), replace(BASE, peaks=(500, 1000)), None),
    (limit("untagged_ratio", value=0.019), replace(BASE, peaks=(500, 500)), BASE),
    (limit("untagged_ratio", value=0.019), replace(BASE, peaks=(0, 500)), BASE),
    (limit("untagged_ratio", value=0.5), replace(BASE, peaks=(0, 0), untagged=0), BASE),
    (limit("untagged_ratio", value=0.5), replace(BASE, peaks=(1, 1), untagged=0), None),
    (limit("untagged_ratio", change_points=0.0), replace(BASE, peaks=(1000, 500)), BASE),
    (limit("untagged_ratio", change_points=0.0), BASE, ZERO),
    (limit("untagged_ratio", change_points=0.0), replace(BASE, untagged=15), BASE),
    *(
        (limit("untagged_ratio", change_points=0.0), replace(BASE, **run), replace(BASE, **base))
        for run, base in BOUNDS
    ),
    (limit("untagged_ratio", change_points=0.0), replace(BASE, peaks=(1000,)), BASE),
    (limit("untagged_ratio", change_points=0.0), BASE, replace(BASE, peaks=(1000,))),
    # collectives
    *(
        (limit(f"collective_{what}", change_ratio=0.0), replace(BASE, collectives=seen), base)
        for what in ("bytes", "count")
        for base in (BASE, None)
        for seen in COLLECTIVES
    ),
    (limit("collective_bytes", value=1.0), replace(BASE, collectives=(), world=1, timed=(0,)), None),
    (limit("collective_count", value=27.0), BASE, None),
    (limit("collective_count", value=26.9), BASE, None),
    (limit("collective_bytes", value=1800.0), replace(BASE, collectives=SILENT), None),
    (limit("collective_count", value=27.0), replace(BASE, collectives=SILENT), None),
    (limit("collective_bytes", change_ratio=0.0), replace(BASE, timed=(0,)), BASE),
    (limit("collective_bytes", change_ratio=0.0), BASE, replace(BASE, timed=(0,))),
    (limit("collective_bytes", change_ratio=0.0), replace(BASE, timed=(0,)), replace(BASE, timed=(0,))),
    (limit("collective_bytes", change_ratio=0.0), replace(BASE, world=4, timed=(0, 1)), BASE4),
    (limit("collective_bytes", change_ratio=0.0), replace(BASE, collectives=()), BASE),
    (limit("collective_bytes", value=5000.0), replace(BASE, collectives=PAIR[:1], group_size=2), None),
    (limit("collective_bytes", value=5000.0), replace(BASE, collectives=PAIR[:1], group_size=1), None),
    (limit("collective_bytes", value=5000.0), replace(BASE, collectives=PAIR[:1], group_size=0), None),
    (limit("collective_bytes_law", value=3.0), BASE, None),
    (limit("collective_bytes_law", value=3.0), replace(BASE, seen=1801), None),
    (limit("collective_bytes_law", value=3.0), replace(BASE, seen=None), None),
    (limit("collective_bytes_law", value=3.0), replace(BASE, seen=None, volume_gap=True), None),
    (limit("collective_bytes_law", value=3.0), replace(BASE, parameter_bytes=0), None),
    (limit("collective_bytes_law", value=3.0), replace(BASE, timed=(0,)), None),
    (limit("collective_bytes_law", value=2.0), replace(BASE, timed=(0,)), None),
    (limit("collective_bytes_law", value=3.0), replace(BASE, walls=()), None),
    # steps
    (limit("step_time", change_ratio=0.03), replace(BASE, walls=(103 * MS,) * 8), BASE),
    (limit("step_time", change_ratio=0.03), replace(BASE, walls=(104 * MS,) * 8), BASE),
    (limit("step_time", change_ratio=0.03, **SURE), replace(BASE, walls=(103 * MS,) * 8), BASE),
    (limit("step_time", change_ratio=0.03, **SURE), replace(BASE, walls=waves(76, 136)), BASE),
    (limit("step_time", change_ratio=0.03, **SURE), replace(BASE, walls=waves(105, 107)), BASE),
    (limit("step_time", value=106e6, **SURE), replace(BASE, walls=waves(76, 136)), None),
    (limit("step_time", value=103e6, **SURE), replace(BASE, walls=waves(105, 107)), BASE),
    (at_least("step_time", value=106e6, **SURE), replace(BASE, walls=(106 * MS,) * 8), BASE),
    (at_least("step_time", value=107e6, **SURE), replace(BASE, walls=(106 * MS,) * 8), BASE),
    *(
        (limit("step_time", change_ratio=0.0, **SURE, origin=origin), few(BASE, steps), few(BASE, before))
        for origin in ("default", "flag")
        for steps, before in ((4, 8), (5, 5), (8, 4), (1, 1))
    ),
    (limit("step_time", value=1e9, **SURE), few(BASE, 5), few(BASE, 4)),
    (limit("step_time", value=1e9, **SURE), few(BASE, 4), None),
    *(
        (held, replace(BASE, exposed=(ms * MS,) * 8, upper_time=run), replace(BASE, upper_time=base))
        for more in ({}, SURE)
        for held in (
            limit("exposed_ratio", change_points=0.03, **more),
            at_least("overlap_ratio", change_points=-0.05, **more),
        )
        for ms in (20, 22, 23, 24)
        for run, base in ((False, False), (True, False), (False, True))
    ),
    (limit("exposed_ratio", change_ratio=0.05, **SURE), replace(BASE, exposed=waves(5, 60)), BASE),
    (limit("exposed_ratio", value=0.21, **SURE), replace(BASE, exposed=waves(23, 24)), None),
    (limit("exposed_ratio", change_points=0.0), replace(BASE, exposed=(20 * MS + 40_000,) * 8), BASE),
    (limit("exposed_ratio", change_points=0.0), replace(BASE, exposed=(20 * MS + 50_000,) * 8), BASE),
    (limit("exposed_ratio", change_points=0.0), replace(BASE, exposed=(20 * MS + 60_000,) * 8), BASE),
    (limit("exposed_ratio", change_points=0.0), replace(BASE, exposed=(20 * MS + 45_000,) * 8), BASE),
    (limit("exposed_ratio", change_points=0.0), replace(SILENCE, exposed=(50_000,) * 8), SILENCE),
    (limit("exposed_ratio", change_points=0.0, **SURE), replace(SILENCE, exposed=(50_000,) * 8), SILENCE),
    (at_least("overlap_ratio", change_points=0.0), SILENCE, BASE),
    (at_least("overlap_ratio", change_points=0.0, **SURE), SILENCE, BASE),
    (at_least("overlap_ratio", change_points=0.0, **SURE), BASE, SILENCE),
    (limit("exposed_ratio", change_points=0.0, **SURE), replace(SILENCE, walls=(0,) * 8), BASE),
    *(
        (limit(gate, change_ratio=0.0), replace(BASE, timed=timed), base)
        for gate in ("step_time", "exposed_ratio")
        for timed in ((0,), (0, 1))
        for base in (BASE, HALF)
    ),
    (limit("step_time", change_ratio=0.0), replace(BASE, world=4, timed=(0,)), BASE4),
    # a tenant against a value, of the rank that has most of it
    *(
        (held, replace(BASE, peaks=peaks, **bound), base)
        for held in (limit("peak_memory.activations", value=600.0), limit("peak_memory.untagged", value=9.0))
        for peaks in ((1000, 900), (900, 1000), (900, 900))
        for bound in ({}, {"upper_memory": True}, {"lower_memory": True})
        for base in (None, BASE)
    ),
    (limit("peak_memory.gradients", value=1.0), replace(BASE, tenants={Tenant.PARAMETERS: 1}), None),
    # what no value can break
    *(
        (held, run, base)
        for more in ({}, SURE)
        for held in (
            *(at_least("overlap_ratio", change_points=change, **more) for change in (-0.51, -0.5, -0.49)),
            *(limit("exposed_ratio", change_points=change, **more) for change in (0.81, 0.8, 0.79)),
            *(at_least("step_time", value=value, **more) for value in (0.0, 1.0)),
            *(limit("step_time", value=value, unit="ns", **more) for value in (0.5, 1.0, 2.0)),
        )
        for run, base in ((BASE, BASE), (BASE, replace(BASE, upper_time=True)))
    ),
    # ranks that never met
    *(
        (held, replace(UNMET, world=world), base)
        for gate in ("exposed_ratio", "exposed_wait", "collective_bytes_law")
        for held in (limit(gate, value=0.9), limit(gate, change_points=0.0))
        for world in (1, 2)
        for base in (BASE, UNMET, replace(UNMET, world=world), None)
        if held.value is not None or gate != "collective_bytes_law"
    ),
    (limit("exposed_ratio", change_points=0.0), BASE, UNMET),
    # waiting
    *(
        (
            limit("exposed_wait", change_ratio=0.1, warns=warns),
            replace(BASE, wait=5 * MS, late=late, late_confidence=sure),
            BASE,
        )
        for warns in (False, True)
        for late, sure in (
            (None, Confidence.HIGH),
            (0.7, Confidence.HIGH),
            (0.8, Confidence.HIGH),
            (0.9, Confidence.HIGH),
            (0.9, Confidence.MEDIUM),
            (0.9, Confidence.LOW),
        )
    ),
    (limit("exposed_wait", change_ratio=0.25), replace(BASE, wait=5 * MS), BASE),
    (
        limit("exposed_wait", change_ratio=0.0),
        replace(BASE, wait=5 * MS, late=0.9, late_cause=Cause.NO_PREFETCH),
        BASE,
    ),
    (limit("exposed_wait", value=4e6), replace(BASE, unsplit=1), None),
    (limit("exposed_wait", value=3e6), replace(BASE, upper_time=True, late=0.9), None),
    # the whole
    (limit("nothing", value=1.0), BASE, None),
    (limit("overlap_ratio", change_ratio=0.0, origin="default"), SILENCE, SILENCE),
    (limit("", value=1.0), BASE, BASE),
    (limit("", value=1.0), BASE, None),
    (limit("peak_memory", change_ratio=0.0), replace(BASE, memory=False), None),
    (limit("peak_memory", change_ratio=0.0), replace(BASE, walls=()), None),
    (limit("peak_memory", change_ratio=0.0), NOTHING, None),
)
#: Changes that change nothing, each with its reason.
EQUAL: Mapping[str, str] = {"change > 0  ->  >=": "a change of 0 was left before"}


def sides(run: Made, base: Made | None) -> tuple[Report, Baseline | None]:
    return run.report, None if base is None else base.baseline


PREPARED = [(held, *sides(run, base)) for held, run, base in CASES]


def ended(check: Any, held: Limit, report: Report, baseline: Baseline | None) -> Any:
    """All that a face would show of the case."""
    try:
        return check(report, [held] if held.gate else [], baseline, environment=ENVIRONMENT)
    except Exception as error:
        return type(error), str(error)


def as_text(result: Any) -> str:
    return str(result)


@pytest.fixture(scope="module")
def whole() -> list[str]:
    check = loaded({})
    return [as_text(ended(check, *case)) for case in PREPARED]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # a broken gate may divide by 0
@pytest.mark.parametrize("module", MODULES)
def test_each_change_is_seen(module: str, whole: list[str]) -> None:
    survivors = []
    for change, source in mutants(module):
        try:
            check = loaded({module: source})
        except Exception:  # it cannot even be imported
            continue
        seen = any(as_text(ended(check, *case)) != right for case, right in zip(PREPARED, whole, strict=True))
        if not seen and change.partition(": ")[2] not in EQUAL:
            survivors.append(change)
    assert not survivors, "\n".join(survivors)
