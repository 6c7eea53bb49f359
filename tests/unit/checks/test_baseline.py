"""A baseline: leaves of the report, a file that reads back, and one that a stranger may have made."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.check_runs import ENVIRONMENT, MS, Made
from tests.support.memories import HOSTILE
from zprof.base.errors import BadInput
from zprof.checks.baseline import make_baseline, read_baseline, to_json
from zprof.model.baseline import CollectiveBaseline, Conditions
from zprof.model.collectives import CollectiveKind
from zprof.model.tenants import Tenant

MADE = Made().baseline


def test_a_baseline_holds_leaves_of_the_report() -> None:
    made = Made(peaks=(900, 1000))
    base = made.baseline
    assert base.memory is not None
    assert (base.memory.peak_bytes, base.memory.untagged_bytes) == (1000, 10)
    tenants = made.report.memory.per_rank[1].tenants
    assert base.memory.tenants == {tenant.value: size for tenant, size in tenants.items()}
    assert base.collectives == (
        CollectiveBaseline(kind="all_gather", dtype="float32", group_size=2, count=18.0, bytes=1200),
        CollectiveBaseline(kind="reduce_scatter", dtype="float32", group_size=2, count=9.0, bytes=600),
    )
    assert base.time is not None
    assert base.time.wall_ns == (100 * MS,) * 8
    assert (base.time.exposed_ratio, base.time.overlap_ratio) == (0.2, 0.5)
    assert base.time.exposed_wait_ns == 4 * MS
    assert base.conditions == Conditions(
        device="cpu", backend="gloo", world_size=2, engine="reference", stage=3, torch="2.13.0+cpu"
    )


def test_a_bound_of_any_rank_makes_the_peak_a_lower_bound() -> None:
    report = Made(peaks=(1000, 900)).report
    first, second = report.memory.per_rank
    ranks = (first, replace(second, lower_bound=True))
    base = make_baseline(replace(report, memory=replace(report.memory, per_rank=ranks)), ENVIRONMENT, "x")
    assert base.memory is not None
    assert (base.memory.peak_bytes, base.memory.lower_bound) == (1000, True)


def test_a_baseline_that_could_not_be_read_is_not_written() -> None:
    many = (100 * MS,) * 40_000
    assert MADE.time is not None
    time = replace(MADE.time, wall_ns=many, exposed_ns=many, collective_ns=many)
    with pytest.raises(BadInput):
        to_json(replace(MADE, time=time))


def test_a_step_is_the_mean_over_its_ranks() -> None:
    report = Made().report
    steps = [replace(step, wall_ns=step.wall_ns + step.rank * 3) for step in report.time.steps]
    base = make_baseline(replace(report, time=replace(report.time, steps=tuple(steps))), {}, "x")
    assert base.time is not None
    assert base.time.wall_ns == (100 * MS + 2,) * 8  # 1.5 more, to even


def test_what_was_not_measured_is_null() -> None:
    empty = Made(memory=False, walls=()).baseline
    assert (empty.memory, empty.collectives, empty.time) == (None, None, None)
    silent = Made(collectives=()).baseline
    assert silent.collectives is None  # two ranks must have met
    assert Made(collectives=(), world=1, timed=(0,)).baseline.collectives == ()
    half = Made(peaks=(1,), timed=(1,)).baseline
    assert half.memory is not None
    assert half.time is not None
    assert (half.memory.missing_ranks, half.time.missing_ranks) == ((1,), (0,))


def test_names_of_a_run_are_harmless_in_the_file() -> None:
    entry = ("all_gather", HOSTILE, 1.0, 1)
    base = Made(collectives=(entry,), facts={"backend": HOSTILE, "device": "x" * 10_000}).baseline
    text = to_json(base)
    assert "\x1b" not in text
    assert "\\u001b" not in text
    assert len(base.conditions.device) <= 100


AMOUNTS = st.integers(0, 1 << 56)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
STEPS = st.lists(st.tuples(AMOUNTS, AMOUNTS, AMOUNTS), min_size=1, max_size=9)


@st.composite
def runs(draw: st.DrawFn) -> Made:
    """A run of any sizes and times, with any windows, bounds and names."""
    walls, exposed, collective = zip(*draw(STEPS), strict=True)
    kinds = draw(st.sets(st.sampled_from([kind.value for kind in CollectiveKind]), max_size=3))
    flags = draw(st.tuples(*[st.booleans()] * 5))
    return Made(
        walls=tuple(map(max, walls, exposed)), exposed=exposed, collective=collective, wait=0,
        tenants=draw(st.dictionaries(st.sampled_from(Tenant), AMOUNTS)), untagged=draw(AMOUNTS),
        peaks=(0,) * draw(st.integers(1, 2)), timed=draw(st.sampled_from([(0,), (1,), (0, 1)])),
        collectives=[(kind, draw(NAMES), draw(st.floats(0, 1e8)), draw(AMOUNTS)) for kind in kinds],
        memory=flags[0], upper_memory=flags[1], lower_memory=flags[2], upper_time=flags[3], name=draw(NAMES),
        unsplit=int(flags[4]), facts={"backend": draw(NAMES), "stage": draw(st.none() | st.integers(0, 3))},
    )  # fmt: skip


@given(made=runs())
@settings(max_examples=50)
def test_what_is_written_is_read_again(tmp_path_factory: pytest.TempPathFactory, made: Made) -> None:
    baseline = made.baseline
    if baseline.memory is not None:  # the peak is the sum of its tenants, as in any run
        total = baseline.memory.untagged_bytes + sum(baseline.memory.tenants.values())
        baseline = replace(baseline, memory=replace(baseline.memory, peak_bytes=total))
    path = tmp_path_factory.getbasetemp() / "round_trip.json"
    path.write_text(to_json(baseline))
    assert read_baseline(path) == baseline


def changed(place: str, value: Any) -> str:
    """The file with one value of it changed."""
    tree = json.loads(to_json(MADE))
    *way, last = place.split(".")
    part = tree
    for key in way:
        part = part[int(key)] if key.isdigit() else part[key]
    part[int(last) if last.isdigit() else last] = value
    return json.dumps(tree)


HOSTILE_FILES = {
    "empty": "",
    "no object": "[1, 2]",
    "deep": "[" * 100_000,
    "deep object": '{"schema":' * 50_000,
    "another schema": '{"schema": "zprof.run/1"}',
    "a newer schema": changed("schema", "zprof.baseline/2"),
    "a hostile schema": changed("schema", "zprof.baseline/\x1b[2J\n::error::x"),
    "NaN": to_json(MADE).replace("18.0", "NaN"),
    "infinity": to_json(MADE).replace("18.0", "1e999"),
    "a huge count": changed("collectives.0.count", 1e300),
    "a negative count": changed("collectives.0.count", -1),
    "a negative tenant": changed("memory.tenants", {"activations": -1, "parameters": 991}),
    "bytes beyond any machine": changed(
        "memory", {"peak_bytes": 1 << 61, "untagged_bytes": 1 << 61, "tenants": {}}
    ),
    "a number of a thousand digits": to_json(MADE).replace("1200", "9" * 1000),
    "a text for a number": changed("memory.peak_bytes", "1000"),
    "a boolean for a number": changed("memory.peak_bytes", True),
    "unequal lists": changed("time.exposed_ns", [1]),
    "a negative time": changed("time.wall_ns.0", -1),
    "a ratio above 1": changed("time.exposed_ratio", 1.5),
    "another tenant": changed("memory.tenants", {"<script>": 990}),
    "another kind": changed("collectives.0.kind", "\x1b[31mall_gather"),
    "a kind twice": changed("collectives.1", json.loads(to_json(MADE))["collectives"][0]),
    "a long name": changed("name", "x" * 10_000),
    "tenants that do not sum to the peak": changed("memory.tenants.activations", 691),
    "more exposed than the step": changed("time.exposed_ns", [101 * MS, 0, 0, 0, 0, 0, 0, 59 * MS]),
    "another exposed share than that of the steps": changed("time.exposed_ratio", 0.19),
    "another overlap than that of the steps": changed("time.overlap_ratio", 0.51),
    "seventeen things modelled": changed("conditions.modelled", ["x"] * 17),
    "no ranks": changed("conditions.world_size", 0),
    "a missing rank below 0": changed("memory.missing_ranks", [-1]),
    "a lone surrogate": to_json(MADE).replace('"base"', '"\\ud800"'),
    "too large": to_json(MADE) + " " * (1 << 20),
}


@pytest.mark.parametrize("content", HOSTILE_FILES.values(), ids=HOSTILE_FILES.keys())
def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "baseline.json"
    path.write_text(content)
    with pytest.raises(BadInput) as refused:
        read_baseline(path)
    said = refused.value.message
    assert said.startswith(str(path))
    assert said.isprintable()
    assert len(said) < len(str(path)) + 300
    assert refused.value.hint


def test_keys_of_a_later_zprof_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    path.write_text(changed("memory.more", 3))
    assert read_baseline(path) == MADE


def test_only_a_plain_file_is_read(tmp_path: Path) -> None:
    pipe, loop, folder = tmp_path / "pipe", tmp_path / "loop", tmp_path / "folder"
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    folder.mkdir()
    device = tmp_path / "device"
    device.symlink_to("/dev/zero")
    for path in (pipe, loop, folder, device, tmp_path / "none", tmp_path / ("x" * 300), tmp_path / "a\0b"):
        with pytest.raises(BadInput) as refused:
            read_baseline(path)
        assert refused.value.message.isprintable()
