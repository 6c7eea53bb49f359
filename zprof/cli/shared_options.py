"""Declare and read arguments shared by several commands: runs, measurement, facts missing in traces."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from zprof.base.parsing import MESH_NAMES, parse_count, parse_elements, parse_mesh, parse_positive

if TYPE_CHECKING:
    from zprof.model.stated_mesh import StatedMesh
    from zprof.model.time import WindowPolicy
    from zprof.model.training import TrainingFacts


RUN_HELP = "recording folder, trace, memory snapshot or flight-recorder dump, or a folder of one kind"
_BYTES_PER_GB = 1e9


def add_run(parser: argparse.ArgumentParser) -> None:
    """Declare RUN."""
    parser.add_argument("run", metavar="RUN", type=Path, help=RUN_HELP)


def add_run_and_baseline(parser: argparse.ArgumentParser) -> None:
    """Declare RUN and its baseline, given as a second argument or an option."""
    add_run(parser)
    baseline = parser.add_mutually_exclusive_group()
    baseline.add_argument(
        "second",
        metavar="BASELINE",
        type=Path,
        nargs="?",
        action=_StoreBaseline,
        help="run to compare RUN with, e.g. the last one that was fast",
    )
    baseline.add_argument("--baseline", metavar="RUN", type=Path, help="the same as BASELINE")


class _StoreBaseline(argparse.Action):
    """Store the second argument as ``--baseline`` would."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if values is None:
            return
        if namespace.baseline is not None:
            raise argparse.ArgumentError(self, "not allowed with argument --baseline")
        setattr(namespace, self.dest, values)
        namespace.baseline = values


class MeasuringOptions(TypedDict):
    """Arguments of ``diagnose`` and related functions."""

    expected_bus_bytes_per_s: float | None
    policy: "WindowPolicy"


def add_measuring_options(parser: argparse.ArgumentParser, subject: str = "the recording") -> None:
    """Declare the two measuring options; ``subject`` is what ``--window trace`` measures as one interval."""
    parser.add_argument(
        "--window",
        choices=("step", "trace"),
        default="step",
        help=f"measure each step, or all of {subject} as one interval (default: step)",
    )
    parser.add_argument(
        "--expected-busbw",
        metavar="GB_PER_S",
        type=parse_positive,
        help="bus bandwidth that large messages should reach, in GB/s (1e9 bytes per second)",
    )


def read_measuring_options(arguments: argparse.Namespace) -> MeasuringOptions:
    """Return the measuring options as arguments of ``diagnose``."""
    from zprof.model.time import WindowPolicy

    expected: float | None = arguments.expected_busbw
    return {
        "expected_bus_bytes_per_s": None if expected is None else expected * _BYTES_PER_GB,
        "policy": WindowPolicy(arguments.window),
    }


def add_mesh_option(parser: argparse.ArgumentParser) -> None:
    """Declare the parallelism of the job, as the user states it."""
    parser.add_argument(
        "--mesh",
        metavar="DIMS",
        type=parse_mesh,
        default=(),
        help="parallelism of the job, outermost dimension first as in torch's init_device_mesh, e.g. "
        f"pp=4,dp=2,tp=8; of {', '.join(MESH_NAMES)} (ep divides dp and cp)",
    )


def add_stated_mesh(mesh: "StatedMesh", known: "TrainingFacts", world_size: int) -> "TrainingFacts":
    """Return ``known`` updated with the mesh, if stated.

    Raises:
        BadInput: It does not fit the number of ranks.
    """
    if not mesh:
        return known
    from msgspec.structs import replace

    from zprof.model.stated_mesh import check_mesh

    check_mesh(mesh, world_size)
    return replace(known, mesh=mesh)


def add_training_options(parser: argparse.ArgumentParser) -> None:
    """Declare the training facts that the ZeRO volume formula needs."""
    group = parser.add_argument_group(
        "training facts that a trace does not contain",
        "with them, the bytes per step are checked against the ZeRO formula of the stage",
    )
    group.add_argument("--stage", type=int, choices=range(4), help="ZeRO stage: 0 is DDP, 3 is FSDP2")
    group.add_argument(
        "--parameters", metavar="N", type=parse_elements, help="number of model parameters, e.g. 7e9"
    )
    group.add_argument(
        "--shard-ranks",
        metavar="N",
        type=parse_count,
        help="ranks that the model states are sharded over (default: all)",
    )
    group.add_argument(
        "--wire-bytes", metavar="N", type=parse_count, help="bytes per gathered parameter element"
    )
    group.add_argument(
        "--reduce-bytes",
        metavar="N",
        type=parse_count,
        help="bytes per reduced gradient element (default: --wire-bytes)",
    )
    group.add_argument(
        "--micro-batches", metavar="N", type=parse_count, help="forward passes per step (default: 1)"
    )
    add_mesh_option(parser)


def add_work_options(
    parser: argparse.ArgumentParser, names: tuple[str, str] = ("RUN", "its baseline")
) -> None:
    """Declare the tokens per step, for comparing two runs at equal work."""
    group = parser.add_argument_group(
        "work per step",
        "total over all ranks and micro-batches; runs that differ are compared at equal work",
    )
    for prefix, run in zip(("", "baseline-"), names, strict=True):
        group.add_argument(
            f"--{prefix}tokens-per-step", metavar="N", type=parse_elements, help=f"tokens per step of {run}"
        )


def add_stated_facts(
    arguments: argparse.Namespace, known: "TrainingFacts", world_size: int
) -> "TrainingFacts":
    """Return ``known`` updated with the facts from the command line."""
    from msgspec.structs import replace

    stated: dict[str, Any] = {
        "stage": arguments.stage,
        "parameters": arguments.parameters,
        "shard_ranks": arguments.shard_ranks,
        "communication_bytes": arguments.wire_bytes,
        "reduction_bytes": arguments.reduce_bytes,
        "micro_batches": arguments.micro_batches,
    }
    stated = {name: value for name, value in stated.items() if value is not None}
    if stated and known.shard_ranks is None:
        stated.setdefault("shard_ranks", world_size)
    return replace(add_stated_mesh(arguments.mesh, known, world_size), **stated)


def add_stated_work(tokens_per_step: int | None, known: "TrainingFacts") -> "TrainingFacts":
    """Return ``known`` updated with the tokens per step, if given."""
    from msgspec.structs import replace

    return known if tokens_per_step is None else replace(known, tokens_per_step=tokens_per_step)
