"""The table of passes of simulated jobs, against the list of passes that the simulator ran."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from tests.support.diagnoses import base
from tests.support.simulations import simulated
from zprof.analysis.time.passes.table import drop_activation_groups
from zprof.simulator.plan import Gathering, Plan, Vendor
from zprof.simulator.program.phases import list_phases


def job(vendor: Vendor, **changes: object) -> Plan:
    small: Mapping[str, object] = {"ranks": 2, "steps": 3, "units": 4, "micro_batches": 2, **changes}
    return replace(base(3, vendor), **small)  # type: ignore[arg-type]


def passes_of(plan: Plan, folder: Path) -> pd.DataFrame:
    return simulated(plan, folder).analysis.passes


@pytest.mark.parametrize("vendor", [Vendor.NVIDIA, Vendor.GLOO])
def test_gathers_and_reductions_serve_the_passes_that_ran(vendor: Vendor, tmp_path: Path) -> None:
    plan = job(vendor, gathering=Gathering(), reduce_each=True)
    passes = passes_of(plan, tmp_path)
    truth = list_phases(plan)
    gathered = [(f"layers.{p.unit}", p.micro_batch, str(p.kind)) for p in truth if p.gathers]
    reduced = [(f"layers.{p.unit}", p.micro_batch) for p in truth if p.reduces]
    for _, rows in passes.groupby(["rank", "step"]):
        gathers = rows[rows["kind"] == "all_gather"]
        assert list(zip(gathers["unit"], gathers["micro_batch"], gathers["phase"], strict=True)) == gathered
        others = rows[rows["kind"] != "all_gather"]
        assert list(zip(others["unit"], others["micro_batch"], strict=True)) == reduced
        assert gathers["number"].tolist() == gathers.groupby("unit").cumcount().add(1).tolist()
        assert set(gathers["in_micro_batch"]) == {1, 2}
    assert set(passes["method"]) == {"ranges"}


@pytest.mark.parametrize("vendor", [Vendor.NVIDIA, Vendor.GLOO])
def test_compute_between_two_gathers_of_a_unit(vendor: Vendor, tmp_path: Path) -> None:
    plan = job(vendor, gathering=Gathering(), micro_batches=1)
    passes = passes_of(plan, tmp_path)
    again = passes[passes["number"] == 2].groupby("unit")["compute_between_ns"].mean()
    unit = plan.compute.forward_ns
    # the last unit: its own forward alone; the first: every forward, and the backward of all others
    assert again["layers.3"] < 2.5 * unit
    assert again["layers.0"] > 3 * unit + 3 * plan.compute.backward_ns * 0.6
    assert passes.loc[passes["number"] == 1, "compute_between_ns"].isna().all()


@pytest.mark.parametrize("vendor", [Vendor.NVIDIA, Vendor.GLOO])
def test_reductions_without_units_have_their_micro_batch_from_autograd(
    vendor: Vendor, tmp_path: Path
) -> None:
    passes = passes_of(job(vendor, stage=0, reduce_each=True), tmp_path)
    assert set(passes["method"]) == {"autograd"}
    assert set(passes["phase"]) == {"backward"}
    assert passes.groupby("micro_batch").size().nunique() == 1
    assert set(passes["micro_batch"]) == {0, 1}


def test_all_reduces_of_activations_are_no_reductions_of_gradients(tmp_path: Path) -> None:
    passes = passes_of(job(Vendor.NVIDIA, ranks=4, tensor=2, micro_batches=1), tmp_path)
    assert set(passes["kind"]) == {"all_gather", "reduce_scatter"}


def test_a_reduction_behind_the_backward_is_still_of_gradients() -> None:
    """Two units: half of the reductions look as if they were of a forward that never had a backward."""
    rows = [("b", "backward", 1), ("a", "forward", 2)]
    frame = pd.DataFrame(
        [
            {"rank": 0, "step": 0, "micro_batch": 0, "kind": "reduce_scatter", "group": "0,1",
             "unit": unit, "phase": phase, "launched_ns": time}
            for unit, phase, time in rows
        ]
    )  # fmt: skip
    assert drop_activation_groups(frame)["phase"].tolist() == ["backward", "backward"]
    before = frame.assign(launched_ns=[2, 1])
    assert drop_activation_groups(before).empty
