"""What a fix saves is what the same job takes less without the cause, on ranks without a device too."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.diagnoses import base, diagnosed, planted, step_ns, true_saving_ns
from zprof.causes import load_causes
from zprof.diagnosis.find_causes import list_gains
from zprof.model.gaps import Gap
from zprof.simulator.job import Vendor
from zprof.step.from_recording import build_host_graph
from zprof.step.play import PlayedStep, play_graph, widen_gains

#: How far a gain may be off, as a share of it: less than the error that ranges state.
_ERROR_RATIO = 0.1
CAUSES = (
    "fp32_reduce",
    "fp32_gather",
    "no_prefetch",
    "straggler_rank",
    "rotating_straggler",
    "data_loader",
    "accumulation_syncs",
    "offload_on_critical_path",
)
_ANONYMOUS = "a wait that returns at once and names no collective is placed at the collective's end"
#: What zprof gets wrong today, how the job differs, and why: the test fails as soon as it is right.
MISSED = (
    ("needless_reshard_after_forward", {}, "calls and copies of dropped gathers are kept: -15 %"),
    ("blocking_sync", {}, "later waits take what the read waited for: +7 to +15 %"),
    ("copy_overhead", {}, "copies into gathers are not seen on CPU ranks: -23 %"),
    (
        "offload_on_critical_path",
        {"bus": 12.0},
        "copies are taken from all of the step: -57 %",
    ),
    ("straggler_rank", {"names_collectives": False}, f"{_ANONYMOUS}: -22 %"),
    ("rotating_straggler", {"names_collectives": False}, f"{_ANONYMOUS}: -38 %"),
)


@pytest.mark.parametrize(
    ("cause", "settings"),
    [
        *((cause, {}) for cause in CAUSES),
        *(
            pytest.param(
                cause,
                settings,
                marks=[pytest.mark.slow, pytest.mark.xfail(strict=True, raises=AssertionError, reason=why)],
            )
            for cause, settings, why in MISSED
        ),
    ],
)
def test_the_gain_on_cpu_ranks_is_the_true_saving(
    cause: str, settings: dict[str, object], tmp_path: Path
) -> None:
    job = planted(cause, base(7, "gloo", **settings), tmp_path / "job")
    truth = true_saving_ns(cause, job.job)
    finding = next(each for each in job.report.findings if each.cause == cause)
    step = PlayedStep(analysis=job.analysis)
    gains = list_gains(step, finding, load_causes()[cause])
    assert not step.has_kernels
    assert truth > 0.02 * step_ns(job.truth)
    assert min(gains) == pytest.approx(truth, rel=_ERROR_RATIO)
    assert max(gains) == pytest.approx(truth, rel=_ERROR_RATIO)


@pytest.mark.parametrize("vendor", ["gloo", "nvidia"])
def test_the_unchanged_step_takes_as_long_as_recorded(vendor: Vendor, tmp_path: Path) -> None:
    """A device of which only the streams are known is played from these."""
    graph = build_host_graph(diagnosed(base(3, vendor), tmp_path).analysis)
    assert not isinstance(graph, Gap)
    lengths = [np.diff(ends, axis=1) for ends in (play_graph(graph), graph.measured_ns)]
    np.testing.assert_allclose(*lengths, rtol=0.01)


@given(st.lists(st.floats(-1e9, 1e9), min_size=1), st.floats(1.0, 1e10))
def test_a_range_holds_its_gains_and_is_never_negative(gains: list[float], step: float) -> None:
    low, high = widen_gains(min(gains), max(gains), step)
    assert 0 <= low <= max([0.0, *gains]) <= high
