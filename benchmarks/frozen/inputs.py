"""Write the inputs of a case into its folder: recorded runs, simulated files, and real files of others."""

import pickle
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks import hang_jobs
from benchmarks.hang_jobs.logs import write_logs
from benchmarks.snapshot_truth.generator import generate
from zprof.simulator.faults import remove
from zprof.simulator.ground_truth import draw_job
from zprof.simulator.kineto import write_traces
from zprof.simulator.run import run_job

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "docs/pictures/runs"
#: Public files of other projects, which a user's machine does not have.
SHARED = ROOT.parent / "shared/data"

#: Writes into the folder of a case.
Write = Callable[[Path], None]


def copy(source: Path, name: str = "") -> Write:
    """Return what copies a file or a folder, as ``name``."""
    return partial(_copy, source, name or source.name)


def copy_run(path: str) -> Write:
    """Return what copies a run of docs/pictures/runs, under its own name."""
    return copy(RUNS / path)


def simulate_job(seed: int, fault: str | None, shape: str = "training", without: str = "") -> Write:
    """Return what writes the traces of a simulated job into ``job``.

    ``without``: a cause that the same job in ``before`` does not have.
    """
    return partial(_simulate_job, seed, fault, shape, without)


def simulate_hang(seed: int, fault: str) -> Write:
    """Return what writes the flight-recorder dumps of a job that hangs into ``dumps``."""
    return partial(_simulate_hang, seed, fault)


def simulate_hang_log(seed: int, fault: str, version: str, cut: str) -> Write:
    """Return what writes the log of such a job into ``log``, as torch's ``version`` writes it."""
    return partial(_simulate_hang_log, seed, fault, version, cut)


def simulate_snapshot(seed: int, variant: str, name: str = "snapshot.pickle") -> Write:
    """Return what writes a CUDA memory snapshot of a simulated allocator."""
    return partial(_simulate_snapshot, seed, variant, name)


def write_text(name: str, text: str) -> Write:
    """Return what writes a file of text."""
    return partial(_write_text, name, text)


def _copy(source: Path, name: str, folder: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, folder / name)
    else:
        shutil.copy(source, folder / name)


def _simulate_job(seed: int, fault: str | None, shape: str, without: str, folder: Path) -> None:
    job = draw_job(seed, fault, shape)
    recorded = {"job": job}
    if without:
        before = remove(job, without)
        if before is None:
            raise ValueError(f"job {seed} of {fault} has no {without} to remove")
        recorded["before"] = before
    for name, each in recorded.items():
        (folder / name).mkdir()
        write_traces(run_job(each), folder / name, range(each.world))


def _simulate_hang(seed: int, fault: str, folder: Path) -> None:
    (folder / "dumps").mkdir()
    hang_jobs.write_dumps(hang_jobs.draw_job(seed, fault), folder / "dumps")


def _simulate_hang_log(seed: int, fault: str, version: str, cut: str, folder: Path) -> None:
    (folder / "log").mkdir()
    write_logs(hang_jobs.draw_job(seed, fault), folder / "log", version, cut, seed)
    (folder / "log/truth.json").unlink()


def _simulate_snapshot(seed: int, variant: str, name: str, folder: Path) -> None:
    snapshot, _ = generate(seed, variant)
    (folder / name).write_bytes(pickle.dumps(snapshot))


def _write_text(name: str, text: str, folder: Path) -> None:
    (folder / name).write_text(text, encoding="utf-8")
