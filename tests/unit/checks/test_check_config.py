"""Whose limit counts, where it is looked for, and what a file may not say."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.check_runs import ENVIRONMENT, MS, Made
from zprof.checks.check import check
from zprof.checks.config import (
    DEFAULTS,
    StatedLimit,
    default_limits,
    limits_for,
    list_softened,
    soften_for_device,
)
from zprof.checks.limits import parse_limit
from zprof.model.check import Check, Limit, Sense
from zprof.model.errors import BadInput


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / ".git").mkdir()
    return tmp_path


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def by_gate(folder: Path, config: Path | None = None, **flags: str) -> dict[str, Limit]:
    stated = [
        StatedLimit(gate=gate, said=said, origin=f"--{gate}", place=f"--{gate}")
        for gate, said in flags.items()
    ]
    return {limit.gate: limit for limit in limits_for(folder, config=config, flags=stated)}


def test_the_defaults(repository: Path) -> None:
    held = by_gate(repository)
    assert {gate: limit.said for gate, limit in held.items()} == {
        "peak_memory": "+2%",
        "exposed_ratio": "+5pt @0.95",
        "overlap_ratio": "-5pt @0.95",
        "collective_bytes": "+0%",
        "collective_count": "+0%",
        "step_time": "+5% @0.95",
        "exposed_wait": "+10%",
    }
    assert {limit.origin for limit in held.values()} == {"default"}
    assert held["overlap_ratio"].sense is Sense.AT_LEAST
    assert tuple(held) == tuple(DEFAULTS)


def test_each_layer_replaces_the_weaker_gate_by_gate(repository: Path) -> None:
    write(
        repository / "pyproject.toml",
        '[tool.zprof.check]\npeak_memory = "+1%"\nstep_time = "+9%"\ncollective_count = "+0%"\n',
    )
    write(repository / "zprof.toml", '[check]\nstep_time = {max = "+8%", confidence = 0.9}\n')
    held = by_gate(repository, collective_count="12")
    said = {gate: (limit.said, limit.origin) for gate, limit in held.items()}
    assert said["peak_memory"] == ("+1%", "pyproject.toml")
    assert said["step_time"] == ("+8% @0.9", "zprof.toml")
    assert said["collective_count"] == ("12", "--collective_count")
    assert said["collective_bytes"] == ("+0%", "default")


def test_off_takes_a_weaker_limit_away_and_a_stronger_one_brings_it_back(repository: Path) -> None:
    write(repository / "pyproject.toml", "[tool.zprof.check]\npeak_memory = false\nstep_time = 'off'\n")
    assert not {"peak_memory", "step_time"} & set(by_gate(repository))
    assert by_gate(repository, step_time="+1%")["step_time"].said == "+1%"
    assert "collective_bytes" not in by_gate(repository, collective_bytes="off")


TENANTS = {
    "nested": '[tool.zprof.check.peak_memory]\ntotal = "+1%"\nactivations = "+0%"\nuntagged = "1 MiB"\n',
    "dotted": '[tool.zprof.check]\npeak_memory.total = "+1%"\npeak_memory.activations = "+0%"\n'
    'peak_memory.untagged = "1 MiB"\n',
    "quoted": '[tool.zprof.check]\npeak_memory = "+1%"\n"peak_memory.activations" = "+0%"\n'
    '"peak_memory.untagged" = "1 MiB"\n',
    "inline": "[tool.zprof]\ncheck = "
    '{peak_memory = {max = "+1%", activations = "+0%", untagged = "1 MiB"}}\n',
}


@pytest.mark.parametrize("way", TENANTS)
def test_tenants_in_every_way_of_toml(repository: Path, way: str) -> None:
    write(repository / "pyproject.toml", TENANTS[way])
    held = by_gate(repository)
    memory = {gate: limit.said for gate, limit in held.items() if gate.startswith("peak")}
    assert memory == {
        "peak_memory": "+1%",
        "peak_memory.activations": "+0%",
        "peak_memory.untagged": "1 MiB",
    }
    assert list(held)[:3] == list(memory)


def test_a_tenant_may_be_a_table_and_the_total_stays(repository: Path) -> None:
    write(repository / "zprof.toml", "[check.peak_memory.gradients]\nmax = '+3%'\nwarn = true\n")
    held = by_gate(repository)
    assert held["peak_memory.gradients"].warns
    assert held["peak_memory"].origin == "default"


def test_the_nearest_file_that_speaks_of_zprof_counts(repository: Path) -> None:
    write(repository / "pyproject.toml", '[tool.zprof.check]\npeak_memory = "+1%"\n')
    write(repository / "zprof.toml", '[check]\nstep_time = "+1%"\n')
    package = repository / "packages/model"
    write(package / "pyproject.toml", "[tool.ruff]\nline-length = 100\n")
    held = by_gate(package)
    assert (held["peak_memory"].said, held["step_time"].said) == ("+1%", "+1%")
    write(package / "pyproject.toml", '[tool.zprof.check]\npeak_memory = "+7%"\n')
    assert by_gate(package)["peak_memory"].said == "+7%"
    assert by_gate(repository)["peak_memory"].said == "+1%"


def test_nothing_above_the_repository_is_read(tmp_path: Path) -> None:
    write(tmp_path / "zprof.toml", '[check]\npeak_memory = "+9%"\n')
    inside = tmp_path / "repository/deep"
    inside.mkdir(parents=True)
    assert by_gate(inside)["peak_memory"].said == "+9%"
    write(tmp_path / "repository/.git", "gitdir: elsewhere\n")
    assert by_gate(inside)["peak_memory"].said == "+2%"


def test_a_named_file_replaces_those_around(repository: Path) -> None:
    write(repository / "zprof.toml", '[check]\npeak_memory = "+9%"\n')
    named = write(repository / "ci/limits.toml", '[check]\nstep_time = "+4%"\n')
    held = by_gate(repository, config=named)
    assert (held["peak_memory"].said, held["step_time"].origin) == ("+2%", "ci/limits.toml")
    project = write(repository / "ci/pyproject.toml", '[tool.zprof.check]\nstep_time = "+3%"\n')
    assert by_gate(repository, config=project)["step_time"].said == "+3%"
    write(project, "[project]\nname = 'x'\n")
    with pytest.raises(BadInput, match=r"no \[tool\.zprof\.check\]"):
        by_gate(repository, config=project)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[check]\npeek_memory = '+2%'", "zprof.toml, [check] peek_memory: there is no gate"),
        ("[check]\npeek_memory = '+2%'", "did you mean peak_memory"),
        ("[check]\npeak_memory = '+2'", 'zprof.toml, [check] peak_memory: "+2" is a change'),
        ("[check.peak_memory]\nactivation = '+2%'", 'has no part "activation"; did you mean activations'),
        ("[check.peak_memory]\nactivations = '2'", "peak_memory.activations: "),
        ("[check.peak_memory]\ntotal = '+2%'\nmax = '+3%'", "peak_memory has two limits"),
        ("[check]\npeak_memory.untagged = '1 B'\n'peak_memory.untagged' = '2 B'", "has two limits"),
        ("[check]\npeak_memory = {}", "needs max or min"),
        ("[check]\nstep_time = 2026-01-01", "is no limit"),
        ("[check]\nstep_time = ['+2%']", "is no limit"),
        ("[check]\n'a\\nb::error::' = 1", "there is no gate"),
        ("peak_memory = '+2%'", "limits stand in [check]"),
        ("[chekc]\npeak_memory = '+2%'", 'has "chekc", which zprof does not know; limits stand in [check]'),
        ("check = 3", "check is no table; write [check]"),
        ("[check]\npeak_memory = ", "is no TOML: Invalid value (at"),
        ("[check]\npeak_memory = '1'\npeak_memory = '2'", "Cannot overwrite a value"),
        ("[check]\nx = " + "9" * 5000, "is no TOML"),
        ("[check]\nx = " + "[" * 100_000, "nested too deep"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line_with_its_place(
    repository: Path, text: str, words: str
) -> None:
    write(repository / "zprof.toml", text)
    with pytest.raises(BadInput) as refused:
        by_gate(repository)
    line = f"{refused.value.message}; {refused.value.hint}"
    assert line.startswith(str(repository / "zprof.toml"))
    assert words in line
    assert line.isprintable()


def test_pyproject_names_its_own_section(repository: Path) -> None:
    write(repository / "pyproject.toml", "[tool.zprof.chek]\npeak_memory = '+2%'\n")
    with pytest.raises(BadInput, match=r"\[tool\.zprof\] has \"chek\"") as refused:
        by_gate(repository)
    assert refused.value.hint == "limits stand in [tool.zprof.check]"
    write(repository / "pyproject.toml", "tool = 1\n")
    with pytest.raises(BadInput, match="tool is no table"):
        by_gate(repository)


def test_a_file_is_read_up_to_a_size_and_as_utf_8(repository: Path) -> None:
    path = write(repository / "zprof.toml", "#" * (1 << 20))
    assert by_gate(repository)
    path.write_text("#" * ((1 << 20) + 1))
    with pytest.raises(BadInput, match="larger than 1 MiB"):
        by_gate(repository)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(BadInput, match="no UTF-8"):
        by_gate(repository)


def test_a_named_file_that_is_not_there_or_never_ends(repository: Path) -> None:
    with pytest.raises(BadInput, match="no such file"):
        by_gate(repository, config=repository / "none.toml")
    pipe = repository / "pipe.toml"
    os.mkfifo(pipe)
    with pytest.raises(BadInput, match="no such file"):
        by_gate(repository, config=pipe)
    with pytest.raises(BadInput, match="cannot be read"):
        by_gate(repository, config=repository / ("x" * 300))


def test_a_flag_is_named_where_it_makes_no_sense(repository: Path) -> None:
    with pytest.raises(BadInput, match=r'^--step_time: "fast" is no limit$'):
        by_gate(repository, step_time="fast")


BASE = Made()
TIMED = {"exposed_ratio", "overlap_ratio", "step_time", "exposed_wait"}


def test_on_cpu_ranks_a_default_of_time_warns() -> None:
    held = soften_for_device(default_limits(), "cpu")
    assert {limit.gate for limit in held if limit.warns} == TIMED
    assert [limit.said for limit in held] == [limit.said for limit in default_limits()]


def test_on_a_gpu_a_default_of_time_fails() -> None:
    for device in ("cuda", "NVIDIA H200"):
        assert soften_for_device(default_limits(), device) == default_limits()


@pytest.mark.parametrize(("device", "outcome"), [("cpu", "warned"), ("NVIDIA H200", "failed")])
def test_a_rank_that_is_late_in_nearly_all_steps_breaks_the_default(device: str, outcome: str) -> None:
    held = soften_for_device(default_limits(), device)
    found = checked(held, replace(BASE, wait=9 * MS, late=0.9))
    assert {result.limit.gate: result.outcome for result in found.results}["exposed_wait"] == outcome
    assert list_softened(default_limits(), found) == (("exposed_wait",) if device == "cpu" else ())


def test_what_warns_anyway_was_not_softened() -> None:
    of_nobody = checked(soften_for_device(default_limits(), "cpu"), replace(BASE, wait=9 * MS))
    assert [result.limit.gate for result in of_nobody.results if result.outcome == "warned"] == [
        "exposed_wait"
    ]
    stated = parse_limit("exposed_wait", "1 ns", origin="--exposed-wait")
    assert stated is not None
    of_a_value = checked((stated,), BASE)
    unheard = check(
        BASE.report,
        soften_for_device(default_limits(), "cpu"),
        replace(BASE, walls=()).baseline,
        environment=ENVIRONMENT,
    )
    warn = parse_limit("step_time", "1 ns warn", origin="--step-time")
    assert warn is not None
    for limits, found in (
        (default_limits(), of_nobody),
        ((stated,), of_a_value),
        (default_limits(), unheard),
        ((warn,), checked((warn,), BASE)),
    ):
        assert found.outcome == "warned"
        assert list_softened(limits, found) == ()


def checked(limits: Sequence[Limit], run: Made) -> Check:
    return check(run.report, limits, BASE.baseline, environment=ENVIRONMENT)


@pytest.mark.parametrize("origin", ["pyproject.toml", "zprof.toml", "--step-time"])
def test_a_stated_limit_of_time_fails_on_cpu_ranks_too(origin: str) -> None:
    stated = parse_limit("step_time", "+3%@0.95", origin=origin)
    assert stated is not None
    assert soften_for_device([stated], "cpu") == (stated,)
