"""``zprof simulate``: write synthetic traces of a sharded job with known ground truth."""

import argparse
import random
from pathlib import Path

from msgspec.structs import replace

from zprof.base.errors import BadInput
from zprof.base.formatting import format_next_step, printable
from zprof.cli import console
from zprof.simulator.causes import PLANTS, plant
from zprof.simulator.plan import MAX_RANKS, Recording, SimulationPlan, Vendor

_VENDORS = ("nvidia", "amd", "gloo")


class SimulateCommand:
    """Write synthetic traces of a sharded training job, and the ground truth.

    Simulates a job (stage 0 to 3, units, streams, network, hosts) without a GPU, a
    network or torch. Each rank writes a Kineto trace in the format of the vendor's
    profiler; truth.json contains the true waits, transfers and clock offsets and the
    planted cause. The same options produce the same files, byte for byte.

    examples:
      zprof simulate -o traces --ranks 8
      zprof simulate -o slow --cause straggler_rank --ranks 4 --seed 7
      zprof simulate -o amd --vendor amd --stage 2 --cause low_bus_bandwidth --strength 2
      zprof diagnose slow
    """

    name = "simulate"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the simulated job and the output folder."""
        parser.add_argument("-o", "--output", metavar="DIR", type=Path, required=True, help="output folder")
        parser.add_argument("--force", action="store_true", help="replace a simulation in DIR")
        causes = [str(cause) for cause in PLANTS]
        cause_help = f"cause to plant (default: %(default)s): {', '.join(causes)}"
        parser.add_argument("--cause", metavar="NAME", choices=causes, default="none", help=cause_help)
        for name, default, what in (
            ("strength", 1.0, "strength of the cause; 1 gives a clear effect"),
            ("skew-us", 0.0, "maximum clock offset of a host, in microseconds"),
            ("megabytes", 0.0, "pad each trace to about this uncompressed size"),
        ):
            help_text = f"{what} (default: %(default)s)"
            parser.add_argument(f"--{name}", metavar="X", type=float, default=default, help=help_text)
        parser.add_argument(
            "--vendor",
            choices=_VENDORS,
            default="nvidia",
            help="vendor format of the traces (default: %(default)s)",
        )
        for name, count, what in (
            ("ranks", 4, "ranks, at most 1024"),
            ("steps", 3, "recorded steps"),
            ("stage", 3, "ZeRO stage, 0 to 3"),
            ("units", 8, "FSDP units (wrapped modules)"),
            ("prefetch", 1, "units to gather ahead"),
            ("micro-batches", 1, "micro-batches per step"),
            ("seed", 0, "random seed"),
        ):
            parser.add_argument(
                f"--{name}", metavar="N", type=int, default=count, help=f"{what} (default: %(default)s)"
            )

    def run(self, arguments: argparse.Namespace) -> int:
        """Simulate the job; what was planted stays in the truth file, so that a diagnosis can be tried."""
        from zprof.run.output_lock import lock_output
        from zprof.simulator.simulate import simulate

        plan = build_plan(arguments)
        folder = arguments.output
        try:
            with lock_output(folder):
                truth = simulate(plan, clear_output_folder(folder, force=arguments.force))
        except OSError as error:
            raise BadInput(
                f"{folder}: cannot be written ({error.strerror})", hint="choose another folder"
            ) from None
        written = sum(rank.file is not None for rank in truth.per_rank)
        console.print_note(
            f"zprof: simulated {_format_count(written, 'rank')}, {_format_count(plan.steps, 'step')}, "
            f"stage {plan.stage}, {plan.vendor}; what was planted is in {_TRUTH_FILE}"
        )
        console.print_note(f"zprof: wrote {printable(folder)}; {format_next_step(folder)}")
        return 0


def _format_count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


_TRUTH_FILE = "truth.json"
_MAX_STEPS = 10_000
_MAX_MEGABYTES = 4_096


def build_plan(arguments: argparse.Namespace) -> SimulationPlan:
    """Return the requested plan.

    Raises:
        BadInput: the plan cannot be simulated.
    """
    for is_invalid, message in (
        (not 1 <= arguments.ranks <= MAX_RANKS, f"--ranks must be 1 to {MAX_RANKS}"),
        (not 1 <= arguments.steps <= _MAX_STEPS, f"--steps must be 1 to {_MAX_STEPS}"),
        (not 1 <= arguments.units <= 1_000, "--units must be 1 to 1000"),
        (not 1 <= arguments.micro_batches <= 1_000, "--micro-batches must be 1 to 1000"),
        (not 0 <= arguments.seed < 1 << 63, "--seed must be 0 or more"),
        (not 0 <= arguments.megabytes <= _MAX_MEGABYTES, f"--megabytes must be 0 to {_MAX_MEGABYTES}"),
        (not 0 <= arguments.skew_us <= 1e9, "--skew-us must be 0 to 1e9"),
    ):
        if is_invalid:
            raise BadInput(message, hint="see zprof simulate --help")
    plan = SimulationPlan(
        ranks=arguments.ranks,
        steps=arguments.steps,
        stage=arguments.stage,
        units=arguments.units,
        prefetch=arguments.prefetch,
        micro_batches=arguments.micro_batches,
        seed=arguments.seed,
        vendor=Vendor(arguments.vendor),
        recording=Recording(pad_to_bytes=int(arguments.megabytes * 1e6)),
    )
    # The clock offset of each rank in ns, one random offset per host.
    max_offset = int(arguments.skew_us * 1000)
    generator = random.Random(plan.seed)
    hosts = [generator.randint(-max_offset, max_offset) for _ in range(-(-plan.ranks // plan.ranks_per_host))]
    plan = replace(
        plan,
        offsets_ns=(
            {rank: hosts[rank // plan.ranks_per_host] for rank in range(plan.ranks)} if max_offset else {}
        ),
    )
    return plant(plan, arguments.cause, arguments.strength)


def clear_output_folder(folder: Path, *, force: bool) -> Path:
    """Return the folder, after removing an older simulation from it.

    Raises:
        BadInput: the folder contains other files, or a simulation and ``force`` is not given.
    """
    try:
        entries = sorted(folder.iterdir()) if folder.exists() else []
    except OSError as error:
        raise BadInput(f"{folder}: {error.strerror}", hint="pass a folder") from None
    if not entries:
        return folder
    old = [
        path
        for path in entries
        if path.name == _TRUTH_FILE or path.match("rank*.json") or path.match("rank*.json.gz")
    ]
    if len(old) < len(entries) or not (folder / _TRUTH_FILE).is_file():
        raise BadInput(
            f"{folder}: contains files that are not from a simulation", hint="choose an empty folder"
        )
    if not force:
        raise BadInput(f"{folder}: already contains a simulation", hint="use --force to replace it")
    for path in old:
        path.unlink()
    return folder
