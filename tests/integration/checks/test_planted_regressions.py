"""Regressions planted in the engine on real ranks: each fails the check at its gate, an equal run passes.

Bytes and counts are those of the program, whatever else the machine does; the lost overlap is planted on a
modelled link, where it is most of the communication.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from zprof.checks.baseline import make_baseline
from zprof.checks.check import check
from zprof.checks.config import default_limits, soften_for_device
from zprof.checks.limits import parse_limit
from zprof.model.check import Check, GateResult, Limit
from zprof.model.report import Report
from zprof.rules.diagnose import diagnose
from zprof.run.reader import load

pytestmark = pytest.mark.ranks
TINY = (
    "--stage 3 --layers 2 --hidden 64 --heads 4 --vocabulary 64 --context 32 --batch 8 "
    "--keep-after-forward last --checkpoint --skip-steps 1 --memory-steps 1 --time-steps 2"
)
MODELLED = "--skip-steps 1 --memory-steps 0 --time-steps 6"
EXACT = tuple(
    limit
    for gate in ("peak_memory", "collective_bytes", "collective_count")
    if (limit := parse_limit(gate, "exact", origin="zprof.toml")) is not None
)
EQUAL_RUNS = 50


def record(run: Path, *options: str) -> Path:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-m", "zprof", "train", "-o", str(run), "--force", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2_000:]
    return run


@cache
def report_of(run: Path) -> Report:
    return diagnose(load(run))


def held(run: Path, base: Path, *limits: Limit) -> Check:
    environment = load(base).manifest.environment
    baseline = make_baseline(report_of(base), environment, "base")
    return check(report_of(run), limits, baseline, environment=environment)


def failed(found: Check) -> dict[str, GateResult]:
    return {result.limit.gate: result for result in found.results if result.outcome == "failed"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checked")


@pytest.fixture(scope="module")
def base(folder: Path) -> Path:
    return record(folder / "base.zprof", *TINY.split())


@pytest.mark.parametrize(
    ("planted", "gates", "gate", "says"),
    [
        (("--batch", "16"), {"peak_memory"}, "peak_memory", "; activations grew most, +"),
        pytest.param(
            ("--constant-buffers", "262144"),
            {"peak_memory"},
            "peak_memory",
            "; communication buffers grew most, +",
            marks=pytest.mark.slow,
        ),
        (
            ("--accumulate", "2"),
            {"collective_bytes", "collective_count"},
            "collective_bytes",
            " is 100.0 % above the baseline's ",
        ),
        pytest.param(
            ("--units", "layers"),
            {"collective_count"},
            "collective_count",
            "; all_gather of float32 over 2 ranks",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["larger micro-batch", "larger buffers", "reduced each micro-batch", "smaller units"],
)
def test_a_planted_regression_fails_at_its_gate(
    folder: Path, base: Path, planted: tuple[str, ...], gates: set[str], gate: str, says: str
) -> None:
    run = record(folder / "planted.zprof", *TINY.split(), *planted)
    report_of.cache_clear()
    found = held(run, base, *soften_for_device(default_limits(), "cpu"))
    assert (found.outcome, found.exit_code) == ("failed", 1)
    wrong = failed(found)
    assert gates <= set(wrong), [result.sentence for result in found.results]
    assert says in wrong[gate].sentence, wrong[gate].sentence
    assert wrong[gate].sentence.startswith(f"{gate}: ")


def test_an_equal_run_passes_to_the_byte(folder: Path, base: Path) -> None:
    equal = record(folder / "equal.zprof", *TINY.split())
    found = held(equal, base, *EXACT)
    assert found.outcome == "passed", [result.sentence for result in found.results]


@pytest.mark.timed
def test_lost_overlap_fails_through_its_interval(folder: Path) -> None:
    limits = [
        parse_limit(gate, said, origin="zprof.toml")
        for gate, said in (("overlap_ratio", "-5pt @0.95"), ("exposed_ratio", "+5pt @0.95"))
    ]
    planted = (*MODELLED.split(), "--plant", "no_prefetch")
    cured = record(folder / "cured.zprof", *planted, "--cured")
    lost = record(folder / "lost.zprof", *planted)
    stated = [limit for limit in limits if limit is not None]
    wrong = failed(held(lost, cured, *stated))
    assert set(wrong) == {"overlap_ratio", "exposed_ratio"}
    assert "of the communication hidden is " in wrong["overlap_ratio"].sentence
    assert " points below the baseline's " in wrong["overlap_ratio"].sentence
    assert held(cured, cured, *stated).outcome == "passed"


@contextmanager
def loaded_cores() -> Iterator[None]:
    """A process on each core that does nothing but count."""
    burn = [sys.executable, "-c", "while True: pass"]
    burners = [subprocess.Popen(burn) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


@pytest.mark.slow
def test_an_equal_run_passes_every_time_on_a_loaded_machine(folder: Path, base: Path) -> None:
    ended = []
    limits = (*soften_for_device(default_limits(), "cpu"), *EXACT)
    with loaded_cores():
        for count in range(EQUAL_RUNS):
            run = record(folder / f"loaded{count}.zprof", *TINY.split())
            found = held(run, base, *limits)
            ended.append((found.exit_code, [result.sentence for result in failed(found).values()]))
    assert ended == [(0, [])] * EQUAL_RUNS
