"""Declare the command-line options of the training program, and build a TrainConfig from parsed options.

Options that were not given are absent from the namespace: defaults are defined only in the config.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zprof.reference_engine.config import DTYPES, STAGES, AdamKernel, Keep
from zprof.reference_engine.program import plants
from zprof.reference_engine.program.train_config import TrainConfig, Units, replace_fields

_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}
_DEFAULTS = TrainConfig()

_PREFETCH_FIELDS = ("zero.forward_prefetch", "zero.backward_prefetch")
_REDUCE_EACH_FIELDS = ("zero.reduce_each_micro_batch",)


class _ListPlants(argparse.Action):
    """Print the plants for ``--plant list`` and exit, like --help; store any other value."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        if values == "list":
            sys.stdout.write(plants.format_plants())
            parser.exit()
        setattr(namespace, self.dest, values)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare all options of a training run."""
    for title, options in OPTION_GROUPS.items():
        group = parser.add_argument_group(title)
        for option in options:
            if not option.excludes:
                option.add(group)
        if any(option.excludes for option in options):
            one_of = group.add_mutually_exclusive_group()
            for option in options:
                if option.excludes:
                    option.add(one_of)
    group = parser.add_argument_group("planted causes")
    group.add_argument(
        "--plant",
        metavar="CAUSE",
        action=_ListPlants,
        default=argparse.SUPPRESS,
        help="run with a known cause of slowness or memory use; other options must not contradict it; "
        "'list' shows all causes",
    )
    group.add_argument(
        "--fixed",
        action="store_const",
        const="fixed",
        default=argparse.SUPPRESS,
        help="with --plant: the same run without the cause, for comparison",
    )
    group.add_argument(
        "--cured",  # the old spelling of --fixed
        action="store_const",
        dest="fixed",
        const="cured",
        default=argparse.SUPPRESS,
        help=argparse.SUPPRESS,
    )


def make_config(options: argparse.Namespace) -> TrainConfig:
    """Build the config of the requested run.

    Raises:
        ValueError: a setting is out of range, requires another setting, or contradicts the plant; the message
            names it.
    """
    given = vars(options)
    requested: dict[str, Any] = {}
    for option in (option for group in OPTION_GROUPS.values() for option in group if option.dest in given):
        requested.update(option.resolve_fields(given[option.dest]))
    plant = plants.find_plant(given["plant"]) if given.get("plant") else None
    base = {} if plant is None else plant.base
    fields = {**base, **requested}
    rotates = plant is not None and "compute.straggler_rotates" in plant.change
    if "link.latency_s" in fields and "link.bandwidth_bytes_per_s" not in fields:
        raise ValueError("--link-latency-us needs --link-gbps")
    rank, delay = ("compute.straggler_rank" in fields, "compute.straggler_s" in fields)
    if rank != delay and not rotates:
        raise ValueError("--straggler-rank and --straggler-ms must be given together")
    fixed = bool(given.get("fixed"))
    if plant is None and fixed:
        raise ValueError("--fixed needs --plant with the cause to leave out")
    if plant is None:
        config = replace_fields(TrainConfig(), requested)
    else:
        config = (
            plant.build_fixed_config(TrainConfig(), requested)
            if fixed
            else plant.apply(TrainConfig(), requested)
        )
    if config.zero.defragment and config.activations.checkpoint:
        return replace_fields(config, {"activations.contiguous": True})
    return config


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One command-line option.

    A flag sets ``value``.  The text of any other option is parsed by ``kind`` to a value that can be written
    as JSON; ``convert`` turns that into the value in the config.
    """

    name: str
    fields: tuple[str, ...]
    help: str
    kind: Callable[[str], Any] | None = None
    value: Any = None
    convert: Callable[[Any], Any] = lambda given: given
    choices: tuple[Any, ...] | None = None
    metavar: str | None = None
    excludes: bool = False

    @property
    def dest(self) -> str:
        """Name of the option in the parsed namespace."""
        return self.name.removeprefix("--").replace("-", "_")

    def add(self, group: Any) -> None:
        """Add the option to an argument group."""
        common = {"dest": self.dest, "default": argparse.SUPPRESS, "help": self.help + self._format_default()}
        if self.kind is None:
            group.add_argument(self.name, action="store_true", **common)
        else:
            group.add_argument(
                self.name, type=self.kind, choices=self.choices, metavar=self.metavar, **common
            )

    def resolve_fields(self, given: Any) -> Mapping[str, Any]:
        """Return the config fields that the given value sets."""
        if self.kind is None:
            return dict.fromkeys(self.fields, self.value) if given else {}
        return dict.fromkeys(self.fields, self.convert(given))

    def _format_default(self) -> str:
        if self.kind is None:
            return ""
        value: Any = _DEFAULTS
        for name in self.fields[0].split("."):
            value = getattr(value, name, None)
        return "" if value is None else f" ({str(value).removeprefix('torch.')})"


def _count_option(name: str, field: str, text: str) -> Option:
    return Option(name=name, fields=(field,), kind=int, metavar="N", help=text)


def _number_option(name: str, field: str, text: str, metavar: str = "X") -> Option:
    return Option(name=name, fields=(field,), kind=float, metavar=metavar, help=text)


def _scaled_option(name: str, field: str, text: str, units: float) -> Option:
    return Option(
        name=name, fields=(field,), kind=float, metavar="X", help=text, convert=lambda given: given / units
    )


def _flag_option(
    name: str, fields: tuple[str, ...], value: Any, text: str, *, excludes: bool = False
) -> Option:
    return Option(name=name, fields=fields, value=value, help=text, excludes=excludes)


