"""``zprof simulate``: write synthetic traces of a sharded job with known ground truth."""

import argparse
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from zprof.base.errors import BadInput
from zprof.base.formatting import format_next_step, printable
from zprof.base.parsing import parse_sizes
from zprof.cli import console
from zprof.simulator.job import CAUSES, HEALTHY, RANKS_PER_HOST, VENDORS, Job, Start
from zprof.simulator.mesh.faults import MESH_CAUSES
from zprof.simulator.mesh.layout import FRAMEWORKS, SCHEDULES, Degrees
from zprof.simulator.ras import ANSWERS, HANGS


class SimulateCommand:
    """Write synthetic traces of a sharded training job, and the ground truth.

    Simulates a job (stage 0 to 3, units, streams, network, hosts) without a GPU, a
    network or torch. Each rank writes a Kineto trace in the format of the vendor's
    profiler; truth.json contains the true waits, transfers and clock offsets and the
    planted cause. The same options produce the same files, byte for byte.

    --parallel simulates a job of several dimensions: pp (pipeline), dp (shards, or
    data ranks of a pipeline), dp_replicate, cp (context), tp (tensor) and ep (expert,
    which divides dp). It sets the ranks; --stage, --units and --prefetch do not apply.

    examples:
      zprof simulate -o traces --ranks 8
      zprof simulate -o slow --cause straggler_rank --ranks 4 --seed 7
      zprof simulate -o amd --vendor amd --stage 2 --cause low_bus_bandwidth --strength 2
      zprof simulate -o pipeline --parallel pp=4,dp=2,tp=2 --cause slow_stage
      zprof diagnose slow
    """

    name = "simulate"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the simulated job and the output folder."""
        parser.add_argument("-o", "--output", metavar="DIR", type=Path, required=True, help="output folder")
        parser.add_argument("--force", action="store_true", help="replace a simulation in DIR")
        causes = list(dict.fromkeys((*HEALTHY, *CAUSES, *MESH_CAUSES, *HANGS)))
        cause_help = f"cause to plant (default: %(default)s): {', '.join(causes)}"
        parser.add_argument("--cause", metavar="NAME", choices=causes, default="none", help=cause_help)
        for name, default, what in (
            ("strength", 1.0, "strength of the cause; at 1 it costs about 15 %% of the step"),
            ("skew-us", 0.0, "maximum clock offset of a host, in microseconds"),
            ("megabytes", 0.0, "pad each trace to about this uncompressed size"),
        ):
            help_text = f"{what} (default: %(default)s)"
            parser.add_argument(f"--{name}", metavar="X", type=float, default=default, help=help_text)
        parser.add_argument(
            "--vendor",
            choices=VENDORS,
            default="nvidia",
            help="vendor format of the traces (default: %(default)s)",
        )
        parser.add_argument(
            "--micro-batches", metavar="N", type=int,
            help="micro-batches per step (default: 1; with --parallel, 4 per stage of a pipeline, else 2)",
        )  # fmt: skip
        parser.add_argument(
            "--parallel", metavar="DIMS", type=parse_degrees, help="dimensions of the job, as pp=4,dp=2,tp=2"
        )
        parser.add_argument(
            "--schedule", choices=SCHEDULES, default="1f1b",
            help="order of a pipeline's passes, with --parallel (default: %(default)s)",
        )  # fmt: skip
        parser.add_argument(
            "--framework", choices=FRAMEWORKS, default="megatron",
            help="framework that names the process groups, with --parallel (default: %(default)s)",
        )  # fmt: skip
        for name, count, what in (
            ("ranks", 4, "ranks, at most 1024"),
            ("steps", 3, "recorded steps"),
            ("stage", 3, "ZeRO stage: 0 (DDP), 1, 2, 3 (FSDP)"),
            ("units", 8, "FSDP units (wrapped modules)"),
            ("prefetch", 1, "0: gather no unit ahead"),
            ("seed", 0, "random seed"),
        ):
            parser.add_argument(
                f"--{name}", metavar="N", type=int, default=count, help=f"{what} (default: %(default)s)"
            )

        parser.add_argument(
            "--format", choices=("kineto", "nsight", "inspector", "ras"), default="kineto",
            help="kineto: a trace per rank; nsight: an export of Nsight Systems per node; inspector: a file "
            "of NCCL's Inspector per rank; ras: two answers of ncclras about a stuck job, of --cause "
            f"{' or '.join(HANGS)} (default: %(default)s)",
        )  # fmt: skip

    def run(self, arguments: argparse.Namespace) -> int:
        """Simulate the job; the planted cause is only in the truth file, so a diagnosis can be tried."""
        folder = arguments.output
        if arguments.format == "ras":
            return write_ras_files(arguments)
        job = build_job(arguments)
        with open_output_folder(folder, force=arguments.force):
            write_files(job, folder, arguments.format)
        if arguments.prefetch > 1:
            console.print_note("zprof: --prefetch: the simulated engines gather one unit ahead")
        console.print_note(
            f"zprof: simulated {_format_count(job.world, 'rank')}, {_format_count(job.steps, 'step')}, "
            f"{job.engine}, {job.dialect.vendor}; what was planted is in {_TRUTH_FILE}"
        )
        console.print_note(f"zprof: wrote {printable(folder)}; {format_next_step(folder)}")
        return 0


def _format_count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


_TRUTH_FILE = "truth.json"
_WRITTEN = ("rank*.json", "rank*.json.gz", "node*.sqlite", "node-*.log")
_MAX_RANKS = 1024
_DIMENSIONS = {
    "pp": "pipeline", "dp": "data", "dp_replicate": "replica", "cp": "context", "tp": "tensor",
    "ep": "expert",
}  # fmt: skip
"""Names of dimensions as in torchtitan and Megatron-Core, and those of the simulator."""
_MAX_STEPS = 10_000
_MAX_MEGABYTES = 4_096


def build_job(arguments: argparse.Namespace) -> Job:
    """Return the requested job.

    Raises:
        BadInput: The job cannot be simulated.
    """
    from zprof.simulator.mesh.regular import make_mesh_job, plant_mesh
    from zprof.simulator.regular import make_job, plant

    if arguments.parallel:
        arguments.ranks = arguments.parallel.world
    check_limits(arguments)
    # One random clock offset per host, in ns.
    max_offset = int(arguments.skew_us * 1000)
    generator = random.Random(arguments.seed)
    hosts = [generator.randint(-max_offset, max_offset) for _ in range(-(-arguments.ranks // RANKS_PER_HOST))]
    starts = tuple(Start(clock_offset_ns=hosts[rank // RANKS_PER_HOST]) for rank in range(arguments.ranks))
    size = int(arguments.megabytes * 1e6)
    if arguments.parallel:
        try:
            job = make_mesh_job(
                degrees=arguments.parallel, seed=arguments.seed, vendor=arguments.vendor,
                steps=arguments.steps, schedule=arguments.schedule, framework=arguments.framework,
                micro_batches=arguments.micro_batches, starts=starts,
            )  # fmt: skip
            job = replace(job, dialect=replace(job.dialect, min_bytes=size))
            return plant_mesh(job, arguments.cause, arguments.strength)
        except ValueError as error:
            raise BadInput(str(error), hint="see zprof simulate --help") from None
    if arguments.cause in MESH_CAUSES and arguments.cause not in CAUSES:
        raise BadInput(f"--cause {arguments.cause} needs --parallel", hint="see zprof simulate --help")
    job = make_job(
        seed=arguments.seed,
        vendor=arguments.vendor,
        ranks=arguments.ranks,
        steps=arguments.steps,
        stage=arguments.stage,
        units=arguments.units,
        micro_batches=arguments.micro_batches or 1,
        prefetch="on" if arguments.prefetch else "off",
        starts=starts,
    )
    job = replace(job, dialect=replace(job.dialect, min_bytes=size))
    try:
        return plant(job, arguments.cause, arguments.strength)
    except ValueError as error:
        raise BadInput(str(error), hint="see zprof simulate --help") from None


def parse_degrees(text: str) -> Degrees:
    """Parse the dimensions of a job, as pp=4,dp=2.

    Raises:
        argparse.ArgumentTypeError: A name is unknown or given twice, or a size is not 1 to 1024.
    """
    sizes = {_DIMENSIONS[name]: size for name, size in parse_sizes(text, _DIMENSIONS).items()}
    if max(sizes.values()) > _MAX_RANKS:
        raise argparse.ArgumentTypeError(f"{printable(text)!r}: expected sizes of 1 to {_MAX_RANKS}")
    return Degrees(**sizes)


def check_limits(arguments: argparse.Namespace) -> None:
    """Check the numbers that define a job.

    Raises:
        BadInput: A number is out of range.
    """
    for is_invalid, message in (
        (not 1 <= arguments.ranks <= _MAX_RANKS, f"--ranks must be 1 to {_MAX_RANKS}"),
        (not 1 <= arguments.steps <= _MAX_STEPS, f"--steps must be 1 to {_MAX_STEPS}"),
        (not 0 <= arguments.stage <= 3, f"--stage must be 0 to 3, not {arguments.stage}"),
        (not 1 <= arguments.units <= 1_000, "--units must be 1 to 1000"),
        (not 1 <= (arguments.micro_batches or 1) <= 1_000, "--micro-batches must be 1 to 1000"),
        (arguments.prefetch < 0, f"--prefetch must be 0 or more, not {arguments.prefetch}"),
        (not 0 <= arguments.seed < 1 << 63, "--seed must be 0 or more"),
        (not 0 <= arguments.megabytes <= _MAX_MEGABYTES, f"--megabytes must be 0 to {_MAX_MEGABYTES}"),
        (not 0 <= arguments.skew_us <= 1e9, "--skew-us must be 0 to 1e9"),
        (
            arguments.format == "nsight" and arguments.vendor != "nvidia",
            f"--format nsight is of NVIDIA's devices, not of --vendor {arguments.vendor}",
        ),
        (
            arguments.cause in HANGS and arguments.format != "ras",
            f"--cause {arguments.cause} needs --format ras",
        ),
        (
            arguments.format == "ras" and arguments.cause not in (*HANGS, "none"),
            f"--format ras has no --cause {arguments.cause}: use {' or '.join(HANGS)}",
        ),
        (
            arguments.format == "inspector" and arguments.vendor == "gloo",
            "--format inspector is of NCCL and RCCL, not of --vendor gloo",
        ),
    ):
        if is_invalid:
            raise BadInput(message, hint="see zprof simulate --help")


def write_ras_files(arguments: argparse.Namespace) -> int:
    """Write two answers of ncclras about a simulated job, and the truth; return the exit code.

    Raises:
        BadInput: The job cannot be simulated, or the folder cannot be written.
    """
    from zprof.simulator.ras import write_answers

    degrees, folder = arguments.parallel or Degrees(data=arguments.ranks), arguments.output
    arguments.ranks = degrees.world
    check_limits(arguments)
    with open_output_folder(folder, force=arguments.force):
        answers = write_answers(folder, degrees.world, degrees.tensor, arguments.cause, arguments.seed)
    console.print_note(
        f"zprof: simulated {_format_count(degrees.world, 'rank')}; what was planted is in {_TRUTH_FILE}"
    )
    paths = " ".join(printable(path) for path in answers)
    console.print_note(f"zprof: wrote {printable(folder)}; next: zprof hang {paths}")
    return 0


def write_files(job: Job, folder: Path, trace_format: str = "kineto") -> None:
    """Write traces and truth; a failure leaves nothing: only a folder with truth.json can be replaced."""
    from zprof.simulator.ground_truth import write_job
    from zprof.simulator.inspector import write_inspector_files
    from zprof.simulator.kineto import write_traces
    from zprof.simulator.mesh.truth import write_mesh_job
    from zprof.simulator.nsight import write_nsight_files

    writers = {"kineto": write_traces, "nsight": write_nsight_files, "inspector": write_inspector_files}
    write = writers[trace_format]
    is_new = not folder.exists()
    before = set(folder.iterdir()) if not is_new else set()
    try:
        if job.parallel:
            write_mesh_job(job, folder, write=write)
        else:
            write_job(job, folder, with_baseline=False, write=write)
    except BaseException:
        with suppress(OSError):
            for path in set(folder.iterdir()) - before:
                path.unlink(missing_ok=True)
            if is_new:
                folder.rmdir()
        raise


@contextmanager
def open_output_folder(folder: Path, *, force: bool) -> Iterator[None]:
    """Hold the output folder, without an older simulation, for the files of a new one.

    Raises:
        BadInput: It cannot be written, or contains other files, or a simulation without ``force``.
    """
    from zprof.run.output_path import lock_output

    try:
        with lock_output(folder):
            clear_output_folder(folder, force=force)
            yield
    except OSError as error:
        raise BadInput(
            f"{folder}: cannot be written ({error.strerror})", hint="choose another folder"
        ) from None


def clear_output_folder(folder: Path, *, force: bool) -> None:
    """Remove an older simulation from the output folder.

    Raises:
        BadInput: The folder contains other files, or a simulation and ``force`` is not given.
    """
    try:
        entries = sorted(folder.iterdir()) if folder.exists() else []
    except OSError as error:
        raise BadInput(f"{folder}: {error.strerror}", hint="pass a folder") from None
    if not entries:
        return
    old = [
        path for path in entries if path.name == _TRUTH_FILE or any(map(path.match, (*_WRITTEN, *ANSWERS)))
    ]
    if len(old) < len(entries) or not (folder / _TRUTH_FILE).is_file():
        raise BadInput(
            f"{folder}: contains files that are not from a simulation", hint="choose an empty folder"
        )
    if not force:
        raise BadInput(f"{folder}: already contains a simulation", hint="use --force to replace it")
    for path in old:
        path.unlink()
