"""The planner against published runs: each row of ``benchmarks/data`` is a job that ran.

    python -m benchmarks.planner_published [--part reported|calibration|all] [--rows] [--json FILE]

Prints, by source, device and scheme: jobs called too large for a device on which they ran, the median error
of throughput and memory, and how many lie within 20 %. Constants of the planner come from hardware data and
from rows named *calibration*; the table of rows named *reported* stands in docs/planner.md. No constant of
the memory comes from these rows.
"""

import argparse
import csv
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import correlation, median

from msgspec import Struct
from msgspec.structs import replace

from zprof.base.errors import ZprofError
from zprof.model.layout import (
    ComputePrecision,
    EngineBuffers,
    Framework,
    Kernels,
    Layout,
    ParallelDegrees,
    PipelineSchedule,
    Recompute,
)
from zprof.model.machines import Hardware
from zprof.model.plan import Estimate, Fit
from zprof.model.transformer import Attention, LayerRun, Mlp, Transformer
from zprof.planner.estimate import estimate_layout
from zprof.planner.framework_memory import FRAGMENTATION_RATIO
from zprof.planner.machine_file import find_hardware
from zprof.planner.models.presets import find_preset

DATA = Path(__file__).parent / "data"
MIB, GIB = 1 << 20, 1 << 30
#: A prediction within this share of the published figure is near.
NEAR_RATIO = 0.2
#: Fewer rows have no order.
_LEAST_RANKED = 4
#: Names of models in Megatron-Bridge's tables: presets.
MEGATRON_MODELS = {
    "LLAMA3_8B": "llama-3-8b",
    "LLAMA3_70B": "llama-3-70b",
    "LLAMA3.1_405B": "llama-3.1-405b",
    "DeepSeekV3": "deepseek-v3",
    "GPT OSS 120B": "gpt-oss-120b",
    "Qwen3_30B_a3B": "qwen3-30b-a3b",
    "Qwen3_235B_a22B": "qwen3-235b-a22b",
    "Kimi_K2": "kimi-k2",
    "Nemotron_3_Nano": "nemotron-3-nano-30b-a3b",
    "Nemotron_3_Super": "nemotron-3-super-120b-a12b",
    "Nemotron_3_Ultra": "nemotron-3-ultra",
}
Row = Mapping[str, str]


class Outcome(Struct, frozen=True, kw_only=True):
    """A published row and its prediction; errors are predicted / published - 1, None without a figure."""

    source: str
    part: str
    device: str
    scheme: str
    job: str
    fit: Fit
    bound: str
    speed_error: float | None
    memory_error: float | None
    published_tokens_per_s: float | None
    predicted_tokens_per_s: float


class Job(Struct, frozen=True, kw_only=True):
    """A row as the planner's arguments, with the figures that were published.

    ``is_reserved``: the memory is what the allocator reserves. ``is_recompute_stated``: otherwise the least
    recomputation that fits is taken.
    """

    source: str
    device: str
    scheme: str
    job: str
    model: Transformer
    layout: Layout
    hardware: Hardware
    tokens_per_s: float | None = None
    memory_bytes: float | None = None
    is_reserved: bool = False
    is_recompute_stated: bool = True


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", choices=("reported", "calibration", "all"), default="reported")
    parser.add_argument("--rows", action="store_true", help="print each row")
    parser.add_argument("--json", type=Path, help="write the outcomes to a file")
    options = parser.parse_args(arguments)
    outcomes, skipped = list_outcomes(options.part)
    if options.rows:
        for each in outcomes:
            print(_format_row(each))
    print("\n".join(list_table(outcomes)))
    if skipped:
        print(f"{len(skipped)} rows without a prediction: {', '.join(sorted(set(skipped)))}")
    if options.json:
        options.json.write_text(
            json.dumps([{name: getattr(each, name) for name in each.__struct_fields__} for each in outcomes])
        )
    return 0


def list_outcomes(part: str) -> tuple[list[Outcome], list[str]]:
    """Return the outcome of each row of the part, and the reasons of rows that cannot be planned."""
    outcomes, skipped = [], []
    for name, read in _READERS.items():
        with (DATA / f"{name}.csv").open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if part in ("all", row["part"])]
        for row in rows:
            try:
                job = read(row)
            except ZprofError as error:
                skipped.append(str(error))
                continue
            outcomes.append(_judge(job, row["part"]))
    return outcomes, skipped


