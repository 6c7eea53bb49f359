"""``zprof simulate``: traces of a sharded job with a known truth."""

import argparse
from pathlib import Path

from zprof.cli.terminal import console
from zprof.model.errors import BadInput
from zprof.model.printable import printable

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
        """What to simulate, and where to."""
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
        """Simulate, and say what was planted."""
        from zprof.cli.options.simulating import plan_of, room_for
        from zprof.simulator.causes import PRESETS, Cause
        from zprof.simulator.simulate import simulate

        plan = plan_of(arguments)
        folder = room_for(arguments.output, force=arguments.force)
        try:
            truth = simulate(plan, folder)
        except OSError as error:
            raise BadInput(
                f"{folder}: cannot be written ({error.strerror})", hint="name another folder"
            ) from None
        written = sum(rank.file is not None for rank in truth.per_rank)
        says = PRESETS[Cause(plan.cause)].says
        console.note(
            f"zprof: simulated {_counted(written, 'rank')}, {_counted(plan.steps, 'step')}, "
            f"stage {plan.stage}, {plan.vendor}; planted {plan.cause}: {says}"
        )
        console.note(f"zprof: wrote {printable(folder)}; next, zprof diagnose {printable(folder)}")
        return 0


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
