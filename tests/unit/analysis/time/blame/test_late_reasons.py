"""Why a rank came late: planted on device ranks, one cause at a time, and found with its amount."""

import pytest

from tests.support.device_plays import MS, US, Collect, Copy, Drain, Host, Join, Kernel, Step, write
from zprof.analysis.time.analyse import analyse_time
from zprof.run.reader import load

LATE = 8 * MS
RANKS = (0, 1, 2, 3)


def program(*planted, plant_at=3, units=6, prefetch=False):
    """Gather, compute, gather, compute, ...; what is planted comes before the compute of one unit.

    With ``prefetch`` each gather is launched before the compute of the unit ahead of it, and runs beside it.
    """
    ops = [Collect(key="g0", group=RANKS)]
    for unit in range(units):
        following = Collect(key=f"g{unit + 1}", group=RANKS)
        ops.append(Join(key=f"g{unit}"))
        ops += [following] if prefetch else []
        ops += planted if unit == plant_at else ()
        ops += [Kernel(ns=3 * MS), Kernel(ns=2 * MS)]
        ops += [] if prefetch else [following]
    return ops


def analysed(tmp_path, programs, **options):
    return analyse_time(load(write(tmp_path / "x.zprof", programs, **options)))


def with_late(planted, *, late=1, ranks=RANKS, **options):
    return {rank: program(*(planted if rank == late else ()), **options) for rank in ranks}


PLANTED = {
    "compute": [Kernel(ns=LATE)],
    "memcpy": [Copy(ns=LATE)],
    # the host may run ahead of its device: it must lose more than its lead
    "host": [Drain(), Host(ns=LATE)],
    "allocator": [Drain(), Host(ns=LATE, name="cudaMalloc")],
    "data": [
        Drain(),
        Host(
            ns=LATE,
            name="enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
            category="user_annotation",
        ),
    ],
}


@pytest.mark.parametrize("reason", PLANTED)
@pytest.mark.parametrize("late", [0, 2])
def test_the_late_rank_is_charged_with_its_reason(tmp_path, reason, late):
    analysis = analysed(tmp_path, with_late(PLANTED[reason], late=late))
    first, *others = analysis.time.blame.per_rank
    assert first.rank == late
    assert first.exposed_wait_ns == pytest.approx(3 * LATE, rel=0.05)
    assert list(first.reasons) == [reason]
    assert first.origins == {late: first.exposed_wait_ns}
    assert first.own_wait_ns < MS
    assert all(entry.exposed_wait_ns == 0 for entry in others)
    blamed = analysis.collectives[analysis.collectives["blamed_rank"] == late]
    assert set(blamed["unit"]) == {"g4"}
    assert set(blamed["late_reason"]) == {reason}


def test_a_wait_for_the_device_that_only_one_rank_makes(tmp_path):
    """Its host cannot run ahead, so each of its short kernels starts a launch later."""
    short = [Kernel(ns=20 * US) for _ in range(400)]
    held = [op for kernel in short for op in (kernel, Drain(name="cudaStreamSynchronize"))]
    programs = {rank: program(*(held if rank == 1 else short)) for rank in RANKS}
    first = analysed(tmp_path, programs).time.blame.per_rank[0]
    assert first.rank == 1
    assert list(first.reasons) == ["sync"]


def test_a_delay_that_others_had_compute_to_hide_is_told_by_where_it_began(tmp_path):
    """Prefetched gathers behind the delay come late too, without holding anybody up: look further back."""
    unit_ns = 5 * MS
    analysis = analysed(tmp_path, with_late([Kernel(ns=LATE)], prefetch=True, plant_at=2))
    first, *others = analysis.time.blame.per_rank
    assert (first.rank, first.exposed_wait_ns) == (1, 3 * (LATE - unit_ns))
    assert first.reasons == {"compute": first.exposed_wait_ns}
    assert all(not entry.reasons for entry in others)
    blamed = analysis.collectives[analysis.collectives["blamed_rank"] == 1]
    assert set(blamed["unit"]) == {"g4", "g5", "g6"}
    assert set(blamed["late_reason"]) == {"compute"}