def list_table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield the lines of the table, in Markdown."""
    yield "| source | device | scheme | rows | too large | speed | its size | near | order | memory |"
    yield "|---|---|---|--:|--:|--:|--:|--:|--:|--:|"
    groups: dict[tuple[str, str, str], list[Outcome]] = {}
    for each in outcomes:
        scheme = (each.source, each.device, each.scheme)
        for key in (scheme, (each.source, each.device, "all"), (each.source, "all", "all")):
            groups.setdefault(key, []).append(each)
    for key, members in sorted(groups.items()):
        if key[2] != "all" or len({each.scheme for each in members}) > 1:
            yield f"| {' | '.join((*key, *_list_cells(members, with_order=key[1] != 'all')))} |"


def _list_cells(members: Sequence[Outcome], *, with_order: bool) -> tuple[str, ...]:
    speeds = [each.speed_error for each in members if each.speed_error is not None]
    sizes = [each.memory_error for each in members if each.memory_error is not None]
    order = rank_correlation(members) if with_order else None
    return (
        str(len(members)),
        str(sum(each.fit is Fit.TOO_LARGE for each in members)),
        f"{median(speeds):+.0%}" if speeds else "",
        f"{median(map(abs, speeds)):.0%}" if speeds else "",
        f"{sum(abs(error) <= NEAR_RATIO for error in speeds)}" if speeds else "",
        "" if order is None else f"{order:.2f}",
        f"{median(map(abs, sizes)):.0%}" if sizes else "",
    )


def rank_correlation(members: Sequence[Outcome]) -> float | None:
    """Return Spearman's rank correlation of published and predicted throughput; None below four rows."""
    pairs = [
        (each.published_tokens_per_s, each.predicted_tokens_per_s)
        for each in members
        if each.published_tokens_per_s is not None
    ]
    if len(pairs) < _LEAST_RANKED:
        return None
    published, predicted = (_rank(values) for values in zip(*pairs, strict=True))
    return correlation(published, predicted)


def _rank(values: Sequence[float]) -> list[float]:
    """Return the rank of each value; equal values share their mean rank."""
    ordered = sorted(values)
    return [
        ordered.index(value) + (ordered.count(value) - 1) / 2  # equal values are neighbours
        for value in values
    ]


def _judge(job: Job, part: str) -> Outcome:
    estimate = estimate_layout(job.model, job.layout, job.hardware)
    for recompute in (Recompute.SELECTIVE, Recompute.FULL):
        if job.is_recompute_stated or estimate.fit is Fit.FITS:
            break
        estimate = estimate_layout(job.model, replace(job.layout, recompute=recompute), job.hardware)
    speed = None if job.tokens_per_s is None else estimate.tokens_per_s / job.tokens_per_s - 1
    memory = None
    if job.memory_bytes is not None:
        memory = _count_memory(estimate, reserved=job.is_reserved) / job.memory_bytes - 1
    return Outcome(
        source=job.source,
        part=part,
        device=job.device,
        scheme=job.scheme,
        job=job.job,
        fit=estimate.fit,
        bound=estimate.bound.value,
        speed_error=speed,
        memory_error=memory,
        published_tokens_per_s=job.tokens_per_s,
        predicted_tokens_per_s=estimate.tokens_per_s,
    )


def _count_memory(estimate: Estimate, *, reserved: bool) -> float:
    """Return the predicted allocated bytes, or the bytes that the allocator reserves, with fragmentation."""
    return estimate.peak_bytes * (1 + (FRAGMENTATION_RATIO if reserved else 0))


def _format_row(each: Outcome) -> str:
    speed = "" if each.speed_error is None else f"{each.speed_error:+.0%}"
    memory = "" if each.memory_error is None else f"{each.memory_error:+.0%}"
    return (
        f"{each.source:<16} {each.part[:4]} {each.device:<10} {each.scheme:<22} {each.job:<44} "
        f"{each.fit.value:<9} {each.bound:<8} speed {speed:>6} memory {memory:>6}"
    )


