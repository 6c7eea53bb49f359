"""Define the runs of the demo: one model on one modelled link, trained in three ways.

Compute and link are modelled, so that overlap shows on two cores. A block computes for 12 ms forward and
24 ms backward. Its gather takes 8 ms on the link and is hidden by concurrent compute if launched in time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zprof.integrations.reference_job import ReferenceJob

RANKS = 2
_COMMON: Mapping[str, Any] = {
    "layers": 8,
    "hidden": 128,
    "heads": 4,
    "vocabulary": 256,
    "context": 64,
    "batch": 4,
    "link_gbps": 0.4,
    "link_latency_us": 50.0,
    "compute_forward_ms": 12.0,
    "compute_backward_ms": 24.0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One run of the demo: its letter, run name, title and options."""

    letter: str
    run: str
    title: str
    options: Mapping[str, Any]

    def make_job(self, folder: Path) -> ReferenceJob:
        """Return the job that runs the scene."""
        job = ReferenceJob(world_size=RANKS, options={}, run=folder / f"{self.run}.zprof")
        options = dict(_COMMON) | dict(self.options) | {"steps": job.recorded_steps}
        return ReferenceJob(world_size=job.world_size, options=options, run=job.run)


BASELINE = Scene(letter="A", run="ddp", title="stage 0, data parallel", options={"stage": 0})
SLOWER = Scene(
    letter="B",
    run="zero3",
    title="stage 3, no prefetch",
    options={"stage": 3, "forward_prefetch": 0, "backward_prefetch": 0},
)
FIXED = Scene(
    letter="C",
    run="zero3-prefetch",
    title="stage 3, prefetch (the fix)",
    options={"stage": 3, "forward_prefetch": 1, "backward_prefetch": 1},
)
SCENES = (BASELINE, SLOWER, FIXED)
