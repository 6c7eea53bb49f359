"""Rules about hosts that keep a device idle, at their thresholds and just below."""

import pytest
from msgspec.structs import replace

from tests.support.analyses import MS
from tests.support.host_steps import WALL_NS, hosts, with_rows
from tests.support.peaks import memory_run
from tests.support.rule_runs import Run, found, judged, values
from tests.support.tables import changed
from zprof.analysis.analysis import RunAnalysis, Untested
from zprof.analysis.columns import Columns
from zprof.analysis.time.host_time import is_short_of_processors
from zprof.causes.allocator_retries import CAUSE as allocator_retries
from zprof.causes.blocking_sync import CAUSE as blocking_sync
from zprof.causes.cause import Cause
from zprof.causes.cpu_bound_launch import CAUSE as cpu_bound_launch
from zprof.causes.data_loader import CAUSE as data_loader
from zprof.causes.offload_on_critical_path import CAUSE as offload_on_critical_path
from zprof.diagnosis.find_causes import ask
from zprof.model.findings import Confidence, Finding, Severity
from zprof.model.gaps import GapKind
from zprof.model.memory import AllocatorCounters

STATE = {"to_host_bytes": 1 << 20, "to_device_bytes": 1 << 20}
SYNCS = {"dry_syncs": 3}
#: Rule, what is always there, the column, the share of the step, and the confidence from there on.
LADDER = [
    (data_loader, {}, "loader_ns", 0.05, "high"),
    (cpu_bound_launch, {}, "launch_ns", 0.15, "high"),
    (blocking_sync, SYNCS, "sync_ns", 0.05, "high"),
    (offload_on_critical_path, STATE, "host_copy_ns", 0.10, "high"),
    (offload_on_critical_path, STATE, "optimizer_ns", 0.10, "high"),
]


@pytest.mark.parametrize(("rule", "always", "column", "share", "confidence"), LADDER)
def test_at_a_threshold_and_below(
    rule: Cause, always: dict[str, float], column: str, share: float, confidence: Confidence
) -> None:
    at = found(rule, hosts(**always, **{column: share * WALL_NS}))
    assert at.confidence == confidence
    assert at.saving_ns == (0, pytest.approx(share * WALL_NS, abs=1))
    assert judged(rule, hosts(**always, **{column: share * WALL_NS - 1000})) != confidence
    one_step = judged(rule, hosts(steps=1, **always, **{column: share * WALL_NS}))
    assert one_step == ("medium" if confidence == "high" else confidence)


@pytest.mark.parametrize(("rule", "always", "column", "share", "confidence"), LADDER)
def test_one_rank_or_one_step_is_not_all(
    rule: Cause, always: dict[str, float], column: str, share: float, confidence: Confidence
) -> None:
    healthy = hosts(**always)
    for chosen in (healthy.host.ints("rank") == 2, healthy.host.ints("step") == 3):
        assert judged(rule, with_rows(healthy, chosen, **{column: 6 * share * WALL_NS})) is None


ONCE = [LADDER[place][:3] for place in (0, 1, 2, 3)]


@pytest.mark.parametrize("steps", [2, 6])
@pytest.mark.parametrize(("rule", "always", "column"), ONCE)
def test_what_happens_once_is_neither_a_finding_nor_part_of_the_price(
    rule: Cause, always: dict[str, float], column: str, steps: int
) -> None:
    """A profiler that starts, or a cold start."""
    quiet = hosts(steps=steps, **always)
    first = quiet.host.ints("step") == 0
    assert judged(rule, with_rows(quiet, first, **{column: 300 * MS})) is None
    busy = hosts(steps=steps, **always, **{column: 20 * MS})
    again = with_rows(busy, first, **{column: 300 * MS})
    assert found(rule, again).saving_ns == found(rule, busy).saving_ns


@pytest.mark.parametrize(("rule", "always", "column"), ONCE[:3])
def test_in_a_single_step_the_longest_occurrence_proves_nothing(
    rule: Cause, always: dict[str, float], column: str
) -> None:
    longest = column.replace("_ns", "_largest_ns")
    assert judged(rule, hosts(steps=1, **always, **{column: 30 * MS, longest: 30 * MS})) == "gap"
    several = found(rule, hosts(steps=1, **always, **{column: 50 * MS, longest: 20 * MS}))
    assert several.saving_ns[1] == pytest.approx(30 * MS, abs=1)
    assert several.confidence == "medium"


@pytest.mark.parametrize("on_device", [True, False])
def test_a_compiled_program_is_not_to_be_compiled(*, on_device: bool) -> None:
    for is_compiled in (False, True):
        run = hosts(on_device=on_device, launch_ns=0.3 * WALL_NS, is_compiled=is_compiled)
        assert ("torch.compile(model)" in found(cpu_bound_launch, run).fix) is not is_compiled


@pytest.mark.parametrize(("device", "is_pinned"), [("cpu", False), ("cuda", True)])
def test_a_loader_is_advised_what_its_device_can_use(device: str, is_pinned: bool) -> None:
    run = hosts(loader_ns=0.3 * WALL_NS)
    fix = found(data_loader, replace(run, run=replace(run.run, device=device))).fix
    assert ("pin_memory" in fix) is is_pinned