def _read_llm_foundry(row: Row) -> Job:
    """Read a row of MosaicML's MPT models: FSDP with bf16 messages, flash attention, fused loss, torch
    2.0."""
    sequence, gpus, full = int(row["sequence"]), int(row["gpus"]), row["checkpointing"] == "True"
    attention = Attention(
        heads=int(row["heads"]),
        kv_heads=int(row["heads"]),
        head_width=int(row["hidden"]) // int(row["heads"]),
    )
    model = Transformer(
        hidden=int(row["hidden"]),
        layers=(
            LayerRun(
                count=int(row["layers"]),
                mixer=attention,
                feed_forward=Mlp(width=4 * int(row["hidden"]), gated=False),
            ),
        ),
        vocabulary=int(row["vocabulary"]),
        learned_positions=sequence,
        tied=True,
    )
    layout = Layout(
        framework=Framework.FSDP2,
        degrees=ParallelDegrees(data=gpus, shard=gpus),
        stage=3,
        reshard=row["sharding"] == "FULL_SHARD",
        micro_batch=int(row["micro_batch"]),
        micro_batches=int(row["micro_batches"]),
        sequence=sequence,
        recompute=Recompute.FULL if full else Recompute.NONE,
        kernels=Kernels(flash_version=1),
    )
    return Job(
        source="llm-foundry",
        device=row["gpu"].removesuffix("_80gb").replace("_", "-"),
        scheme=row["sharding"].lower() + (", checkpointing" if full else ""),
        job=f"{row['model']} {gpus} x {row['micro_batch']} x {sequence}",
        model=model,
        layout=layout,
        hardware=find_hardware(row["gpu"].removesuffix("_80gb").replace("_", "-")),
        tokens_per_s=float(row["tokens_per_second_per_gpu"]),
    )


_MINI_SCHEMES = {
    "ddp": (Framework.DDP, 0),
    "fsdp": (Framework.FSDP2, 3),
    "deepspeed_zero2": (Framework.DEEPSPEED, 2),
    "deepspeed_zero3": (Framework.DEEPSPEED, 3),
}


def _read_minitrainbench(row: Row) -> Job:
    """Read a row of MiniTrainBench; the vocabulary follows from the number of parameters."""
    hidden, layers, gpus = int(row["hidden"]), int(row["layers"]), int(row["gpus"])
    framework, stage = _MINI_SCHEMES[row["strategy"]]
    attention = Attention(
        heads=int(row["heads"]),
        kv_heads=int(row["heads"]),
        head_width=hidden // int(row["heads"]),
        biased=True,
        output_biased=True,
    )
    layer = LayerRun(
        count=layers, mixer=attention, feed_forward=Mlp(width=4 * hidden, gated=False, biased=True)
    )
    words = round(float(row["parameters"]) - layers * (12 * hidden**2 + 13 * hidden)) // hidden
    model = Transformer(
        hidden=hidden,
        layers=(layer,),
        vocabulary=words - int(row["sequence"]),
        learned_positions=int(row["sequence"]),
        tied=True,
        layer_norm=True,
    )
    layout = Layout(
        framework=framework,
        degrees=ParallelDegrees(data=gpus, shard=gpus if stage else 1),
        stage=stage,
        micro_batch=int(row["micro_batch"]),
        micro_batches=1,
        sequence=int(row["sequence"]),
        recompute=Recompute.FULL,
        kernels=Kernels(fused_loss=False),
    )
    tokens = int(row["micro_batch"]) * int(row["sequence"])
    return Job(
        source="MiniTrainBench",
        device="a100-40gb",
        scheme=row["strategy"],
        job=f"{row['model']} {gpus} x {row['micro_batch']} x {row['sequence']}",
        model=model,
        layout=layout,
        hardware=find_hardware("a100-40gb"),
        tokens_per_s=tokens / (float(row["step_ms"]) / 1000),
        memory_bytes=float(row["peak_mb"]) * MIB,
    )


