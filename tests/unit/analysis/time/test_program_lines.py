"""The line of the program behind fetching, reading back and backward, in recordings and in traces."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from zprof.analysis.time.program_lines import (
    locate_backward,
    locate_device_waits,
    locate_loader,
    locate_reads,
)
from zprof.model.findings import SourceLocation
from zprof.model.training import TrainingFacts
from zprof.run.manifest import RunManifest
from zprof.run.reader import Run, load
from zprof.run.writer import RankWriter

MS = 1_000_000
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
#: start, duration, category, name
Event = tuple[int, int, str, str]
EVENTS: list[Event] = [
    (0, 40 * MS, "user_annotation", LOADER),
    (50 * MS, MS, "cpu_op", "aten::item"),
    (51 * MS + 1000, 10 * MS, "user_annotation", "zprof::wait"),
    (70 * MS, MS, "cpu_op", "aten::item"),
    (71 * MS, 20 * MS, "cuda_runtime", "cudaStreamSynchronize"),
    (91 * MS, MS, "cuda_runtime", "cudaLaunchKernel"),
]
#: Frames of each stack, innermost first.
STACKS = [
    [("/job/data.py", 20, "__getitem__"), ("/x/site-packages/torch/utils/data/fetch.py", 5, "fetch"),
     ("/job/train.py", 30, "main")],
    [("/job/data.py", 21, "__getitem__"), ("/job/train.py", 30, "main")],
    [("/job/train.py", 30, "main")],
    [("/job/train.py", 33, "main")],
    [("/x/site-packages/torch/optim/adam.py", 9, "step"), ("/job/train.py", 35, "main")],
    [("/job/model.py", 8, "forward"), ("/x/site-packages/torch/autograd/graph.py", 3, "_engine_run_backward"),
     ("/x/site-packages/torch/autograd/__init__.py", 4, "backward"),
     ("/x/site-packages/torch/_tensor.py", 2, "backward"), ("/job/train.py", 32, "main")],
    [("/job/train.py", 34, "main")],
]  # fmt: skip
#: time, kind, stack
SAMPLES = [
    *((time * MS, "timer", 1) for time in (5, 10, 15)),
    *((time * MS, "timer", 0) for time in (20, 25)),
    (35 * MS, "timer", 2),
    (45 * MS, "timer", 5),
    (50 * MS - 1000, "read", 3),
    (70 * MS - 1000, "read", 4),
    *((time * MS, "timer", 6) for time in (75, 85)),
]


def write_run(folder: Path, events: Sequence[Event], *, sampled: bool) -> Run:
    manifest = RunManifest(
        zprof_version="0", created_ns=0, world_size=1, backend="gloo", device="cpu",
        training=TrainingFacts(), folder="/job",
    )  # fmt: skip
    writer = RankWriter(folder / "a.zprof", 0, manifest)
    names = ("start_ns", "duration_ns", "category", "name")
    columns = {name: [event[at] for event in events] for at, name in enumerate(names)}
    writer.write_table("events", {**columns, "thread": [1] * len(events)})
    if sampled:
        sample_names = ("time_ns", "kind", "stack")
        rows = [
            (stack, depth, *frame)
            for stack, frames in enumerate(STACKS)
            for depth, frame in enumerate(frames)
        ]
        frame_names = ("stack", "depth", "file", "line", "function")
        writer.write_table("host_sample", {n: [s[at] for s in SAMPLES] for at, n in enumerate(sample_names)})
        writer.write_table("host_stack", {n: [row[at] for row in rows] for at, n in enumerate(frame_names)})
    writer.finish(memory_steps=(), time_steps=(0,), gaps=(), status="complete")
    return load(folder / "a.zprof")


@pytest.mark.parametrize(
    ("locate", "place"),
    [
        (locate_loader, ("data.py", 21)),  # the line with most samples, in the function with most samples
        (locate_reads, ("train.py", 33)),  # not line 35, which reads too, but after which nobody waits
        (locate_device_waits, ("train.py", 34)),
        (locate_backward, ("train.py", 32)),  # not the forward that it recomputes
    ],
)
def test_a_recording_names_the_line(
    locate: Callable[[Run], SourceLocation | None], place: tuple[str, int], tmp_path: Path
) -> None:
    location = locate(write_run(tmp_path, EVENTS, sampled=True))
    assert location is not None
    assert (location.file, location.line) == place


CALLS: list[Event] = [
    (-10 * MS, 200 * MS, "python_function", "train.py(25): main"),
    (1 * MS, 38 * MS, "python_function", "torch/utils/data/fetch.py(3): fetch"),
    (2 * MS, 30 * MS, "python_function", "data.py(18): __getitem__"),
    (60 * MS, 40 * MS, "python_function", "train.py(50): log_loss"),
    (110 * MS, 50 * MS, "python_function", "torch/_tensor.py(500): backward"),
]


@pytest.mark.parametrize(
    ("locate", "function"),
    [(locate_loader, "__getitem__"), (locate_device_waits, "log_loss"), (locate_backward, "main")],
)
def test_a_trace_with_stacks_names_the_function(
    locate: Callable[[Run], SourceLocation | None], function: str, tmp_path: Path
) -> None:
    location = locate(write_run(tmp_path, [*EVENTS, *CALLS], sampled=False))
    assert location is not None
    assert location.function == function


@pytest.mark.parametrize("locate", [locate_loader, locate_reads, locate_device_waits, locate_backward])
def test_without_stacks_there_is_no_line(
    locate: Callable[[Run | None], SourceLocation | None], tmp_path: Path
) -> None:
    assert locate(write_run(tmp_path, EVENTS, sampled=False)) is None
    assert locate(None) is None
