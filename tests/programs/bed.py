"""Record the programs of this folder as their users would, and compare with what the programs know.

python -m tests.programs.bed [--only TEXT] [--losses]   one line per cell: what zprof says, and the truth
python -m tests.programs.bed --planted [--rounds N]   one line per planted cause: what is found first
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.support import exact_counter
from tests.support.forked_ranks import free_port
from zprof.analysis.analysis import analyse_time_only
from zprof.analysis.time.host_time import is_short_of_processors
from zprof.diagnosis.diagnose import diagnose
from zprof.model.findings import Confidence
from zprof.model.report import Report
from zprof.model.tenants import Tenant
from zprof.run.reader import Run, load

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
TIME_LIMIT_S = 420
SCHEDULE = ("--time-steps", "3")
#: A cause is told from chance over more steps.
PLANTED_SCHEDULE, PLANTED_STEPS = ("--memory-steps", "0", "--time-steps", "12"), 18
_MAX_ERRORS = 8000
BUSY = "while True: pass"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One program with its options. ``package``: what it needs beside torch. ``launcher``: what starts it."""

    program: str
    options: tuple[str, ...] = ()
    ranks: int = 2
    package: str = ""
    launcher: str = "torchrun"
    plant: str = ""

    @property
    def name(self) -> str:
        launcher = "" if self.launcher == "torchrun" else f"{self.launcher} "
        return " ".join([f"{launcher}{self.program}", *self.options, *self.planted_options])

    @property
    def planted_options(self) -> tuple[str, ...]:
        return ("--plant", self.plant) if self.plant else ()

    def is_installed(self) -> bool:
        return not self.package or importlib.util.find_spec(self.package) is not None


def list_cells() -> Iterator[Cell]:
    yield Cell(program="ddp")
    yield Cell(program="ddp", options=("--micro-batches", "2"))
    yield from (
        Cell(program="deepspeed_zero", options=tuple(text.split()), package="deepspeed")
        for text in (
            "--stage 0",
            "--stage 0 --dtype fp32",
            "--stage 1",
            "--stage 1 --groups 2 --micro-batches 2",
            "--stage 2",
            "--stage 2 --groups 2",
            "--stage 2 --groups 2 --micro-batches 2 --evaluate",
            "--stage 2 --groups 2 --offload optimizer",
            "--stage 2 --dtype fp16",
            "--stage 2 --adam deepspeed",
            "--stage 3",
            "--stage 3 --groups 2",
            "--stage 3 --groups 2 --micro-batches 2 --evaluate",
            "--stage 3 --groups 2 --offload parameters",
            "--stage 3 --groups 2 --offload both",
            "--stage 3 --dtype fp32",
        )
    )
    yield Cell(
        program="deepspeed_zero",
        options=("--stage", "2", "--groups", "2"),
        package="deepspeed",
        launcher="deepspeed",
    )
    yield from (
        Cell(program="hf_trainer", options=tuple(text.split()), package="transformers")
        for text in (
            "--sharding ddp --micro-batches 2 --evaluate",
            "--sharding deepspeed2 --micro-batches 2 --evaluate",
            "--sharding deepspeed3 --evaluate",
        )
    )
    yield Cell(program="accelerate_loop", package="accelerate")
    yield Cell(program="accelerate_loop", package="deepspeed", launcher="accelerate")
    yield from (
        Cell(program="fsdp1", options=tuple(text.split()), ranks=4 if "hybrid" in text else 2)
        for text in (
            "--strategy full",
            "--strategy full --use-orig-params 1",
            "--strategy grad_op",
            "--strategy hybrid",
            "--strategy hybrid --use-orig-params 1",
            "--strategy no_shard",
            "--strategy full --offload",
        )
    )
    yield from (
        Cell(program="fsdp2", options=tuple(text.split()), ranks=4 if "hsdp" in text or "2" in text else 2)
        for text in (
            "--mesh flat",
            "--mesh hsdp",
            "--mesh flat --reshard false --micro-batches 2",
            "--mesh flat --reshard 2",
            "--mesh flat --mixed",
            "--mesh flat --offload",
        )
    )
    yield Cell(program="zero_redundancy")
    yield from (
        Cell(program="lightning_loop", options=("--strategy", name), package="lightning")
        for name in ("ddp", "fsdp2")
    )


