"""A baseline: leaves of the report, a file that can be reviewed, and one that a stranger may have made."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.check_runs import ENVIRONMENT, MS, Made
from tests.support.memories import HOSTILE
from zprof.checks.baseline import make_baseline, read_baseline, to_json
from zprof.model.baseline import Baseline, CollectiveBaseline, Conditions, MemoryBaseline, TimeBaseline
from zprof.model.collectives import CollectiveKind
from zprof.model.errors import BadInput
from zprof.model.tenants import Tenant
from zprof.model.time import Window, WindowPolicy

MADE = Made().baseline


def test_it_holds_leaves_of_the_report() -> None:
    made = Made(peaks=(900, 1000))
    base = made.baseline
    assert base.memory is not None
    assert (base.memory.peak_bytes, base.memory.untagged_bytes) == (1000, 10)
    assert base.memory.tenants == {tenant.value: size for tenant, size in tenants(made, 1).items()}
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


def tenants(made: Made, rank: int) -> Any:
    return made.report.memory.per_rank[rank].tenants


def test_what_would_not_be_read_is_not_written() -> None:
    many = (100 * MS,) * 40_000
    assert MADE.time is not None
    time = replace(MADE.time, wall_ns=many, exposed_ns=many, collective_ns=many)
    with pytest.raises(BadInput, match="larger than one can be"):
        to_json(replace(MADE, time=time))


def test_a_step_is_the_mean_over_its_ranks() -> None:
    report = Made().report
    steps = [replace(step, wall_ns=step.wall_ns + step.rank * 3) for step in report.time.steps]
    base = make_baseline(replace(report, time=replace(report.time, steps=tuple(steps))), {}, "x")
    assert base.time is not None
    assert base.time.wall_ns == (100 * MS + 2,) * 8  # 1.5 more, to even


def test_what_was_not_measured_is_null_and_not_nothing() -> None:
    empty = Made(memory=False, walls=()).baseline
    assert (empty.memory, empty.collectives, empty.time) == (None, None, None)
    silent = Made(collectives=()).baseline
    assert silent.collectives is None  # two ranks must have met
    assert Made(collectives=(), world=1, timed=(0,)).baseline.collectives == ()
    half = Made(peaks=(1,), timed=(1,)).baseline
    assert half.memory is not None
    assert half.time is not None
    assert (half.memory.missing_ranks, half.time.missing_ranks) == ((1,), (0,))


def test_a_recording_as_one_stretch_says_so() -> None:
    report = Made().report
    window = Window(policy=WindowPolicy.TRACE, source="whole trace")
    whole = replace(report, time=replace(report.time, window=window))
    assert make_baseline(whole, ENVIRONMENT, "x").conditions.window == "trace"


def test_the_file_is_small_and_one_list_is_one_line(tmp_path: Path) -> None:
    text = to_json(MADE)
    assert json.loads(text)["memory"]["peak_bytes"] == 1000
    assert len(text.splitlines()) < 50
    assert any(line.count(str(100 * MS)) == 8 for line in text.splitlines())
    assert text == to_json(MADE)
    assert text.isascii()


def test_names_of_a_run_are_harmless_in_it() -> None:
    entry = ("all_gather", HOSTILE, 1.0, 1)
    base = replace(Made(collectives=(entry,)), facts={"backend": HOSTILE, "device": "x" * 10_000}).baseline
    text = to_json(base)
    assert "\x1b" not in text
    assert "\\u001b" not in text
    assert len(base.conditions.device) <= 100


_SIZE = st.integers(0, 1 << 60)
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
_RANKS = st.lists(st.integers(0, 100), max_size=3).map(tuple)


def _time(rows: list[tuple[int, int, int]], more: tuple[Any, ...]) -> TimeBaseline:
    walls = tuple(max(wall, exposed) for wall, exposed, _ in rows)
    _, exposed, collective = zip(*rows, strict=True)
    return TimeBaseline(
        wall_ns=walls, exposed_ns=exposed, collective_ns=collective,
        exposed_ratio=sum(exposed) / sum(walls) if sum(walls) else None,
        overlap_ratio=max(0.0, 1 - sum(exposed) / sum(collective)) if sum(collective) else None,
        exposed_wait_ns=more[0], upper_bound=more[1], missing_ranks=more[2],
    )  # fmt: skip


def _memory(untagged: int, tenants: dict[str, int], more: tuple[Any, ...]) -> MemoryBaseline:
    return MemoryBaseline(
        peak_bytes=untagged + sum(tenants.values()), untagged_bytes=untagged, tenants=tenants,
        upper_bound=more[0], lower_bound=more[1], missing_ranks=more[2],
    )  # fmt: skip


_BASELINES = st.builds(
    Baseline,
    zprof_version=_TEXT,
    name=_TEXT,
    conditions=st.builds(
        Conditions,
        device=_TEXT,
        backend=_TEXT,
        world_size=st.integers(1, 4096),
        engine=_TEXT,
        stage=st.none() | st.integers(0, 3),
        torch=_TEXT,
        modelled=st.lists(_TEXT, max_size=2).map(tuple),
        window=st.sampled_from(["step", "trace"]),
    ),
    memory=st.none()
    | st.builds(
        _memory,
        st.integers(0, 1 << 56),
        st.dictionaries(st.sampled_from([tenant.value for tenant in Tenant]), st.integers(0, 1 << 56)),
        st.tuples(st.booleans(), st.booleans(), _RANKS),
    ),
    collectives=st.none()
    | st.lists(
        st.builds(
            CollectiveBaseline,
            kind=st.sampled_from([kind.value for kind in CollectiveKind]),
            dtype=_TEXT,
            group_size=st.integers(0, 4096),
            count=st.floats(0, 1e9),
            bytes=_SIZE,
        ),
        max_size=3,
        unique_by=lambda entry: (entry.kind, entry.dtype, entry.group_size),
    ).map(tuple),
    time=st.none()
    | st.builds(
        _time,
        st.lists(st.tuples(_SIZE, _SIZE, _SIZE), min_size=1, max_size=9),
        st.tuples(st.none() | _SIZE, st.booleans(), _RANKS),
    ),
)


@given(baseline=_BASELINES)
@settings(max_examples=100)
def test_what_is_written_is_read_again(tmp_path_factory: pytest.TempPathFactory, baseline: Baseline) -> None:
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
    "no json": "peak_memory = 3",
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
    "negative bytes": changed("memory.peak_bytes", -1),
    "a negative tenant": changed("memory.tenants.activations", -1),
    "bytes beyond any machine": changed("memory.peak_bytes", 1 << 61),
    "a number of a thousand digits": to_json(MADE).replace("1200", "9" * 1000),
    "a text for a number": changed("memory.peak_bytes", "1000"),
    "a fraction of a byte": changed("memory.peak_bytes", 1.5),
    "a boolean for a number": changed("memory.peak_bytes", True),
    "null for a list": changed("time.wall_ns", None),
    "no steps": changed("time", {**json.loads(to_json(MADE))["time"], "wall_ns": [], "exposed_ns": []}),
    "unequal lists": changed("time.exposed_ns", [1]),
    "a negative time": changed("time.wall_ns.0", -1),
    "a negative wait": changed("time.exposed_wait_ns", -1),
    "a ratio above 1": changed("time.exposed_ratio", 1.5),
    "another tenant": changed("memory.tenants", {"<script>": 1}),
    "another kind": changed("collectives.0.kind", "\x1b[31mall_gather"),
    "a kind twice": changed("collectives.1", json.loads(to_json(MADE))["collectives"][0]),
    "a long name": changed("name", "x" * 10_000),
    "tenants that do not sum to the peak": changed("memory.tenants.activations", 691),
    "more exposed than the step": changed("time.exposed_ns", [101 * MS, 0, 0, 0, 0, 0, 0, 59 * MS]),
    "another exposed share than that of the steps": changed("time.exposed_ratio", 0.19),
    "no exposed share": changed("time.exposed_ratio", None),
    "another overlap than that of the steps": changed("time.overlap_ratio", 0.51),
    "seventeen things modelled": changed("conditions.modelled", ["x"] * 17),
    "no ranks": changed("conditions.world_size", 0),
    "a missing rank below 0": changed("memory.missing_ranks", [-1]),
    "a lone surrogate": to_json(MADE).replace('"base"', '"\\ud800"'),
    "too large": to_json(MADE) + " " * (1 << 20),
}


@pytest.mark.parametrize("content", HOSTILE_FILES.values(), ids=HOSTILE_FILES.keys())
def test_a_hostile_file_is_one_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "baseline.json"
    path.write_text(content)
    with pytest.raises(BadInput) as refused:
        read_baseline(path)
    said = refused.value.message
    assert said.startswith(str(path))
    assert said.isprintable()
    assert len(said) < len(str(path)) + 300
    assert refused.value.hint


def test_a_newer_schema_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    path.write_text(changed("schema", "zprof.baseline/2"))
    with pytest.raises(BadInput, match=r'schema "zprof.baseline/2", this zprof reads') as refused:
        read_baseline(path)
    assert "upgrade zprof" in refused.value.hint


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