def _read_torchtitan(row: Row) -> Job:
    """Read a row of torchtitan's Llama 3 page: FSDP2 with fp32 reduction, fused AdamW, an unfused loss."""
    tensor, pipeline, shard = int(row["tp"]), int(row["pp"]), int(row["fsdp"])
    batch, recompute = int(row["local_batch"]), Recompute(row["checkpointing"])
    count = pipeline if pipeline > 1 else 1
    layout = Layout(
        framework=Framework.FSDP2,
        degrees=ParallelDegrees(
            data=shard, shard=shard * int(row["cp"]), tensor=tensor, pipeline=pipeline, context=int(row["cp"])
        ),
        stage=3,
        micro_batch=batch // count,
        micro_batches=count,
        sequence=int(row["sequence"]),
        schedule=PipelineSchedule.INTERLEAVED
        if "interleaved" in row["schedule"]
        else PipelineSchedule.ONE_F_ONE_B,
        recompute=recompute,
        precision=ComputePrecision.FP8 if row["float8"] == "1" else ComputePrecision.BF16,
        fp32_reduce=True,
        kernels=Kernels(fused_loss=False, compiled=row["compile"] == "1"),
        buffers=EngineBuffers(foreach_optimizer=False),
    )
    if layout.schedule is PipelineSchedule.INTERLEAVED:
        layout = replace(layout, degrees=replace(layout.degrees, virtual=2))
    degrees = f"fsdp {shard} tp {tensor} pp {pipeline}"
    return Job(
        source="torchtitan",
        device="h100-96gb",
        scheme=layout.precision.value + (", compiled" if row["compile"] == "1" else ""),
        job=f"{row['model']} {degrees} batch {batch}",
        model=find_preset(row["model"]).transformer,
        layout=layout,
        hardware=find_hardware("h100-96gb"),
        tokens_per_s=float(row["tokens_per_second_per_gpu"]),
        memory_bytes=float(row["memory_gib"]) * GIB,
        is_reserved=True,
    )


def _read_megatron(row: Row) -> Job:
    """Read a row of Megatron-Bridge: sequence parallelism, distributed optimizer, fused loss."""
    name = row["model"]
    if name not in MEGATRON_MODELS:
        raise ZprofError(f"no preset for {name}")
    if row["task"] != "Pre-Training Performance":
        raise ZprofError(row["task"])
    gpus, tensor, pipeline, context = (int(row[key]) for key in ("#-GPUs", "TP", "PP", "CP"))
    virtual, experts = (int(row[key]) if row[key].isdigit() else 1 for key in ("VP", "EP"))
    data = gpus // (tensor * pipeline * context)
    micro = int(row["MBS"])
    is_fsdp = row["FSDP"].isdigit() and int(row["FSDP"]) > 1
    layout = Layout(
        framework=Framework.MEGATRON,
        degrees=ParallelDegrees(
            data=data,
            tensor=tensor,
            pipeline=pipeline,
            context=context,
            expert=experts,
            shard=data * context,
            virtual=max(1, virtual),
        ),
        stage=3 if is_fsdp else 1,
        micro_batch=micro,
        micro_batches=max(1, int(row["GBS"]) // (data * micro)),
        sequence=int(row["Sequence Length"]),
        schedule=PipelineSchedule.INTERLEAVED if virtual > 1 else PipelineSchedule.ONE_F_ONE_B,
        precision=ComputePrecision(row["Precision"].lower()),
    )
    device = row["System"].removeprefix("DGX-").lower()
    return Job(
        source="Megatron-Bridge",
        device=device,
        scheme=row["Precision"],
        job=f"{name} {gpus} tp {tensor} pp {pipeline} ep {experts}",
        model=find_preset(MEGATRON_MODELS[name]).transformer,
        layout=layout,
        hardware=find_hardware(device),
        tokens_per_s=float(row["Tokens / sec / GPU"]),
        is_recompute_stated=False,
    )


_READERS: Mapping[str, Callable[[Row], Job]] = {
    "llm_foundry_fsdp": _read_llm_foundry,
    "torchtitan_llama3": _read_torchtitan,
    "minitrainbench": _read_minitrainbench,
    "megatron_bridge": _read_megatron,
}

if __name__ == "__main__":
    sys.exit(main())