def list_healthy_cells() -> Iterator[Cell]:
    """Yield programs in which nothing is wrong, one of each kind."""
    yield Cell(program="ddp")
    yield Cell(program="fsdp1", options=("--strategy", "full"))
    yield Cell(program="fsdp2")
    yield Cell(program="zero_redundancy")
    yield Cell(program="sleeping")
    for schedule in ("gpipe", "1f1b"):
        yield Cell(program="pipeline", options=("--schedule", schedule))
    yield Cell(program="experts")
    for form in ("finder", "copied-finder", "layers", "hooks", "gan", "scaler", "unfreeze"):
        yield Cell(program="optimizers", options=("--form", form))
    for split in ("tensor", "context", "ring"):
        yield Cell(program="tensor_or_context", options=("--split", split))
    yield Cell(program="deepspeed_zero", options=("--stage", "2", "--dtype", "fp32"), package="deepspeed")
    yield Cell(program="hf_trainer", options=("--sharding", "ddp"), package="transformers")
    yield Cell(program="accelerate_loop", package="accelerate")
    yield Cell(program="lightning_loop", package="lightning")


#: Programs that are given each planted cause, and the package that each needs. In bf16 a CPU takes so long
#: for a step that 40 ms do not matter.
PLANTED_PROGRAMS = {
    "ddp": "",
    "fsdp2": "",
    "deepspeed_zero --stage 2 --dtype fp32": "deepspeed",
    "deepspeed_zero --stage 3 --dtype fp32": "deepspeed",
    "lightning_loop": "lightning",
}
PLANTED_CAUSES = {
    "straggler": "straggler_rank",
    "loader": "data_loader",
    "accumulation": "accumulation_syncs",
    "host_sync": "blocking_sync",
    "none": None,
}


