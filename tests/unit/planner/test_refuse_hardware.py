"""Machines that cannot be, and units that are larger than a device, end in one line."""

from dataclasses import fields, replace

import pytest

from tests.support.refused_jobs import V100, refused_in_one_line
from zprof.model.errors import BadInput
from zprof.model.job import Hardware, Job, Shape, Unit
from zprof.planner.refusals import refuse_impossible

JOB = Job(parameters=10**9)


def on(**change: object) -> Job:
    return replace(JOB, hardware=replace(V100, **change))  # type: ignore[arg-type]


REFUSED = {
    "no memory": (on(memory_bytes=0), "V100 DGX-2: memory_bytes is 0", "from 1"),
    "no speed": (on(flops_per_s=0.0), "flops_per_s is 0.0", "above 0"),
    "nan speed": (on(node_bytes_per_s=float("nan")), "node_bytes_per_s is nan", "above 0"),
    "endless speed": (on(intra_bytes_per_s=float("inf")), "intra_bytes_per_s is inf", "above 0"),
    "negative host": (on(host_bytes_per_s=-1.0), "host_bytes_per_s is -1.0", "above 0"),
    "more than peak": (on(efficiency_ratio=1.01), "efficiency_ratio is 1.01", "up to 1"),
    "latency": (on(inter_latency_ns=-1), "inter_latency_ns is -1", "from 0"),
    "node": (on(devices_per_node=0), "devices_per_node is 0", "from 1"),
    "a block larger than the device": (
        Job(parameters=12 * 40_000**2, shape=Shape(layers=1, hidden=40_000), hardware=V100),
        "a block of hidden 40000 is 35.8 GiB when it is whole, V100 DGX-2 has 29.8 GiB",
        "raise mp, or split it",
    ),
    "an embedding larger than the device": (
        Job(
            parameters=12 * 8192**2 + 8192 * 10**7,
            shape=Shape(layers=1, hidden=8192, vocabulary=10**7),
            hardware=V100,
        ),
        "the embedding is 152.6 GiB when it is whole",
        "raise mp",
    ),
    "a unit larger than the device": (
        Job(parameters=2 * 10**10, units=(Unit(name="experts", elements=2 * 10**10),), hardware=V100),
        "unit 'experts' is 37.3 GiB when it is whole",
        "raise mp, or split it",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_machine_that_cannot_be_is_refused_in_one_line(name: str) -> None:
    job, what, remedy = REFUSED[name]
    refused_in_one_line(job, what, remedy)


def test_a_machine_that_can_be_passes() -> None:
    refuse_impossible(on(efficiency_ratio=1.0, inter_latency_ns=0))


def test_every_number_of_hardware_is_looked_at() -> None:
    numbers = [field.name for field in fields(Hardware) if field.name != "name"]
    for name in numbers:
        with pytest.raises(BadInput, match=name):
            refuse_impossible(on(**{name: -1}))
