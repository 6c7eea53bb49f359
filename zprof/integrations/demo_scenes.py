"""Define the support cases of the demo: one job on this machine, recorded as it is and with its fix.

If link and compute are modelled, overlap is visible on two cores: a block computes for 12 ms forward and 24
ms backward, and its gather takes 8 ms on the link, hidden by concurrent compute if launched in time.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from zprof.base.errors import BadInput, suggest_names
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


class Scene(Struct, frozen=True, kw_only=True):
    """One run of a case: its letter, run name, title and options.

    ``time_steps``: steps with recorded time; more steps make the diagnosis more certain and the demo longer.
    """

    letter: str
    run: str
    title: str
    options: Mapping[str, Any]
    time_steps: int = 4

    def make_job(self, folder: Path) -> ReferenceJob:
        """Return the job that runs the scene."""
        job = ReferenceJob(
            world_size=RANKS,
            options={},
            run=self.get_path(folder),
            skip_steps=1,
            time_steps=self.time_steps,
        )
        return replace(job, options=dict(self.options) | {"steps": job.recorded_steps})

    def get_path(self, folder: Path) -> Path:
        """Return the path of the run."""
        return folder / f"{self.run}.zprof"


class DemoCase(Struct, frozen=True, kw_only=True):
    """A support case: the user's complaint, the run to diagnose, and the run with the fix.

    ``baseline``: the run for comparison, if any. ``fix``: what was changed.
    """

    name: str
    title: str
    question: str
    fix: str
    is_modelled: bool = True
    baseline: Scene | None = None
    faulty: Scene
    fixed: Scene


_SLOWER = DemoCase(
    name="slower-after-sharding",
    title="the step got slower when sharding was turned on",
    question="We turned sharding on to get headroom, and the step got slower. Where do we look?",
    fix="forward_prefetch=1, backward_prefetch=1",
    baseline=Scene(letter="A", run="ddp", title="stage 0, data parallel", options={**_COMMON, "stage": 0}),
    faulty=Scene(
        letter="B",
        run="zero3",
        title="stage 3, no prefetch",
        options={**_COMMON, "stage": 3, "forward_prefetch": 0, "backward_prefetch": 0},
        time_steps=5,
    ),
    fixed=Scene(
        letter="C",
        run="zero3-prefetch",
        title="stage 3, prefetch (the fix)",
        options={**_COMMON, "stage": 3, "forward_prefetch": 1, "backward_prefetch": 1},
    ),
)
#: A delay long enough that other processes on the machine do not hide it.
_STRAGGLER: Mapping[str, Any] = {"plant": "straggler_rank", "straggler_ms": 120.0}
_LATE = DemoCase(
    name="late-rank",
    title="every step waits for one rank",
    question="Every rank has the same work, and still most of them wait in every collective. For whom?",
    fix="rank 1 computes as fast as the others",
    faulty=Scene(
        letter="A",
        run="late-rank",
        title="stage 3, rank 1 is late",
        options=_STRAGGLER,
        time_steps=5,
    ),
    fixed=Scene(
        letter="B",
        run="late-rank-fixed",
        title="the same, no rank late (the fix)",
        options={**_STRAGGLER, "fixed": "fixed"},
    ),
)
_ACCUMULATION: Mapping[str, Any] = {"plant": "accumulation_syncs", "layers": 3, "link_gbps": 0.15}
_SYNCS = DemoCase(
    name="reduction-per-micro-batch",
    title="gradients are reduced in every micro-batch",
    question="We accumulate over 4 micro-batches so that the network rests. Why does it not?",
    fix="reduce_each_micro_batch=False",
    faulty=Scene(
        letter="A",
        run="syncs",
        title="reduced in each of 4 micro-batches",
        options=_ACCUMULATION,
    ),
    fixed=Scene(
        letter="B",
        run="syncs-fixed",
        title="reduced once per step (the fix)",
        options={**_ACCUMULATION, "fixed": "fixed"},
    ),
)
#: The vocabulary is large for the model, to make the logits its largest tensors, as with 128,000 tokens.
_LARGE_VOCABULARY: Mapping[str, Any] = {
    "stage": 3,
    "layers": 1,
    "hidden": 32,
    "context": 128,
    "batch": 8,
    "vocabulary": 1 << 14,
}
_LOGITS = DemoCase(
    name="logits-fill-memory",
    title="the logits of the loss take most of the memory",
    question="The model is small and sharded. What fills the memory?",
    fix="four micro-batches of one sample instead of one of four: the same batch in less memory",
    is_modelled=False,
    faulty=Scene(
        letter="A",
        run="logits",
        title="vocabulary 16,384, one micro-batch",
        options=_LARGE_VOCABULARY,
        time_steps=0,
    ),
    fixed=Scene(
        letter="B",
        run="logits-fixed",
        title="the same in 4 micro-batches (the fix)",
        options={**_LARGE_VOCABULARY, "accumulate": 4},
        time_steps=0,
    ),
)
#: The first case is the default.
CASES = (_SLOWER, _LATE, _SYNCS, _LOGITS)


def find_case(name: str) -> DemoCase:
    """Return the case with that name.

    Raises:
        BadInput: no case has that name.
    """
    cases = {case.name: case for case in CASES}
    if name not in cases:
        raise BadInput(f"no demo named {name[:60]!r}", hint=suggest_names(name, cases))
    return cases[name]
