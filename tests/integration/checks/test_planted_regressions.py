"""Regressions planted in the engine on real ranks: each fails the check at its gate, an equal run passes."""

from functools import cache
from pathlib import Path

import pytest

from tests.support.command_calls import run_zprof
from zprof.checks.baseline import make_baseline
from zprof.checks.check import check
from zprof.checks.config import adapt_to_device, default_limits
from zprof.checks.limit_text import parse_limit
from zprof.diagnosis.diagnose import diagnose
from zprof.model.comparison import Check, GateResult, Limit
from zprof.model.report import Report
from zprof.run.reader import load

pytestmark = pytest.mark.ranks
TINY = (
    "--stage 3 --layers 2 --hidden 64 --heads 4 --vocabulary 64 --context 32 --batch 8 "
    "--keep-after-forward last --checkpoint --skip-steps 1 --memory-steps 1 --time-steps 2"
)
#: The link is modelled, so that the lost overlap is most of the communication.
MODELLED = "--skip-steps 1 --memory-steps 0 --time-steps 6 --plant no_prefetch"


def stated(**said: str) -> tuple[Limit, ...]:
    limits = (parse_limit(gate, limit, origin="zprof.toml") for gate, limit in said.items())
    return tuple(limit for limit in limits if limit is not None)


EXACT = stated(peak_memory="exact", collective_bytes="exact", collective_count="exact")


def record(run: Path, *lines: str) -> Path:
    options = " ".join(lines).split()
    run_zprof("train", "-o", str(run), "--force", *options, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
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
    return record(folder / "base.zprof", TINY)


@pytest.mark.parametrize(
    ("planted", "gates", "grew"),
    [
        ("--batch 16", {"peak_memory"}, "activations"),
        pytest.param(
            "--accumulate 2", {"collective_bytes", "collective_count"}, "all_gather", marks=pytest.mark.slow
        ),
        pytest.param("--constant-buffers 262144", {"peak_memory"}, "communication", marks=pytest.mark.slow),
        pytest.param("--units layers", {"collective_count"}, "all_gather", marks=pytest.mark.slow),
    ],
)
def test_a_planted_regression_fails_at_its_gate(
    folder: Path, base: Path, planted: str, gates: set[str], grew: str
) -> None:
    run = record(folder / f"{planted.split()[0]}.zprof", TINY, planted)
    found = held(run, base, *adapt_to_device(default_limits(), "cpu"))
    assert (found.outcome, found.exit_code) == ("failed", 1)
    wrong = failed(found)
    assert gates <= set(wrong), [result.sentence for result in found.results]
    assert all(grew in wrong[gate].grew for gate in gates), wrong


@pytest.mark.slow
def test_an_equal_run_passes_to_the_byte(folder: Path, base: Path) -> None:
    found = held(record(folder / "equal.zprof", TINY), base, *EXACT)
    assert found.outcome == "passed", [result.sentence for result in found.results]


@pytest.mark.slow
@pytest.mark.timed
def test_lost_overlap_fails_through_its_interval(folder: Path) -> None:
    fixed = record(folder / "fixed.zprof", MODELLED, "--cured")
    lost = record(folder / "lost.zprof", MODELLED)
    limits = stated(overlap_ratio="-5pt @0.95", exposed_ratio="+5pt @0.95")
    assert set(failed(held(lost, fixed, *limits))) == {"overlap_ratio", "exposed_ratio"}
    assert held(fixed, fixed, *limits).outcome == "passed"
