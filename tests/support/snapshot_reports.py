"""Reports on the simulated history of a small training program, as if its snapshot had been imported."""

import tempfile
from functools import cache
from pathlib import Path

from benchmarks.snapshot_truth.segments import MIB
from benchmarks.snapshot_truth.write_snapshot import snapshot_of
from tests.support.snapshot_histories import FORWARD, MAIN, Frames, Training, at, written
from zprof.collectors.read.snapshot.convert import convert_snapshot
from zprof.diagnosis.diagnose import diagnose, diagnose_side_by_side
from zprof.model.comparison import SideBySide
from zprof.model.report import Report
from zprof.run.reader import Run

#: An operator, as torch's C++ frames name it.
EXP = {"filename": "??", "line": 0, "name": "at::_ops::exp::call(at::Tensor const&)"}
SOFTMAX: Frames = [EXP, at("/home/user/model.py", "softmax"), *FORWARD[1:]]


def program(steps: int = 2, *, scores_bytes: int = 20 * MIB, function: str = "softmax") -> Training:
    """A program whose parameters are older than its history, and that stops in a forward."""
    made = Training()
    made.parameters = [made.alloc(4 * MIB, []) for _ in range(made.layers)]
    made.allocator.begin_history()
    for _ in range(steps):
        made.step()
    made.forward()
    for _ in range(4):
        made.alloc(scores_bytes, [EXP, at("/home/user/model.py", function), *SOFTMAX[2:]])
    made.alloc(MIB, [at("/home/user/train.py", "keep"), MAIN])
    return made


def run_of(made: Training, folder: Path) -> Run:
    """The imported snapshot of a program."""
    return written(folder, convert_snapshot(snapshot_of(made.allocator)).tables(), source="snapshot")


@cache
def snapshot_report() -> Report:
    """The report on one snapshot."""
    with tempfile.TemporaryDirectory() as folder:
        return diagnose(run_of(program(), Path(folder)))


@cache
def snapshot_pair() -> SideBySide:
    """Two snapshots; in the second, what the softmax saves is larger."""
    with tempfile.TemporaryDirectory() as a, tempfile.TemporaryDirectory() as b:
        larger = program(scores_bytes=30 * MIB)
        return diagnose_side_by_side(run_of(program(), Path(a)), run_of(larger, Path(b)))


@cache
def snapshot_against_baseline() -> Report:
    """The report on the second of two snapshots, against the first."""
    with tempfile.TemporaryDirectory() as a, tempfile.TemporaryDirectory() as b:
        larger = program(scores_bytes=30 * MIB)
        return diagnose(run_of(larger, Path(b)), run_of(program(), Path(a)))
