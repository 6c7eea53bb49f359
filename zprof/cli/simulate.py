"""``zprof simulate``: write traces of a sharded job with a known truth."""

import argparse
import random
from dataclasses import replace
from pathlib import Path

from zprof.cli import console
from zprof.model.errors import BadInput
from zprof.model.formatting import printable
from zprof.simulator.causes import Cause, plant
from zprof.simulator.plan import Plan, Recording, Vendor

_VENDORS = ("nvidia", "amd", "gloo")


class SimulateCommand:
    """Write the traces that a sharded training job could have left, and what is true of them.

    A model of a job (stage 0 to 3, units, streams, network, hosts) runs on paper: no GPU,
    no network, no torch.  Each rank leaves a Kineto trace, as a profiler of that vendor
    writes it; truth.json says what every wait, transfer and clock really was, and what was
    planted.  The same options give the same files, byte by byte.

    examples:
      zprof simulate -o traces --ranks 8
      zprof simulate -o slow --cause straggler_rank --ranks 4 --seed 7
      zprof simulate -o amd --vendor amd --stage 2 --cause low_bus_bandwidth --strength 2
      zprof diagnose slow
    """

    name = "simulate"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the simulated job and the output folder."""
        from zprof.simulator.causes import Cause

        parser.add_argument("-o", "--output", metavar="DIR", type=Path, required=True, help="folder to write")
        parser.add_argument("--force", action="store_true", help="replace a simulation in DIR")
        causes = [str(cause) for cause in Cause]
        listed = f"what to plant (%(default)s): {', '.join(causes)}"
        parser.add_argument("--cause", metavar="NAME", choices=causes, default="none", help=listed)
        for name, default, what in (
            ("strength", 1.0, "how much of it; 1 gives a clear effect"),
            ("skew-us", 0.0, "clocks of hosts differ by up to so many microseconds"),
            ("megabytes", 0.0, "fill each trace up to about this size, unpacked"),
        ):
            help_text = f"{what} (%(default)s)"
            parser.add_argument(f"--{name}", metavar="X", type=float, default=default, help=help_text)
        parser.add_argument("--vendor", choices=_VENDORS, default="nvidia", help="whose traces (%(default)s)")
        for name, count, what in (
            ("ranks", 4, "ranks, at most 1024"),
            ("steps", 3, "recorded steps"),
            ("stage", 3, "what is sharded, 0 to 3"),
            ("units", 8, "wrapped units"),
            ("prefetch", 1, "gathers that run ahead"),
            ("micro-batches", 1, "micro-batches of a step"),
            ("seed", 0, "of everything random"),
        ):
            parser.add_argument(
                f"--{name}", metavar="N", type=int, default=count, help=f"{what} (%(default)s)"
            )

    def run(self, arguments: argparse.Namespace) -> int:
        """Simulate the job, and print what was planted."""
        from zprof.simulator.causes import PRESETS, Cause
        from zprof.simulator.simulate import simulate

        plan = build_plan(arguments)
        folder = clear_output_folder(arguments.output, force=arguments.force)
        try:
            truth = simulate(plan, folder)
        except OSError as error:
            raise BadInput(
                f"{folder}: cannot be written ({error.strerror})", hint="name another folder"
            ) from None
        written = sum(rank.file is not None for rank in truth.per_rank)
        says = PRESETS[Cause(plan.cause)].says
        console.note(
            f"zprof: simulated {_format_count(written, 'rank')}, {_format_count(plan.steps, 'step')}, "
            f"stage {plan.stage}, {plan.vendor}; planted {plan.cause}: {says}"
        )
        console.note(f"zprof: wrote {printable(folder)}; next, zprof diagnose {printable(folder)}")
        return 0


def _format_count(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


_TRUTH_FILE = "truth.json"
_MAX_STEPS = 10_000
_MAX_MEGABYTES = 4_096


def build_plan(arguments: argparse.Namespace) -> Plan:
    """Return the requested plan.

    Raises:
        BadInput: it cannot be simulated.
    """
    _check_ranges(arguments)
    plan = Plan(
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
    plan = replace(plan, offsets_ns=_draw_clock_offsets(plan, arguments.skew_us))
    return plant(plan, Cause(arguments.cause), arguments.strength)


def clear_output_folder(folder: Path, *, force: bool) -> Path:
    """Return the folder, after removing an older simulation from it.

    Raises:
        BadInput: it holds anything else than a simulation, or ``force`` is not given.
    """
    try:
        found = sorted(folder.iterdir()) if folder.exists() else []
    except OSError as error:
        raise BadInput(f"{folder}: {error.strerror}", hint="name a folder") from None
    if not found:
        return folder
    old = [
        path
        for path in found
        if path.name == _TRUTH_FILE or path.match("rank*.json") or path.match("rank*.json.gz")
    ]
    if len(old) < len(found) or not (folder / _TRUTH_FILE).is_file():
        raise BadInput(f"{folder}: holds other things than a simulation", hint="name an empty folder")
    if not force:
        raise BadInput(f"{folder}: there already", hint="--force replaces it")
    for path in old:
        path.unlink()
    return folder


def _check_ranges(arguments: argparse.Namespace) -> None:
    for wrong, what in (
        (not 1 <= arguments.steps <= _MAX_STEPS, f"--steps: 1 to {_MAX_STEPS}"),
        (not 1 <= arguments.units <= 1_000, "--units: 1 to 1000"),
        (not 1 <= arguments.micro_batches <= 1_000, "--micro-batches: 1 to 1000"),
        (not 0 <= arguments.seed < 1 << 63, "--seed: 0 or more"),
        (not 0 <= arguments.megabytes <= _MAX_MEGABYTES, f"--megabytes: 0 to {_MAX_MEGABYTES}"),
        (not 0 <= arguments.skew_us <= 1e9, "--skew-us: 0 to 1e9"),
    ):
        if wrong:
            raise BadInput(what, hint="zprof simulate --help shows the options")


def _draw_clock_offsets(plan: Plan, skew_us: float) -> dict[int, int]:
    """Return the clock offset of each rank in ns, one random offset per host."""
    most = int(skew_us * 1000)
    draw = random.Random(plan.seed)
    hosts = [draw.randint(-most, most) for _ in range(-(-plan.ranks // plan.ranks_per_host))]
    return {rank: hosts[rank // plan.ranks_per_host] for rank in range(plan.ranks)} if most else {}
