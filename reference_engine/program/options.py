"""Declare the options of the training program and build a TrainConfig from the parsed ones.

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
from zprof.reference_engine.program.plants import Plant
from zprof.reference_engine.program.train_config import TrainConfig, Units, replace_fields


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
        help="a run with a known cause of slowness or memory; options beside it stay, what contradicts it is "
        "refused; 'list' shows all",
    )
    group.add_argument(
        "--cured",
        action="store_true",
        default=argparse.SUPPRESS,
        help="with --plant: the same run without its cause, to compare with",
    )


def make_config(options: argparse.Namespace) -> TrainConfig:
    """Return the config of the requested run.

    Raises:
        ValueError: a setting is out of range, lacks a setting that it depends on, or contradicts the plant;
            the message names it.
    """
    given = vars(options)
    requested: dict[str, Any] = {}
    for option in (option for group in OPTION_GROUPS.values() for option in group if option.dest in given):
        requested.update(option.resolve_fields(given[option.dest]))
    plant = plants.find_plant(given["plant"]) if given.get("plant") else None
    base = {} if plant is None else plant.base
    _check_option_pairs(
        {**base, **requested}, rotates=plant is not None and "compute.straggler_rotates" in plant.change
    )
    config = _apply_plant(plant, requested, cured=bool(given.get("cured")))
    if config.zero.defragment and config.activations.checkpoint:
        return replace_fields(config, {"activations.contiguous": True})
    return config


def _apply_plant(plant: Plant | None, requested: dict[str, Any], *, cured: bool) -> TrainConfig:
    if plant is None and cured:
        raise ValueError("--cured needs --plant: it says of which cause")
    if plant is None:
        return replace_fields(TrainConfig(), requested)
    return plant.cured(TrainConfig(), requested) if cured else plant.apply(TrainConfig(), requested)


def _check_option_pairs(fields: dict[str, Any], *, rotates: bool) -> None:
    if "link.latency_s" in fields and "link.bandwidth_bytes_per_s" not in fields:
        raise ValueError("--link-latency-us needs --link-gbps")
    rank, delay = ("compute.straggler_rank" in fields, "compute.straggler_s" in fields)
    if rank != delay and not rotates:
        raise ValueError("--straggler-rank and --straggler-ms belong together")


_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}
_DEFAULTS = TrainConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option.

    A flag stands for ``value``; the text of any other option is parsed by ``kind``, then converted.  The
    parsed value can be written as JSON; ``convert`` turns it into the value in the config.
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
        """Declare the option."""
        common = {"dest": self.dest, "default": argparse.SUPPRESS, "help": self.help + self._default()}
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

    def _default(self) -> str:
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


_PREFETCH_FIELDS = ("zero.forward_prefetch", "zero.backward_prefetch")
_REDUCE_EACH_FIELDS = ("zero.reduce_each_micro_batch",)

OPTION_GROUPS: Mapping[str, tuple[Option, ...]] = {
    "run": (
        _count_option("--steps", "steps", "optimizer steps, those of a resumed run included"),
        _count_option("--batch", "batch", "sequences per step, over all ranks and micro-batches"),
        _count_option("--seed", "seed", "of weights and data"),
        _path_option("--save", "save", "write a checkpoint here after the last step, over an older one"),
        _path_option("--resume", "resume", "go on from a checkpoint, of any number of ranks and any stage"),
    ),
    "ranks": (
        _count_option("--dp", "dp", "data-parallel ranks (all ranks / mp)"),
        _count_option("--mp", "mp", "ranks that share a model by tensor parallelism; dp x mp ranks run"),
    ),
    "sharding": (
        Option(
            name="--stage", fields=("zero.stage",), kind=int, choices=STAGES,
            help="what is sharded: 0 nothing, 1 optimizer state, 2 and gradients, 3 and parameters",
        ),
        Option(
            name="--units", fields=("units",), kind=str, choices=tuple(map(str, Units)), convert=Units,
            help="what is gathered and reduced as a whole",
        ),
        Option(
            name="--prefetch", fields=_PREFETCH_FIELDS, kind=int, metavar="N",
            help="stage 3: units gathered ahead, 0 is off",
        ),
        _count_option("--forward-prefetch", "zero.forward_prefetch", "the same, for the forward only"),
        _count_option("--backward-prefetch", "zero.backward_prefetch", "the same, for the backward only"),
        Option(
            name="--keep-after-forward", fields=("zero.keep_after_forward",), kind=str, convert=Keep,
            choices=tuple(map(str, Keep)),
            help="stage 3: units that are not gathered again for the backward",
        ),
        _flag_option("--no-overlap-reduce", ("zero.overlap_reduce",), False,
              "wait for gradient reductions instead of running beside them"),
        _flag_option("--no-overlap-gather", ("zero.overlap_gather",), False,
              "stages 1 and 2: gather parameters at the end of the step, not beside the next forward"),
    ),
    "precision and optimizer": (
        _dtype_option("--dtype", "zero.dtype", "of parameters, gradients and the wire"),
        _dtype_option("--reduce-dtype", "zero.reduce_dtype", "gradients are summed in it (as --dtype)"),
        _number_option("--loss-scale", "zero.loss_scale.initial", "float16: the loss scale at the start"),
        _number_option("--clip", "zero.clip_norm", "scale gradients down to this norm (never)", "NORM"),
        Option(
            name="--adam", fields=("zero.adam",), kind=str, convert=AdamKernel,
            choices=tuple(map(str, AdamKernel)), help="what runs AdamW",
        ),
        _number_option("--learning-rate", "zero.learning_rate", "of AdamW"),
        _number_option("--weight-decay", "zero.weight_decay", "of AdamW"),
    ),
    "accumulation": (
        _count_option("--accumulate", "zero.micro_batches", "micro-batches per step"),
        _flag_option("--sync-each-micro-batch", _REDUCE_EACH_FIELDS, True, ("reduce gradients after "
            "each (as the stage needs it)"),
              excludes=True),
        _flag_option("--no-sync", _REDUCE_EACH_FIELDS, False, ("reduce once per step; stages 2 and 3 then "
            "keep whole gradients"),
              excludes=True),
    ),
    "memory": (
        _count_option("--reduce-buckets", "zero.reduce_buckets", "gradient reductions in flight"),
        _count_option("--constant-buffers", "zero.constant_buffers",
               "CB: fused buffers of so many elements, whatever the size of the model (that of a unit)"),
        _flag_option("--checkpoint", ("activations.checkpoint",), True,
              "keep only each block's input, and compute the block again in the backward"),
        _flag_option("--pa", ("activations.checkpoint", "activations.partition"), True,
              "checkpoints, each divided over the --mp ranks"),
        _flag_option("--pa-cpu",
              ("activations.checkpoint", "activations.partition", "activations.host"), True,
              "the same, kept in host memory"),
        _flag_option("--defragment", ("zero.defragment",), True,
              "MD: gradients and checkpoints go into memory that was allocated once"),
    ),
    "model": (
        *(_count_option(f"--{name}", f"gpt.{name}", "of the model")
          for name in ("layers", "hidden", "heads", "vocabulary", "context")),
        _flag_option("--tied", ("gpt.tied",), True, "share the embedding's weights with the head"),
    ),
    "modelled: a link and compute of a chosen speed": (
        Option(
            name="--link-gbps", fields=("link.bandwidth_bytes_per_s",), kind=float, metavar="X",
            convert=lambda given: given * 1e9 / 8, help="bus bandwidth in 1e9 bits/s (the real network)",
        ),
        _scaled_option("--link-latency-us", "link.latency_s", "latency of each collective", 1e6),
        _scaled_option("--compute-forward-ms", "compute.forward_s", ("each block's forward takes so "
            "much longer"), 1e3),
        _scaled_option("--compute-backward-ms", "compute.backward_s", "and its backward so much", 1e3),
        _count_option("--straggler-rank", "compute.straggler_rank", "this rank is late in every step"),
        _scaled_option("--straggler-ms", "compute.straggler_s", "by so much", 1e3),
    ),
}  # fmt: skip