@pytest.mark.parametrize(
    ("device", "queued_ms", "expected"), [("cpu", 10, True), ("cpu", 9.9, False), ("cuda", 50, False)]
)
def test_ranks_without_a_processor_tell_nothing_of_links(
    device: str, queued_ms: float, *, expected: bool
) -> None:
    run = hosts(on_device=device != "cpu", queued_ns=queued_ms * MS)
    assert is_short_of_processors(replace(run, run=replace(run.run, device=device))) is expected


def crowded(*, launch: float, unseen: float, queued: float) -> RunAnalysis:
    """CPU ranks with these shares of the step, recorded with processor times."""
    shares = {"launch_ns": launch, "unseen_ns": unseen, "queued_ns": queued}
    run = hosts(on_device=False, is_timed=True, **{name: part * WALL_NS for name, part in shares.items()})
    return replace(run, run=replace(run.run, device="cpu"))


@pytest.mark.parametrize(
    ("launch", "unseen", "queued", "expected"),
    [
        # the same Python costs the same processor time, however long the step waits for a processor
        (0.10, 0.0, 0.0, "finding"),
        (0.05, 0.0, 0.5, "finding"),
        # what was surely Python is too little, what may have been is not
        (0.04, 0.06, 0.5, GapKind.BUSY_PROCESSORS),
        (0.0, 0.10, 0.1, GapKind.BUSY_PROCESSORS),
        (0.04, 0.06, 0.0, GapKind.UNTESTED_RULE),
    ],
)
def test_python_is_judged_by_the_time_that_its_thread_had_a_processor(
    launch: float, unseen: float, queued: float, expected: str | None
) -> None:
    answer = ask(cpu_bound_launch, crowded(launch=launch, unseen=unseen, queued=queued))
    if expected == "finding":
        assert isinstance(answer, Finding)
        (share,) = values(answer, "ratio")
        assert share == pytest.approx(0.10)
        # on these processors the step shrinks by that share, waits for a processor included
        assert answer.saving_ns == (0, pytest.approx(share * WALL_NS, abs=1))
    else:
        assert (answer.kind if isinstance(answer, Untested) else answer) == expected


def absent(analysis: RunAnalysis) -> RunAnalysis:
    return replace(analysis, host=Columns({}))


def idle_ranks(idle: int, ranks: int) -> RunAnalysis:
    """Some ranks do not wait for their loader."""
    busy = hosts(ranks=ranks, loader_ns=20 * MS)
    return with_rows(busy, busy.host.ints("rank") < idle, loader_ns=0)


def without_compute() -> RunAnalysis:
    return replace(hosts(on_device=False), steps=changed(hosts().steps, compute_ns=0))


ON_HOST = {"host_copy_ns": 20 * MS, "optimizer_ns": 20 * MS, "optimizer_active_ns": 20 * MS}
HALF_STATES = [STATE | {column: (1 << 20) - 1} | ON_HOST for column in STATE]


@pytest.mark.parametrize(
    ("rule", "run", "expected"),
    [
        # the times of a CPU rank are never sure
        (cpu_bound_launch, lambda: hosts(on_device=False, launch_ns=0.30 * WALL_NS), "medium"),
        (cpu_bound_launch, lambda: hosts(on_device=False, launch_ns=0.12 * WALL_NS), "low"),
        # a recording of Python calls slowed the host itself
        (cpu_bound_launch, lambda: hosts(launch_ns=0.30 * WALL_NS, has_stacks=True), "low"),
        # nothing shows what the host did: asleep, in Python, or in front of a lock
        (cpu_bound_launch, lambda: hosts(unseen_ns=0.30 * WALL_NS), "gap"),
        (cpu_bound_launch, lambda: hosts(on_device=False, unseen_ns=0.30 * WALL_NS), "gap"),
        # one wait per step reads a loss; they are counted in the mean
        (blocking_sync, lambda: hosts(dry_syncs=1.5, sync_ns=20 * MS), "low"),
        (blocking_sync, lambda: hosts(dry_syncs=1.6, sync_ns=20 * MS), "high"),
        (blocking_sync, lambda: hosts(on_device=False, dry_syncs=6, sync_ns=9 * MS), None),
        # copies one way are no offload, and a slow optimizer without them is launches
        *((offload_on_critical_path, lambda half=half: hosts(**half), None) for half in HALF_STATES),
        *((cpu_bound_launch, lambda half=half: hosts(**half), "high") for half in HALF_STATES),
        (cpu_bound_launch, lambda: hosts(**STATE | ON_HOST), None),
        # an optimizer of which nothing is seen may compute, or sleep
        (cpu_bound_launch, lambda: hosts(optimizer_ns=20 * MS), None),
        # a quarter of the ranks may lose less
        (data_loader, lambda: idle_ranks(1, 5), "high"),
        (data_loader, lambda: idle_ranks(2, 8), None),
        (data_loader, lambda: with_rows(hosts(), loads=0), "gap"),
        (cpu_bound_launch, without_compute, "gap"),
        *((rule, hosts, None) for rule in (data_loader, cpu_bound_launch, blocking_sync)),
        *((rule, lambda: absent(hosts()), "gap") for rule in (data_loader, cpu_bound_launch, blocking_sync)),
        *(
            (rule, lambda: with_rows(hosts(), launches_seen=False), "gap")
            for rule in (cpu_bound_launch, blocking_sync, offload_on_critical_path)
        ),
    ],
)
def test_what_is_there_and_what_is_not_tested(rule: Cause, run: Run, expected: str | None) -> None:
    assert judged(rule, run()) == expected


