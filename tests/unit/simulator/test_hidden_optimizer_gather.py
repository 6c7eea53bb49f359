"""The gather of new parameters can run under the next forward and then costs next to nothing."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.diagnoses import base, step_ns, true_saving_ns
from zprof.simulator.causes import Cause, plant
from zprof.simulator.plan import Vendor
from zprof.simulator.simulate import simulate

CAUSE = Cause.UNHIDDEN_OPTIMIZER_GATHER


@pytest.mark.parametrize("vendor", [Vendor.NVIDIA, Vendor.GLOO])
def test_hiding_the_gather_wins_most_of_it(tmp_path: Path, vendor: Vendor) -> None:
    """On a link on which a unit's gather takes less than its forward, all but the first one is hidden."""
    plan = base(0, vendor)
    sick = plant(plan, CAUSE, 1.0)
    gathers_ns = simulate(sick, tmp_path / "sick").per_step[-1].exposed_transfer_ns
    assert 0.6 * gathers_ns < true_saving_ns(CAUSE, plan, tmp_path) < gathers_ns


def test_what_does_not_fit_under_the_forward_stays(tmp_path: Path) -> None:
    """Six forwards of 2 ms hide 12 ms, whatever the link."""
    for strength in (2.0, 4.0):
        folder = tmp_path / str(strength)
        assert true_saving_ns(CAUSE, base(0), folder, strength) == pytest.approx(12e6, rel=0.3)


def test_nothing_hides_it_without_a_forward(tmp_path: Path) -> None:
    plan = plant(base(0), CAUSE, 1.0)
    short = replace(plan, compute=replace(plan.compute, forward_ns=1_000))
    hidden = replace(short, hide_optimizer_gather=True)
    shown_ns = step_ns(simulate(short, tmp_path / "b"))
    assert abs(step_ns(simulate(hidden, tmp_path / "a")) - shown_ns) < 0.05 * shown_ns
