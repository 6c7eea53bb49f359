"""``zprof plan``: predict the memory and step time of a job before it runs."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import convert
from msgspec.structs import replace

from zprof.cli import console
from zprof.cli.output import add_output_options, render_to
from zprof.integrations.planning import count_model
from zprof.model.machines import MACHINES
from zprof.planner.request import CHOICES, PARSERS, UNFUSED, PlanRequest

if TYPE_CHECKING:
    from zprof.model.plan import Plan


#: Value that lists all presets instead of selecting one.
_LIST = "list"

#: Option groups with title and description; each option with the field of its value, metavar and help.
_OPTIONS: Sequence[tuple[str, str | None, Sequence[tuple[str, str | None, str]]]] = (
    (
        "model",
        "specify it in exactly one of these ways",
        (
            (
                "params",
                "N",
                "number of parameters, e.g. 7.5e9, 7.5B or 1T; a usual shape is assumed, marked ~",
            ),
            (
                "preset",
                "NAME",
                "known model, e.g. llama-3-8b, qwen2.5-7b, mixtral-8x7b or 7.5b; list: show all",
            ),
            (
                "model",
                "MODULE:FUNCTION",
                "function that builds the model; its parameters are counted, it is not run",
            ),
            ("config", "FILE", "config.json of Hugging Face; also as an argument without --config"),
            ("layers", "N", "transformer blocks, with --hidden"),
            ("hidden", "N", "hidden size, with --layers"),
            ("heads", "N", "attention heads, with --layers"),
            ("vocabulary", "N", "vocabulary size, with --layers (0: no embedding)"),
            ("context", "N", "maximum positions, with --layers (default: --sequence)"),
            ("untied", None, "the output head does not share the embedding weights, with --layers"),
        ),
    ),
    (
        "devices",
        "without --framework, each scheme is planned with its usual framework",
        (
            (
                "framework",
                None,
                "whose buffers and schedule to plan; reference: the engine of the ZeRO paper",
            ),
            ("deepspeed", "FILE", "ds_config.json, read as given"),
            ("stage", None, "one ZeRO stage (default: all stages and alternatives)"),
            ("world", "N", "all devices; the data-parallel degree is the rest"),
            ("dp", "N", "data-parallel degree"),
            ("tp", "N", "tensor-parallel degree, with sequence parallelism"),
            ("mp", "N", "old name of --tp, until the next release"),
            ("pp", "N", "pipeline degree"),
            ("cp", "N", "context-parallel degree"),
            ("ep", "N", "expert-parallel degree, out of the ranks of a pipeline stage"),
            ("virtual", "N", "model chunks per pipeline stage (interleaved schedule)"),
            ("schedule", None, "pipeline schedule (default: 1f1b, with --virtual interleaved)"),
            ("shard", "N", "ranks that share one copy of the states (HSDP; default: all)"),
            ("no_reshard", None, "FSDP2: keep parameters gathered after the forward pass"),
            ("no_sequence_parallel", None, "tensor parallelism replicates norms and residuals"),
        ),
    ),
    (
        "model states",
        None,
        (
            ("precision", None, "precision of the matrix products; fp8, mxfp8 and nvfp4 store bf16"),
            ("pure", None, "no fp32 master weights"),
            ("fp32_reduce", None, "reduce gradients in fp32"),
            ("optimizer", None, "optimizer, which sets the bytes of state per parameter"),
            ("offload", None, "keep the optimizer, or also the parameters, in host memory"),
        ),
    ),
    (
        "batch",
        "per model replica; without it, one sample of 4,096 tokens is assumed, marked ~",
        (
            ("micro_batch", "N", "samples per micro-batch"),
            ("sequence", "N", "tokens per sample"),
            ("micro_batches", "N", "micro-batches per step"),
            ("global_batch", "N", "samples per step over all devices, instead of --micro-batches"),
        ),
    ),
    (
        "activations",
        None,
        (
            ("recompute", None, "activations to recompute in the backward pass"),
            ("checkpointing", None, "old name of --recompute full, until the next release"),
            ("unfused", "KERNELS", "run these unfused: loss,norms,attention (default with --unfused: all)"),
            ("compile", None, "compile the layers, which fuses elementwise operators"),
        ),
    ),
    (
        "reference engine",
        "each of these, and --model, --sensitivity and --verify, selects --framework reference",
        (
            (
                "partition_activations",
                None,
                "split activation checkpoints across the model-parallel ranks (Pa)",
            ),
            ("offload_activations", None, "also move these checkpoints to host memory (Pa+cpu)"),
            ("defragment", None, "keep full gradients in preallocated memory (MD)"),
            ("keep_last", None, "stage 3: keep the last unit gathered between forward and backward"),
            ("constant_buffers", "N", "size of fused buffers in elements, e.g. 5e8 (CB)"),
            ("prefetch", "N", "units to gather ahead"),
            ("backend", None, "communication backend"),
        ),
    ),
    (
        "hardware",
        "without it, an h100 is assumed, marked ~; docs/planner.md describes the file format",
        (
            ("hardware", "NAME", f"a .toml file, or one of {', '.join(MACHINES)}"),
            ("device_memory", "SIZE", "memory per device, e.g. 32GB"),
            ("bandwidth", "RATE", "total network bandwidth of a node in one direction, e.g. 100GB/s"),
            ("latency", "TIME", "latency per hop between nodes, e.g. 10us"),
            ("intra_bandwidth", "RATE", "bus bandwidth of collectives within a node"),
            ("intra_latency", "TIME", "latency per hop within a node"),
        ),
    ),
)


class PlanCommand:
    """Predict whether a job fits in memory, and what its communication costs.

    Says first what fits and how fast: the fastest layouts on the same devices, each with
    the command that plans it. Then compares DDP, ZeRO 1 to 3, tensor parallelism and
    pipelines, each as its usual framework runs it: memory by tenant, the largest model
    that fits, bytes on each link and a breakdown of the step. --framework reference plans
    the engine of the ZeRO paper. Usual values stand for shape, batch and hardware that
    are not given; figures that rest on them start with ~. Needs no run, no GPU and no
    torch.

    examples:
      zprof plan --preset llama-3-8b --world 8 --hardware h100 --sequence 8192
      zprof plan config.json --world 64 --hardware h100 --global-batch 512 --search
      zprof plan --preset llama-3-70b --framework megatron --world 64 --tp 8 --pp 2
      zprof plan --preset llama-3-8b --world 8 --deepspeed ds_config.json
      zprof plan --params 13e9 --dp 64 --framework reference
      zprof plan --preset 1t --dp 1024 --sensitivity
      zprof plan --layers 36 --hidden 4096 --dp 64 --hardware v100 --device-memory 16GB
      zprof plan --preset 60b --world 400 --tp 16 --hardware v100 -o plan.html
      zprof plan --model mymodel:build --dp 8 --micro-batch 2 --sequence 2048 --verify
    """

    name = "plan"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the job, the analysis and the output options."""
        add_planning_options(parser)
        group = parser.add_argument_group("analysis")
        group.add_argument(
            "--search",
            action="store_true",
            help="search all degrees and schemes of the devices; needs a global batch (--global-batch)",
        )
        group.add_argument(
            "--sensitivity",
            action="store_true",
            help="effect of other bandwidths, latencies, batches and world sizes; break-even points",
        )
        group.add_argument(
            "--verify",
            action="store_true",
            help="run one rank on fake tensors and compare its memory with the plan (needs torch)",
        )
        group.add_argument(
            "--assumptions",
            action="store_true",
            help="text output: show each assumption in full, with its values",
        )
        add_output_options(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Plan the job and write the result."""
        from zprof.reports.formats import PLANS, PLANS_IN_FULL

        if arguments.preset == _LIST:
            from zprof.planner.models.presets import load_presets

            presets = load_presets()
            width = max(len(name) for name in presets)
            lines = (
                f"{name:<{width}}  {preset.parameters:>17,}  "
                f"{preset.transformer.layer_count:>3} x {preset.transformer.hidden:>6,}"
                for name, preset in presets.items()
            )
            console.print_data(
                "\n".join((f"{'name':<{width}}  {'parameters':>17}  layers x hidden", *lines, ""))
            )
            return 0
        formats = PLANS_IN_FULL if arguments.assumptions else PLANS
        render_to(arguments, formats, lambda: _make_plan(arguments))
        return 0


def add_planning_options(parser: argparse.ArgumentParser) -> None:
    """Declare every option that affects a plan: the fields of a ``PlanRequest``, with their defaults."""
    request = PlanRequest()
    parser.add_argument(
        "config", nargs="?", default=argparse.SUPPRESS, metavar="CONFIG", help="same as --config"
    )
    for title, description, options in _OPTIONS:
        group = parser.add_argument_group(title, description)
        for name, metavar, help_text in options:
            option, default = f"--{name.replace('_', '-')}", getattr(request, name)
            if isinstance(default, bool):
                group.add_argument(option, action="store_true", help=help_text)
                continue
            if default is not None and "old name" not in help_text:
                help_text += " (default: %(default)s)"
            group.add_argument(
                option,
                # --unfused without kernels names all of them.
                nargs="?" if name == "unfused" else None,
                const=",".join(UNFUSED) if name == "unfused" else None,
                metavar=metavar,
                type=PARSERS.get(name, str),
                choices=CHOICES.get(name),
                default=default,
                help=help_text,
            )


def _make_plan(arguments: argparse.Namespace) -> "Plan":
    from zprof.planner.plan_request import plan_request

    request = convert(arguments, PlanRequest, from_attributes=True)
    analyses = [name for name in ("search", "sensitivity", "verify") if getattr(arguments, name)]
    prediction = plan_request(request, count_model, analyses=analyses)
    if not arguments.verify:
        return prediction
    from zprof.integrations.planning.tasks import verify_plan

    return replace(prediction, verification=verify_plan(prediction, arguments.model))