@pytest.mark.parametrize(
    ("rule", "columns", "lost_ms"),
    [
        (blocking_sync, {"held_reads": 6, "read_exposed_ns": 9 * MS}, 9),
        (offload_on_critical_path, {"host_copy_ns": 10 * MS, "copy_ns": 4 * MS}, 14),
        (data_loader, {"loader_ns": 20 * MS, "loader_exposed_ns": 5 * MS, "on_device": True}, 25),
        (cpu_bound_launch, {"launch_ns": 20 * MS, "launch_exposed_ns": 4 * MS, "on_device": True}, 24),
        (
            blocking_sync,
            {"dry_syncs": 6, "sync_ns": 20 * MS, "sync_exposed_ns": 4 * MS, "on_device": True},
            24,
        ),
    ],
)
def test_transfer_and_copies_meanwhile_are_lost_too(
    rule: Cause, columns: dict[str, float], lost_ms: float
) -> None:
    saving = found(rule, hosts(**({"on_device": False} | columns))).saving_ns
    assert saving == (0, pytest.approx(lost_ms * MS, abs=1))


@pytest.mark.parametrize(("under_ms", "overlapped_ms", "hidden_ms"), [(50, 0, 0), (58, 0, 8), (58, 68, 18)])
def test_collectives_that_only_idle_time_hides_are_evidence(
    under_ms: int, overlapped_ms: int, hidden_ms: int
) -> None:
    """Compute has room for 50 ms of collectives, less what it hides already."""
    analysis = hosts(
        on_device=False, launch_ns=60 * MS, launch_under_ns=under_ms * MS, overlapped_ns=overlapped_ms * MS
    )
    facts = {fact.key: fact.value for fact in found(cpu_bound_launch, analysis).evidence}
    assert facts["collectives_hidden_by_idle"] == pytest.approx(hidden_ms * MS)


#: Frees and allocations of the device's memory in a step.
CALLS = {"gives": 4, "takes": 4, "allocator_ns": 2 * MS}


def counted(
    *retries: int | None, ooms: int | None = 0, device: str = "cuda:0", steps: int = 20
) -> RunAnalysis:
    counters = tuple(
        AllocatorCounters(
            rank=rank, device=device, peak_allocated_bytes=1, peak_reserved_bytes=1, retries=count, ooms=ooms
        )
        for rank, count in enumerate(retries)
    )
    analysis = memory_run(device="cuda:0", counters=counters)
    return replace(analysis, run=replace(analysis.run, steps=tuple(range(steps)), memory_steps=()))


def test_the_worst_rank_is_named_and_survived_errors_are_severe() -> None:
    finding = found(allocator_retries, counted(3, 46))
    assert (finding.id, finding.saving_ns, finding.saving_bytes) == ("ZP501", (0, 0), None)
    assert {fact.rank for fact in finding.evidence} == {1, None}
    assert values(finding, "count") == [46, 0, 20]
    assert found(allocator_retries, counted(0, ooms=1)).severity is Severity.HIGH


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda: counted(0, 0), None),
        (lambda: counted(None, ooms=None), "gap"),
        (lambda: memory_run(device="cuda:0"), "gap"),
        (memory_run, None),  # a CPU
        (lambda: counted(5, device="cpu"), "gap"),
        (lambda: hosts(), None),
        (lambda: hosts(on_device=False, **CALLS), None),
        (lambda: hosts(**CALLS | {"allocator_ns": MS, "gives": 0}), "low"),  # the cache only grows
        (lambda: with_rows(hosts(), hosts().host.ints("step") < 3, **CALLS), "high"),
        (lambda: with_rows(hosts(), hosts().host.ints("step") < 2, **CALLS), "low"),  # warm-up
        (lambda: hosts(steps=1, **CALLS), "low"),
    ],
)
def test_allocator_retries(run: Run, expected: str | None) -> None:
    assert judged(allocator_retries, run()) == expected


def test_frees_in_steps_are_measured_on_the_rank_that_loses_most() -> None:
    finding = found(allocator_retries, with_rows(hosts(), hosts().host.ints("rank") == 3, **CALLS))
    assert {fact.rank for fact in finding.evidence} == {3}
    assert (finding.confidence, finding.severity) == ("high", Severity.LOW)
    assert finding.saving_ns == (0, 2 * MS)