def list_planted_cells() -> Iterator[Cell]:
    """Yield each program with each cause, and without any."""
    for text, package in PLANTED_PROGRAMS.items():
        program, *options = text.split()
        for plant in PLANTED_CAUSES:
            yield Cell(
                program=program,
                options=tuple(options),
                package=package,
                plant=plant,
            )


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A recorded cell: its report, and what each rank wrote about itself. ``errors``: the last it printed."""

    code: int
    errors: str
    run: Run
    report: Report
    truth: Mapping[int, Mapping[str, object]]
    step_starts_ns: Mapping[int, Sequence[int]]
    added: Mapping[int, Sequence[Mapping[str, int]]]

    @property
    def is_crowded(self) -> bool:
        """True if its ranks lacked processors for a tenth of the step, so that speeds prove nothing."""
        return is_short_of_processors(analyse_time_only(self.run))

    @property
    def confident(self) -> list[str]:
        """Causes above low confidence."""
        return [each.cause for each in self.report.findings if each.confidence is not Confidence.LOW]

    def are_steps_right(self) -> bool:
        """Return True if each recorded step is one of the program's, the same one on all ranks.

        The program knows when each of its steps began.
        """
        counts = []
        for rank in self.run.ranks:
            marks = self.run.frame(rank, "mark")
            ends = marks.loc[marks["kind"] == "step_end", "time_ns"].to_numpy()
            counts.append(np.searchsorted(self.step_starts_ns[rank], ends).tolist())
        return len(counts[0]) > 1 and all(
            each == counts[0] and set(np.diff(each).tolist()) == {1} for each in counts
        )

    def finds_first(self, cause: str) -> bool:
        """Return True if a cause is the first finding, and above low confidence."""
        first = next(iter(self.report.findings), None)
        return first is not None and first.cause is cause and first.confidence is not Confidence.LOW

    def has_gap(self, cause: str) -> bool:
        """Return True if a gap says that a cause could not be tested."""
        return any(cause in gap.causes for gap in self.report.gaps)


class NotRecorded(Exception):
    """The program failed, or nothing was recorded."""


def record_cell(
    cell: Cell,
    folder: Path,
    library: Path | None = None,
    schedule: Sequence[str] | None = None,
    steps: int = 0,
) -> Outcome:
    """Run a cell under ``zprof record``, with the exact counter in its ranks if ``library`` is given.

    ``schedule``: options of ``zprof record``, ``steps``: of the program; by default those of the cell.
    """
    run, truth = folder / "run.zprof", folder / "truth"
    truth.mkdir()
    if schedule is None:
        schedule = PLANTED_SCHEDULE if cell.plant else SCHEDULE
    steps = steps or (PLANTED_STEPS if cell.plant else 0)
    environment = _make_environment(folder) | _make_counting(truth, library) | {"STEP_TRUTH": str(truth)}
    command = [sys.executable, "-m", "zprof", "record", "-o", str(run), *schedule, "--"]
    done = subprocess.run(
        [*command, *_make_launch(cell)],
        cwd=folder,
        env=environment | ({"STEPS": str(steps)} if steps else {}),
        capture_output=True,
        timeout=TIME_LIMIT_S,
        check=False,
    )
    errors = done.stderr.decode(errors="replace")[-_MAX_ERRORS:]
    if not run.exists():
        raise NotRecorded(errors)
    known, starts, added = (
        {
            int(path.stem.removeprefix(name)): json.loads(path.read_text())
            for path in truth.glob(f"{name}*.json")
        }
        for name in ("rank", "steps", "added")
    )
    loaded = load(run)
    return Outcome(
        code=done.returncode,
        errors=errors,
        run=loaded,
        report=diagnose(loaded),
        truth=known,
        step_starts_ns=starts,
        added=added,
    )


@contextmanager
def busy_process() -> Iterator[None]:
    """Keep one process busy beside what is recorded."""
    process = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def run_plain(cell: Cell, folder: Path) -> Mapping[int, list[str]]:
    """Run a cell without zprof and return the losses of its ranks."""
    truth = folder / "plain"
    truth.mkdir()
    environment = _make_environment(folder) | _make_counting(truth, exact_counter.build(folder))
    subprocess.run(
        _make_launch(cell), cwd=folder, env=environment, capture_output=True, timeout=TIME_LIMIT_S, check=True
    )
    return {int(path.stem[4:]): json.loads(path.read_text())["losses"] for path in truth.glob("rank*.json")}


def _make_launch(cell: Cell) -> Sequence[str]:
    program, beside = str(FOLDER / f"{cell.program}.py"), Path(sys.executable).parent
    if cell.launcher == "deepspeed":
        launcher = [str(beside / "deepspeed"), "--num_accelerators", str(cell.ranks)]
        return [*launcher, "--master_port", str(free_port()), program, *cell.options, *cell.planted_options]
    if cell.launcher == "accelerate":
        configuration = str(FOLDER / "accelerate_deepspeed.yaml")
        launcher = [str(beside / "accelerate"), "launch", "--config_file", configuration]
        return [
            *launcher,
            "--main_process_port",
            str(free_port()),
            program,
            *cell.options,
            *cell.planted_options,
        ]
    launcher = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={cell.ranks}"]
    return [*launcher, f"--master-port={free_port()}", program, *cell.options, *cell.planted_options]


def _make_environment(folder: Path) -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"} | {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "TMPDIR": str(folder),
        "DS_ACCELERATOR": "cpu",
    }


def _make_counting(truth: Path, library: Path | None) -> dict[str, str]:
    return {} if library is None else {"EXACT_TRUTH": str(truth), "LD_PRELOAD": str(library)}


def describe(cell: Cell, outcome: Outcome, plain: Mapping[int, list[str]] | None = None) -> str:
    """Return one line: what zprof says against what the program knows."""
    facts, parts = outcome.run.manifest.training, [f"{cell.name:<62}"]
    parts.append(f"rc {outcome.code} {facts.engine} {facts.stage} mb {facts.micro_batches}")
    for memory in outcome.report.memory.per_rank:
        truth = outcome.truth.get(memory.rank)
        if truth is None:
            continue
        difference = memory.peak_bytes - int(str(truth["peak_bytes"]))
        states = dict(truth["states"])  # type: ignore[call-overload]
        wrong = {
            name: (memory.state_bytes or {}).get(Tenant(name), 0) - size for name, size in states.items()
        }
        parts.append(
            f"r{memory.rank} peak {difference:+d} untagged {memory.untagged_bytes / memory.peak_bytes:.3%} "
            f"states {'ok' if not any(wrong.values()) else wrong} {_describe_walk(truth, states)}"
        )
    volume = outcome.report.volume
    if volume is not None and volume.parameter_bytes:
        expected = volume.expected_bytes if volume.engine_bytes is None else volume.engine_bytes
        seen, scheme = (each / volume.parameter_bytes for each in (volume.seen_bytes, expected))
        parts.append(f"seen {seen:.3f} of {scheme:.3f} psi")
    if plain is not None:
        recorded = {rank: truth["losses"] for rank, truth in outcome.truth.items()}
        parts.append("losses equal" if recorded == plain else "LOSSES DIFFER")
    skipped = sorted({int(str(truth["skipped"])) for truth in outcome.truth.values()})
    losses = {len(list(truth["losses"])) for truth in outcome.truth.values()}  # type: ignore[call-overload]
    parts.append(
        f"steps {sorted(losses)} skipped {skipped} {outcome.run.last_step(0)} {','.join(outcome.confident)}"
    )
    return " | ".join(parts)


def _describe_walk(truth: Mapping[str, object], states: Mapping[str, int]) -> str:
    """Compare the closed forms with what the program found by walking through its engine."""
    walked = dict(truth["walked"])  # type: ignore[call-overload]
    if not walked:
        return "not walked"
    differences = {name: walked[name] - size for name, size in states.items() if walked[name] != size}
    return f"walk {differences or 'ok'}"


def describe_planted(cell: Cell, outcome: Outcome) -> str:
    """Return one line: the planted cause, what is found first, and what a gap says of it."""
    report = outcome.report
    first = next(iter(report.findings), None)
    found = "nothing" if first is None else f"{first.cause} ({first.confidence.value})"
    cause, walls = PLANTED_CAUSES[cell.plant], [rank.wall_median_ns or 0 for rank in report.time.per_rank]
    if cause is None:
        result = "right" if not outcome.confident else "WRONG"
    elif outcome.finds_first(cause):
        result = "right"
    else:
        result = "gap" if outcome.has_gap(cause) else "MISSED"
    step_ms = max(walls, default=0) / 1e6
    others, status = ",".join(outcome.confident), report.verdict.status.value
    return f"{cell.name:<48} {result:<6} first {found} | above low {others} | {status} | {step_ms:.0f} ms"


def main() -> None:
    """Print one line per cell that is installed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--losses", action="store_true", help="also run each program without zprof")
    parser.add_argument("--planted", action="store_true", help="planted causes, beside a busy process")
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    cells = list_planted_cells() if options.planted else list_cells()
    chosen = [cell for cell in cells if options.only in cell.name and cell.is_installed()]
    for cell in chosen * options.rounds:
        with tempfile.TemporaryDirectory() as name:
            try:
                print(_judge(cell, Path(name), planted=options.planted, losses=options.losses), flush=True)
            except (NotRecorded, subprocess.SubprocessError) as error:
                print(f"{cell.name}: {error}", flush=True)


def _judge(cell: Cell, folder: Path, *, planted: bool, losses: bool) -> str:
    if planted:
        with busy_process():
            return describe_planted(cell, record_cell(cell, folder))
    outcome = record_cell(cell, folder, exact_counter.build(folder))
    return describe(cell, outcome, run_plain(cell, folder) if losses else None)


if __name__ == "__main__":
    main()