def test_a_rank_whose_host_launches_late_while_its_device_is_busy(tmp_path):
    ops = {}
    for rank in RANKS:
        ops[rank] = [
            Collect(key="a", group=RANKS),
            Join(key="a"),
            Collect(key="b", group=RANKS, after_compute=False),
        ]
        ops[rank] += [Kernel(ns=40 * MS)]
        ops[rank] += [Host(ns=LATE)] if rank == 3 else []
        ops[rank] += [Collect(key="c", group=RANKS, after_compute=False), Join(key="c"), Kernel(ns=MS)]
    analysis = analysed(tmp_path, ops)
    blamed = analysis.collectives[analysis.collectives["unit"] == "c"]
    assert set(blamed["blamed_rank"]) == {3}
    assert set(blamed["late_reason"]) == {"host"}
    waits = {entry.rank: entry.wait_ns for entry in analysis.time.blame.per_rank}
    queue = 4 * MS  # behind a and b, which nobody was late to
    assert waits[3] == pytest.approx(3 * (LATE - queue), rel=0.01)


def test_a_healthy_run_accuses_nobody(tmp_path):
    analysis = analysed(tmp_path, with_late([]))
    assert all(entry.exposed_wait_ns == 0 for entry in analysis.time.blame.per_rank)
    assert analysis.time.blame.judged == 7


def test_a_missing_rank_leaves_everything_unjudged(tmp_path):
    analysis = analysed(tmp_path, with_late(PLANTED["compute"]), skip_ranks=[3])
    shares = analysis.time.blame
    assert shares.judged == 0
    assert shares.unjudged_ns == pytest.approx(2 * LATE, rel=0.05)
    assert all(entry.exposed_wait_ns == 0 and not entry.reasons for entry in shares.per_rank)
    assert (analysis.collectives["blamed_rank"] == -1).all()
    assert analysis.collectives["bound"].all()


def reason_at(analysis, unit):
    """The one reason for which somebody is blamed at a collective."""
    rows = analysis.collectives[analysis.collectives["unit"] == unit]
    (reason,) = set(rows["late_reason"])
    return reason


def test_a_delay_that_the_others_have_waited_for_explains_nothing_later(tmp_path):
    programs = with_late([])
    begin = programs[1].index(Join(key="g3"))
    later = programs[1].index(Join(key="g4"))
    programs[1].insert(later + 1, Host(ns=LATE))
    programs[1].insert(later + 1, Drain())
    programs[1].insert(begin + 1, Kernel(ns=3 * LATE))
    analysis = analysed(tmp_path, programs)
    assert (reason_at(analysis, "g4"), reason_at(analysis, "g5")) == ("compute", "host")


def test_a_call_under_which_the_device_was_busy_is_not_why_it_ran_dry(tmp_path):
    programs = {}
    for rank in RANKS:
        late = [Host(ns=2 * LATE, name="cudaMalloc"), Drain(), Host(ns=LATE)] if rank == 1 else []
        programs[rank] = program(Kernel(ns=4 * LATE), *late)
    assert reason_at(analysed(tmp_path, programs), "g4") == "host"


def test_a_rank_that_started_late_and_runs_alike_has_no_reason_in_its_pace(tmp_path):
    """All hosts are slower than their devices; one is as far behind at the end as at the start."""
    slow = [
        op for op in program(units=8) for op in ((Host(ns=2 * MS), op) if isinstance(op, Kernel) else (op,))
    ]
    short = [Kernel(ns=MS) if isinstance(op, Kernel) else op for op in slow]
    programs = {rank: [Host(ns=LATE), Step(), *short] if rank == 1 else [Step(), *short] for rank in RANKS}
    first = analysed(tmp_path, programs).time.blame.per_rank[0]
    assert first.rank == 1
    assert first.exposed_wait_ns > 3 * MS
    assert "host" not in first.reasons
