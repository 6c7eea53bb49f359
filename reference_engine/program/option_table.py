"""Every option of the training program: its name, the config fields that it sets, what it says of itself."""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zprof.reference_engine.config import DTYPES, STAGES, AdamKernel, Keep
from zprof.reference_engine.program.train_config import TrainConfig, Units

_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}
_DEFAULTS = TrainConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option.  A flag stands for ``value``; another option's text is read by ``kind``, then converted.

    What is parsed can be written as JSON; ``convert`` makes of it what the config holds.
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
        """Its name in the parsed options."""
        return self.name.removeprefix("--").replace("-", "_")

    def add(self, group: Any) -> None:
        """Declare it."""
        common = {"dest": self.dest, "default": argparse.SUPPRESS, "help": self.help + self._default()}
        if self.kind is None:
            group.add_argument(self.name, action="store_true", **common)
        else:
            group.add_argument(
                self.name, type=self.kind, choices=self.choices, metavar=self.metavar, **common
            )

    def fields_of(self, given: Any) -> Mapping[str, Any]:
        """The config fields, as this option was given."""
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


def _count(name: str, field: str, text: str) -> Option:
    return Option(name=name, fields=(field,), kind=int, metavar="N", help=text)


def _number(name: str, field: str, text: str, metavar: str = "X") -> Option:
    return Option(name=name, fields=(field,), kind=float, metavar=metavar, help=text)


def _per(name: str, field: str, text: str, units: float) -> Option:
    return Option(
        name=name, fields=(field,), kind=float, metavar="X", help=text, convert=lambda given: given / units
    )


def _flag(name: str, fields: tuple[str, ...], value: Any, text: str, *, excludes: bool = False) -> Option:
    return Option(name=name, fields=fields, value=value, help=text, excludes=excludes)


def _dtype(name: str, field: str, text: str) -> Option:
    return Option(
        name=name,
        fields=(field,),
        kind=str,
        choices=tuple(_DTYPES),
        convert=_DTYPES.__getitem__,
        help=text,
    )


def _path(name: str, field: str, text: str) -> Option:
    return Option(name=name, fields=(field,), kind=str, metavar="PATH", convert=Path, help=text)


_PREFETCH = ("zero.forward_prefetch", "zero.backward_prefetch")
_EACH = ("zero.reduce_each_micro_batch",)

GROUPS: Mapping[str, tuple[Option, ...]] = {
    "run": (
        _count("--steps", "steps", "optimizer steps, those of a resumed run included"),
        _count("--batch", "batch", "sequences a step, over all ranks and micro-batches"),
        _count("--seed", "seed", "of weights and data"),
        _path("--save", "save", "write a checkpoint here after the last step, over an older one"),
        _path("--resume", "resume", "go on from a checkpoint, of any number of ranks and any stage"),
    ),
    "ranks": (
        _count("--dp", "dp", "data-parallel ranks (all ranks / mp)"),
        _count("--mp", "mp", "ranks that share a model by tensor parallelism; dp x mp ranks run"),
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
            name="--prefetch", fields=_PREFETCH, kind=int, metavar="N",
            help="stage 3: units gathered ahead, 0 is off",
        ),
        _count("--forward-prefetch", "zero.forward_prefetch", "the same, for the forward only"),
        _count("--backward-prefetch", "zero.backward_prefetch", "the same, for the backward only"),
        Option(
            name="--keep-after-forward", fields=("zero.keep_after_forward",), kind=str, convert=Keep,
            choices=tuple(map(str, Keep)),
            help="stage 3: units that are not gathered again for the backward",
        ),
        _flag("--no-overlap-reduce", ("zero.overlap_reduce",), False,
              "wait for gradient reductions instead of running beside them"),
        _flag("--no-overlap-gather", ("zero.overlap_gather",), False,
              "stages 1 and 2: gather parameters at the end of the step, not beside the next forward"),
    ),
    "precision and optimizer": (
        _dtype("--dtype", "zero.dtype", "of parameters, gradients and the wire"),
        _dtype("--reduce-dtype", "zero.reduce_dtype", "gradients are summed in it (as --dtype)"),
        _number("--loss-scale", "zero.loss_scale.initial", "float16: the loss scale at the start"),
        _number("--clip", "zero.clip_norm", "scale gradients down to this norm (never)", "NORM"),
        Option(
            name="--adam", fields=("zero.adam",), kind=str, convert=AdamKernel,
            choices=tuple(map(str, AdamKernel)), help="what runs AdamW",
        ),
        _number("--learning-rate", "zero.learning_rate", "of AdamW"),
        _number("--weight-decay", "zero.weight_decay", "of AdamW"),
    ),
    "accumulation": (
        _count("--accumulate", "zero.micro_batches", "micro-batches a step"),
        _flag("--sync-each-micro-batch", _EACH, True, "reduce gradients after each (as the stage needs it)",
              excludes=True),
        _flag("--no-sync", _EACH, False, "reduce once a step; stages 2 and 3 then keep whole gradients",
              excludes=True),
    ),
    "memory": (
        _count("--reduce-buckets", "zero.reduce_buckets", "gradient reductions in flight"),
        _count("--constant-buffers", "zero.constant_buffers",
               "CB: fused buffers of so many elements, whatever the size of the model (that of a unit)"),
        _flag("--checkpoint", ("activations.checkpoint",), True,
              "keep only each block's input, and compute the block again in the backward"),
        _flag("--pa", ("activations.checkpoint", "activations.partition"), True,
              "checkpoints, each divided over the --mp ranks"),
        _flag("--pa-cpu", ("activations.checkpoint", "activations.partition", "activations.host"), True,
              "the same, kept in host memory"),
        _flag("--defragment", ("zero.defragment",), True,
              "MD: gradients and checkpoints go into memory that was allocated once"),
    ),
    "model": (
        *(_count(f"--{name}", f"gpt.{name}", "of the model")
          for name in ("layers", "hidden", "heads", "vocabulary", "context")),
        _flag("--tied", ("gpt.tied",), True, "share the embedding's weights with the head"),
    ),
    "modelled: a link and compute of a chosen speed": (
        Option(
            name="--link-gbps", fields=("link.bandwidth_bytes_per_s",), kind=float, metavar="X",
            convert=lambda given: given * 1e9 / 8, help="bus bandwidth in 1e9 bits/s (the real network)",
        ),
        _per("--link-latency-us", "link.latency_s", "latency of each collective", 1e6),
        _per("--compute-forward-ms", "compute.forward_s", "each block's forward takes so much longer", 1e3),
        _per("--compute-backward-ms", "compute.backward_s", "and its backward so much", 1e3),
        _count("--straggler-rank", "compute.straggler_rank", "this rank is late in every step"),
        _per("--straggler-ms", "compute.straggler_s", "by so much", 1e3),
    ),
}  # fmt: skip
