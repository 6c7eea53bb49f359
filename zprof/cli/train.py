"""``zprof train``: train with the reference engine on this machine and record it."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zprof.base.errors import BadInput, Extra, MissingData, require_extra
from zprof.base.formatting import format_next_step, printable
from zprof.base.parsing import parse_count, parse_count_or_zero
from zprof.cli import console
from zprof.cli.live_view import live_progress, should_show_live
from zprof.cli.progress import steps_progress
from zprof.model.gaps import GapKind

if TYPE_CHECKING:
    from zprof.reference_engine.program.train_config import TrainConfig


_RANKS = 2
_HINT = "see zprof train --help"


class TrainCommand:
    """Train a GPT-2-shaped model with the reference ZeRO engine and record it.

    All ranks run on this machine. The options for the engine, the model and the modelled
    link and compute time are the same as for torchrun -m zprof.reference_engine.train,
    which trains without recording.

    examples:
      zprof train -o zero3.zprof --stage 3 --dp 2 --dtype bfloat16
      zprof train --stage 2 --accumulate 4 --clip 1.0 --constant-buffers 65536
      zprof train --plant straggler_rank
      zprof train --plant straggler_rank --fixed
      zprof train --stage 3 --live
    """

    name = "train"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options for recording and for the engine, whose configuration imports torch."""
        require_extra(Extra.RECORD, "train")
        from zprof.reference_engine.program.options import add_arguments

        group = parser.add_argument_group("recording")
        group.add_argument(
            "-o",
            "--output",
            metavar="RUN",
            type=Path,
            help="run to write (default: train.zprof, or CAUSE.zprof)",
        )
        group.add_argument("--force", action="store_true", help="overwrite RUN")
        group.add_argument("--live", action="store_true", help="show the run step by step; q closes the view")
        group.add_argument(
            "--ranks", metavar="N", type=parse_count, help="number of processes (default: dp x mp, or 2)"
        )
        for name, steps, what in (
            ("skip", 2, "initial steps to skip"),
            ("memory", 2, "steps to record memory for"),
            ("time", 8, "steps to record time for"),
        ):
            group.add_argument(
                f"--{name}-steps", metavar="N", type=parse_count_or_zero, default=steps,
                help=f"{what} (default: %(default)s)",
            )  # fmt: skip
        add_arguments(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Train, print the losses, then suggest the next command."""
        from msgspec.structs import replace

        from zprof.integrations.reference_job import ReferenceJob, train_reference
        from zprof.run.output_path import replace_run

        recording_options = {
            "output",
            "force",
            "ranks",
            "skip_steps",
            "memory_steps",
            "time_steps",
            "live",
            "command",
        }
        options = {name: value for name, value in vars(arguments).items() if name not in recording_options}
        fixed = f"-{options['fixed']}" if "fixed" in options else ""
        path = arguments.output or Path(f"{options.get('plant', 'train')}{fixed}.zprof")
        job = ReferenceJob(
            world_size=arguments.ranks or _RANKS,
            options=options,
            run=path,
            skip_steps=arguments.skip_steps,
            memory_steps=arguments.memory_steps,
            time_steps=arguments.time_steps,
        )
        options.setdefault("steps", max(1, job.recorded_steps))
        ranks = _choose_ranks(_build_config(options), arguments.ranks)
        replaced = replace_run(path, force=arguments.force)
        progress = (
            live_progress(path, path.name, options["steps"])
            if should_show_live(arguments.live, path)
            else steps_progress(path.name, options["steps"])
        )
        with replaced, progress as on_step:
            losses = train_reference(replace(job, world_size=ranks), on_step=on_step)
        _check_recorded(path, ranks)
        console.print_data(
            f"loss {losses[0]:.6f} -> {losses[-1]:.6f} in {len(losses)} steps\n" if losses else ""
        )
        console.print_note(f"zprof: wrote {printable(path)}; {format_next_step(path)}")
        return 0


def _build_config(options: dict[str, Any]) -> "TrainConfig":
    from zprof.reference_engine.program.options import make_config

    try:
        return make_config(argparse.Namespace(**options))
    except ValueError as error:
        raise BadInput(str(error), hint=_HINT) from None


def _choose_ranks(config: "TrainConfig", requested: int | None) -> int:
    """Return the number of ranks: the requested one, dp x mp, or the larger of 2 and mp."""
    ranks = requested or (config.dp * config.mp if config.dp else max(_RANKS, config.mp))
    try:
        config.check_ranks(ranks)
    except ValueError as error:
        raise BadInput(str(error), hint=_HINT) from None
    return ranks


def _check_recorded(path: Path, ranks: int) -> None:
    """Raise if ranks are missing from the run: the recorder itself never raises during training."""
    from zprof.run.manifest import MANIFEST_NAME
    from zprof.run.output_path import find_write_error
    from zprof.run.reader import load

    run = load(path) if (path / MANIFEST_NAME).is_file() else None
    recorded = run.ranks if run is not None else ()
    cut_short = [gap.reason for gap in run.gaps() if gap.kind is GapKind.DISK_FULL] if run is not None else []
    reason = cut_short[0] if cut_short else find_write_error(path.parent)
    if len(recorded) < ranks:
        raise MissingData(
            f"{path}: {len(recorded)} of {ranks} ranks were recorded" + (f" ({reason})" if reason else ""),
            hint="free disk space" if reason else "check that the folder is writable",
        )
    if cut_short:
        console.print_note(f"zprof: {path} is incomplete: {reason}")
