"""Reports and baselines for the tests of checks, made of the few leaves that a gate reads."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.time.ledger import find_ledger_bounds
from zprof.checks.baseline import make_baseline
from zprof.checks.check import check
from zprof.model.baseline import Baseline
from zprof.model.comparison import Check, GateResult, Limit, Sense
from zprof.model.findings import Confidence, Evidence, Finding, Severity
from zprof.model.gaps import Gap, GapKind
from zprof.model.memory import Memory, MemoryPart, RankMemory
from zprof.model.quantities import Unit
from zprof.model.report import Report, RunFacts, Verdict, VerdictStatus, Volume
from zprof.model.tenants import BACKEND_SCRATCH, Tenant
from zprof.model.time import CollectiveTime, RankTime, StepTime, Time, Window, WindowPolicy

ENVIRONMENT = {"torch": "2.13.0+cpu"}
MS = 1_000_000


class Made(Struct, frozen=True, kw_only=True):
    """A run.  ``peaks``: of each rank.  A wall, an exposed time and so on a step, of all ranks alike.

    ``tenant_peaks``: where a tenant holds more than at the rank's peak.
    """

    peaks: Sequence[int] = (1000, 900)
    untagged: int = 10
    tenants: Mapping[Tenant, int] | None = None
    walls: Sequence[int] = tuple(100 * MS for _ in range(8))
    exposed: Sequence[int] = tuple(20 * MS for _ in range(8))
    collective: Sequence[int] = tuple(40 * MS for _ in range(8))
    wait: int = 4 * MS
    collectives: Sequence[tuple[str, str, float, int]] = (
        ("all_gather", "float32", 18.0, 1200),
        ("reduce_scatter", "float32", 9.0, 600),
    )
    world: int = 2
    timed: Sequence[int] = (0, 1)
    memory: bool = True
    upper_memory: bool = False
    lower_memory: bool = False
    upper_time: bool = False
    unsplit: int = 0
    late: float | None = None
    late_confidence: Confidence = Confidence.HIGH
    seen: int | None = 1800
    parameter_bytes: int = 600
    volume_gap: bool = False
    group_size: int | None = None
    parts: Sequence[MemoryPart] = ()
    tenant_peaks: Mapping[str, int] | None = None
    name: str = "run"
    facts: Mapping[str, Any] | None = None

    @property
    def report(self) -> Report:
        facts = RunFacts(
            name=self.name, source="recording", world_size=self.world, ranks_loaded=tuple(self.timed),
            steps=(), device="cpu", backend="gloo", engine="reference", stage=3,
        )  # fmt: skip
        return Report(
            zprof_version="0",
            verdict=Verdict(status=VerdictStatus.OK, sentence=""),
            run=replace(facts, **(self.facts or {})),
            memory=_memory(self),
            time=_time(self),
            volume=None if self.seen is None else _volume(self.seen, self.parameter_bytes),
            findings=() if self.late is None else (_straggler(self),),
            gaps=(_OTHER, _GAP) if self.volume_gap else (),
        )

    @property
    def baseline(self) -> Baseline:
        return make_baseline(self.report, ENVIRONMENT, "base")


def limit(gate: str, **more: Any) -> Limit:
    """A limit as somebody stated it."""
    unit = "ratio" if gate.endswith("ratio") else "bytes"
    return Limit(
        **{"gate": gate, "unit": Unit(unit), "text": "so", "said": "so", "origin": "zprof.toml"} | more
    )


def at_least(gate: str, **more: Any) -> Limit:
    return limit(gate, sense=Sense.AT_LEAST, **more)


BASE = Made()


def check_run(limits: Sequence[Limit], run: Made = BASE, base: Made | None = BASE, **more: Any) -> Check:
    """A run against limits and a baseline."""
    baseline = None if base is None else base.baseline
    return check(run.report, limits, baseline, environment=ENVIRONMENT, **more)


def judged(held: Limit, run: Made = BASE, base: Made | None = BASE) -> GateResult:
    """The result of one limit."""
    (result,) = check_run([held], run, base).results
    return result


def _memory(made: Made) -> Memory:
    if not made.memory:
        return Memory()
    return Memory(per_rank=tuple(_rank_memory(made, rank, peak) for rank, peak in enumerate(made.peaks)))


def _rank_memory(made: Made, rank: int, peak: int) -> RankMemory:
    tenants = made.tenants if made.tenants is not None else {
        **dict.fromkeys(Tenant, 0), Tenant.ACTIVATIONS: peak - made.untagged - 300, Tenant.PARAMETERS: 300,
    }  # fmt: skip
    return RankMemory(
        rank=rank, device="cpu", peak_bytes=peak, peak_step=1, peak_phase="backward", tenants=tenants,
        untagged_bytes=made.untagged, reserved_unused_bytes=None, non_pytorch_bytes=None, formula=None,
        upper_bound=made.upper_memory, lower_bound=made.lower_memory, parts=tuple(made.parts),
        tenant_peaks={**tenants, "untagged": made.untagged, **(made.tenant_peaks or {})},
        program_buffers_peak_bytes=sum(
            part.bytes
            for part in made.parts
            if part.tenant == Tenant.COMMUNICATION_BUFFERS and part.sub != BACKEND_SCRATCH
        ),
    )  # fmt: skip


def _time(made: Made) -> Time:
    if not made.walls:
        return Time()
    rows = zip(made.walls, made.exposed, made.collective, strict=True)
    steps = [_step(made, rank, step, *row) for step, row in enumerate(rows) for rank in made.timed]
    return Time(
        per_rank=tuple(_rank_time(made, rank) for rank in made.timed),
        steps=tuple(steps),
        window=Window(policy=WindowPolicy.STEP, source="recorder"),
        collectives=tuple(_collective(*entry, size=_size(made)) for entry in made.collectives),
    )


def _size(made: Made) -> int:
    return made.world if made.group_size is None else made.group_size


def _step(made: Made, rank: int, step: int, wall: int, exposed: int, collective: int) -> StepTime:
    return StepTime(
        rank=rank, step=step, wall_ns=wall, compute_ns=wall - exposed, exposed_wait_ns=made.wait,
        exposed_transfer_ns=exposed - made.wait, exposed_memcpy_ns=0, idle_ns=0, unexplained_ns=0,
        overlapped_ns=collective - exposed, collective_ns=collective,
    )  # fmt: skip


def _rank_time(made: Made, rank: int) -> RankTime:
    return RankTime(
        rank=rank, steps=len(made.walls), wall_ns=0, compute_ns=0, overlapped_ns=0, exposed_wait_ns=0,
        exposed_transfer_ns=0, exposed_memcpy_ns=0, idle_ns=0, unexplained_ns=0, wall_median_ns=0,
        collective_ns=0, overlap_ratio=None, method="", noise_floor_ns=0, upper_bound=made.upper_time,
        unsplit_ns=made.unsplit,
        bounds=find_ledger_bounds(0, made.unsplit, is_upper=made.upper_time),
    )  # fmt: skip


def _collective(kind: str, dtype: str, count: float, size_bytes: int, *, size: int) -> CollectiveTime:
    return CollectiveTime(
        kind=kind, group="0,1", dtype=dtype, count=count, bytes=size_bytes, total_ns=0, exposed_ns=0,
        wait_ns=0, transfer_ns=0, launch_delay_ns=None, algbw_bytes_per_s=None, busbw_bytes_per_s=None,
        method="", group_size=size,
    )  # fmt: skip


def _volume(seen: int, parameters: int) -> Volume:
    expected = 3 * parameters or 1800
    return Volume(expected_bytes=expected, seen_bytes=seen, ratio=seen / expected, parameter_bytes=parameters)


_OTHER = Gap(what="steps", reason="", remedy="record again")
_GAP = Gap(kind=GapKind.VOLUME, what="volume", reason="", remedy="say it: report --stage")


def _straggler(made: Made) -> Finding:
    evidence = (
        Evidence(
            key="own_time_excess",
            what="busy with itself longer than the others, median",
            value=4e6,
            unit="ns",
            rank=1,
        ),
        Evidence(
            key="steps_latest_ratio",
            what="steps in which it is the latest",
            value=made.late or 0.0,
            unit="ratio",
        ),
    )
    return Finding(
        id="ZP301", cause="straggler_rank", severity=Severity.HIGH, sentence="", evidence=evidence,
        saving_ns=(0, 1), confidence=made.late_confidence, fix="", disprove="", doc="",
    )  # fmt: skip