def _dtype_option(name: str, field: str, text: str) -> Option:
    return Option(
        name=name,
        fields=(field,),
        kind=str,
        choices=tuple(_DTYPES),
        convert=_DTYPES.__getitem__,
        help=text,
    )


def _path_option(name: str, field: str, text: str) -> Option:
    return Option(name=name, fields=(field,), kind=str, metavar="PATH", convert=Path, help=text)


OPTION_GROUPS: Mapping[str, tuple[Option, ...]] = {
    "run": (
        _count_option("--steps", "steps", "optimizer steps, including those before --resume"),
        _count_option("--batch", "batch", "sequences per step, over all ranks and micro-batches"),
        _count_option("--seed", "seed", "random seed of weights and data"),
        _path_option("--save", "save", "write a checkpoint here after the last step, replacing an older one"),
        _path_option("--resume", "resume", "resume from a checkpoint of any number of ranks and any stage"),
    ),
    "ranks": (
        _count_option("--dp", "dp", "data-parallel ranks (all ranks / mp)"),
        _count_option("--mp", "mp", "tensor-parallel ranks that share a model; dp x mp ranks in all"),
    ),
    "sharding": (
        Option(
            name="--stage", fields=("zero.stage",), kind=int, choices=STAGES,
            help="what is sharded: 0 nothing, 1 optimizer state, 2 also gradients, 3 also parameters",
        ),
        Option(
            name="--units", fields=("units",), kind=str, choices=tuple(map(str, Units)), convert=Units,
            help="modules that are gathered and reduced as one",
        ),
        Option(
            name="--prefetch", fields=_PREFETCH_FIELDS, kind=int, metavar="N",
            help="stage 3: number of units gathered ahead; 0 disables prefetching",
        ),
        _count_option("--forward-prefetch", "zero.forward_prefetch", "--prefetch of the forward only"),
        _count_option("--backward-prefetch", "zero.backward_prefetch", "--prefetch of the backward only"),
        Option(
            name="--keep-after-forward", fields=("zero.keep_after_forward",), kind=str, convert=Keep,
            choices=tuple(map(str, Keep)),
            help="stage 3: units that are not gathered again for the backward",
        ),
        _flag_option("--no-overlap-reduce", ("zero.overlap_reduce",), False,
              "wait for each gradient reduction instead of overlapping it with the backward"),
        _flag_option("--no-overlap-gather", ("zero.overlap_gather",), False,
              "stages 1 and 2: wait for the all-gather of parameters instead of overlapping it"),
    ),
    "precision and optimizer": (
        _dtype_option("--dtype", "zero.dtype", "dtype of parameters, gradients and communication"),
        _dtype_option("--reduce-dtype", "zero.reduce_dtype", "dtype of gradient reductions (as --dtype)"),
        _number_option("--loss-scale", "zero.loss_scale.initial", "float16: initial loss scale"),
        _number_option("--clip", "zero.clip_norm", "clip gradients to this norm (no clipping)", "NORM"),
        Option(
            name="--adam", fields=("zero.adam",), kind=str, convert=AdamKernel,
            choices=tuple(map(str, AdamKernel)), help="kernel that runs AdamW",
        ),
        _number_option("--learning-rate", "zero.learning_rate", "learning rate of AdamW"),
        _number_option("--weight-decay", "zero.weight_decay", "weight decay of AdamW"),
    ),
    "accumulation": (
        _count_option("--accumulate", "zero.micro_batches", "micro-batches per step"),
        _flag_option("--sync-each-micro-batch", _REDUCE_EACH_FIELDS, True,
              "reduce gradients after each (default of the stage)",
              excludes=True),
        _flag_option("--no-sync", _REDUCE_EACH_FIELDS, False,
              "reduce once per step; stages 2 and 3 then keep full gradients",
              excludes=True),
    ),
    "memory": (
        _count_option("--reduce-buckets", "zero.reduce_buckets", "maximum gradient reductions in flight"),
        _count_option("--constant-buffers", "zero.constant_buffers",
               "CB: elements in a fused buffer, independent of the model size (size of a unit)"),
        _flag_option("--checkpoint", ("activations.checkpoint",), True,
              "keep only each block's input, and recompute the block in the backward"),
        _flag_option("--pa", ("activations.checkpoint", "activations.partition"), True,
              "activation checkpoints partitioned over the --mp ranks"),
        _flag_option("--pa-cpu",
              ("activations.checkpoint", "activations.partition", "activations.host"), True,
              "as --pa, with checkpoints in host memory"),
        _flag_option("--defragment", ("zero.defragment",), True,
              "MD: copy gradients and checkpoints into preallocated memory"),
    ),
    "model": (
        *(_count_option(f"--{name}", f"gpt.{name}", f"{name} of the model")
          for name in ("layers", "hidden", "heads", "vocabulary", "context")),
        _flag_option("--tied", ("gpt.tied",), True, "share the embedding's weights with the head"),
    ),
    "modelled link and compute": (
        Option(
            name="--link-gbps", fields=("link.bandwidth_bytes_per_s",), kind=float, metavar="X",
            convert=lambda given: given * 1e9 / 8, help="bus bandwidth in 1e9 bits/s (real network)",
        ),
        _scaled_option("--link-latency-us", "link.latency_s", "latency of each collective", 1e6),
        _scaled_option("--compute-forward-ms", "compute.forward_s", "added to each block's forward", 1e3),
        _scaled_option("--compute-backward-ms", "compute.backward_s", "added to each block's backward", 1e3),
        _count_option("--straggler-rank", "compute.straggler_rank", "rank that is late in every step"),
        _scaled_option("--straggler-ms", "compute.straggler_s", "delay of the straggler per step", 1e3),
    ),
}  # fmt: skip
