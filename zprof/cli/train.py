"""``zprof train``: train the reference engine on ranks of this machine, and record it."""

import argparse
from pathlib import Path

from zprof.cli import console
from zprof.cli.progress import steps_progress
from zprof.model.errors import BadInput, MissingData

#: Steps of the default schedule; a longer schedule lengthens the training with it.
_SCHEDULED_STEPS = 12


class TrainCommand:
    """Train a GPT-2-shaped model with the reference ZeRO engine, and record it.

    The ranks run on this machine.  The options of the engine, of the model and of
    what is modelled are those of torchrun -m zprof.reference_engine.train, which
    trains without recording.

    examples:
      zprof train -o zero3.zprof --ranks 2 --stage 3
      zprof train -o slow.zprof --stage 3 --forward-prefetch 0 --link-gbps 0.4
    """

    name = "train"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """What to record, and the engine's own options."""
        from zprof.reference_engine.program.options import add_arguments

        parser.add_argument("-o", "--output", metavar="RUN", type=Path, required=True, help="run to write")
        parser.add_argument("--force", action="store_true", help="overwrite RUN")
        parser.add_argument("--ranks", type=_count, default=2, help="processes (%(default)s)")
        parser.add_argument("--skip-steps", type=_count_or_none, default=2, help="steps left alone (2)")
        parser.add_argument("--memory-steps", type=_count_or_none, default=2, help="watched for memory (2)")
        parser.add_argument("--time-steps", type=_count_or_none, default=8, help="watched for time (8)")
        add_arguments(parser)
        parser.set_defaults(steps=_SCHEDULED_STEPS)

    def run(self, arguments: argparse.Namespace) -> int:
        """Train, then say what to do with the run."""
        from zprof.integrations.reference_job import ReferenceJob, train
        from zprof.reference_engine.program.options import config_from
        from zprof.run.target import clear_target

        own = {"output", "force", "ranks", "skip_steps", "memory_steps", "time_steps", "command"}
        options = {name: value for name, value in vars(arguments).items() if name not in own}
        job = ReferenceJob(
            world_size=arguments.ranks,
            options=options,
            run=arguments.output,
            skip_steps=arguments.skip_steps,
            memory_steps=arguments.memory_steps,
            time_steps=arguments.time_steps,
        )
        if options["steps"] == _SCHEDULED_STEPS:
            options["steps"] = max(1, job.recorded_steps)
        try:
            config_from(argparse.Namespace(**options)).check_ranks(arguments.ranks)
        except ValueError as error:
            raise BadInput(str(error), hint="zprof train --help shows the options") from None
        clear_target(arguments.output, force=arguments.force)
        with steps_progress(arguments.output.name, options["steps"]) as on_step:
            train(job, on_step=on_step)
        _check_recorded(arguments.output, arguments.ranks)
        console.note(f"zprof: recorded {arguments.output}; next: zprof report {arguments.output}")
        return 0


def _check_recorded(path: Path, ranks: int) -> None:
    """The recorder never raises into training: say here what it could not write."""
    from zprof.run.reader import load

    recorded = load(path).ranks if path.is_dir() else ()
    if len(recorded) < ranks:
        raise MissingData(
            f"{path}: {len(recorded)} of {ranks} ranks were recorded", hint="is the folder writable?"
        )


def _count(text: str) -> int:
    value = _count_or_none(text)
    if value == 0:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value


def _count_or_none(text: str) -> int:
    if not text.isdecimal() or int(text) > 1_000_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a count")
    return int(text)
