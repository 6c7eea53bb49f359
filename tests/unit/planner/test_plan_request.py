"""Options lead to the layouts, the framework and the answers that they name."""

import json
from pathlib import Path
from typing import Any

import pytest

from zprof.base.errors import BadInput
from zprof.model.job import Job
from zprof.model.layout import (
    ComputePrecision,
    Framework,
    OptimizerKind,
    PipelineSchedule,
    Recompute,
)
from zprof.model.plan import Fit, Plan, Scheme
from zprof.planner.plan_request import plan_request
from zprof.planner.request import PlanRequest


def refuse_to_count(name: str, job: Job) -> Job:
    raise AssertionError(name)


def plan(*analyses: str, **options: Any) -> Plan:
    named = {} if {"config", "preset"} & set(options) else {"preset": "llama-3-8b"}
    return plan_request(PlanRequest(**named, **options), refuse_to_count, analyses=analyses)


def test_each_scheme_has_its_usual_framework_and_the_same_global_batch() -> None:
    rows = {row.scheme: row for row in plan(dp=16, micro_batch=1, micro_batches=4).rows}
    assert {scheme: row.layout.framework for scheme, row in rows.items() if row.layout} == {
        Scheme.DATA_PARALLEL: Framework.DDP,
        Scheme.ZERO_1: Framework.DEEPSPEED,
        Scheme.ZERO_2: Framework.DEEPSPEED,
        Scheme.ZERO_3: Framework.FSDP2,
        Scheme.MODEL_PARALLEL: Framework.MEGATRON,
        Scheme.GPIPE: Framework.MEGATRON,
        Scheme.PIPEDREAM: Framework.MEGATRON,
    }
    layouts = [row.layout for row in rows.values() if row.layout]
    assert {layout.degrees.devices for layout in layouts} == {16}
    assert {layout.step_tokens for layout in layouts} == {64 * 4096}


def test_every_option_reaches_the_layout() -> None:
    found = plan(
        framework=Framework.MEGATRON, world=128, tp=4, pp=4, cp=2, virtual=2, micro_batch=2, sequence=8192,
        global_batch=64, no_sequence_parallel=True, recompute=Recompute.FULL, offload="optimizer",
        precision=ComputePrecision.FP8, pure=True, fp32_reduce=True, optimizer=OptimizerKind.MUON,
        unfused="loss,attention", compile=True,
    )  # fmt: skip
    (row,) = found.rows
    layout = row.layout
    assert layout is not None
    degrees = layout.degrees
    assert (degrees.data, degrees.tensor, degrees.pipeline, degrees.context) == (4, 4, 4, 2)
    assert (degrees.virtual, degrees.shard, layout.schedule) == (2, 8, PipelineSchedule.INTERLEAVED)
    assert (layout.micro_batch, layout.micro_batches, layout.sequence) == (2, 8, 8192)
    assert (layout.sequence_parallel, layout.recompute, layout.offload_optimizer) == (
        False,
        Recompute.FULL,
        True,
    )
    assert (layout.precision, layout.master_weights, layout.fp32_reduce) == (
        ComputePrecision.FP8,
        False,
        True,
    )
    assert layout.optimizer is OptimizerKind.MUON
    kernels = layout.kernels
    assert (kernels.fused_loss, kernels.flash_attention, kernels.fused_norms, kernels.compiled) == (
        False,
        False,
        True,
        True,
    )


def test_options_of_fsdp2_reach_the_layout() -> None:
    (row,) = plan(framework=Framework.FSDP2, world=32, shard=8, no_reshard=True, offload="parameters").rows
    assert row.layout is not None
    assert (row.layout.degrees.shard, row.layout.degrees.replicas, row.layout.reshard) == (8, 4, False)
    assert row.layout.offload_parameters
    (row,) = plan(preset="mixtral-8x7b", framework=Framework.FSDP2, world=32, ep=8).rows
    assert row.layout is not None
    assert row.layout.degrees.expert == 8


def test_a_ds_config_is_planned_as_given(tmp_path: Path) -> None:
    path = tmp_path / "ds_config.json"
    zero = {"stage": 2, "reduce_bucket_size": 1e8, "offload_optimizer": {"device": "cpu"}}
    path.write_text(
        json.dumps(
            {
                "train_micro_batch_size_per_gpu": 2,
                "gradient_accumulation_steps": "auto",
                "fp16": {"enabled": True},
                "zero_optimization": zero,
            }
        )
    )
    found = plan(deepspeed=str(path), dp=8)
    (row,) = found.rows
    layout = row.layout
    assert layout is not None
    assert (row.scheme, layout.framework, layout.stage) == (Scheme.ZERO_2, Framework.DEEPSPEED, 2)
    assert (layout.micro_batch, layout.precision, layout.offload_optimizer) == (
        2,
        ComputePrecision.FP16,
        True,
    )
    assert layout.buffers.reduce_bucket_elements == 100_000_000
    assert found.options.auto_keys == ("gradient_accumulation_steps",)


def test_a_global_batch_leaves_out_schemes_that_cannot_have_it() -> None:
    found = plan(world=64, global_batch=8)
    layouts = [row.layout for row in found.rows if row.layout]
    assert {row.scheme for row in found.rows} >= {Scheme.MODEL_PARALLEL, Scheme.PIPEDREAM}
    assert Scheme.ZERO_3 not in {row.scheme for row in found.rows}
    assert {layout.step_tokens for layout in layouts} == {8 * 4096}
    found = plan("search", world=64, global_batch=1, framework=Framework.DDP)
    assert found.rows == found.search.front == ()  # type: ignore[union-attr]


def test_the_batch_sizes_of_a_ds_config_say_the_ranks(tmp_path: Path) -> None:
    path = tmp_path / "ds_config.json"
    batch = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}
    path.write_text(json.dumps({**batch, "zero_optimization": {"stage": 3}}))
    assert plan(deepspeed=str(path)).job.degrees.dp == 8


def test_a_config_json_without_a_preset_is_planned_and_searched(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps(
            {
                "model_type": "llama", "hidden_size": 2560, "num_hidden_layers": 30,
                "num_attention_heads": 20, "num_key_value_heads": 4, "intermediate_size": 6912,
                "vocab_size": 50_304,
                "max_position_embeddings": 4096,
            }
        )
    )  # fmt: skip
    found = plan("search", config=str(path), world=16, global_batch=64)
    assert found.search is not None
    best = found.search.best
    assert best is not None
    assert best.fit is Fit.FITS
    assert best.layout.step_tokens == 64 * 4096
    embedding, attention, mlp = 50_304 * 2560, 2560 * 128 * (2 * 20 + 2 * 4), 3 * 2560 * 6912
    assert found.job.parameters == 2 * embedding + 30 * (attention + mlp + 2 * 2560) + 2560


@pytest.mark.parametrize(
    "option",
    [
        {"prefetch": 2},
        {"keep_last": True},
        {"constant_buffers": 10**8},
        {"recompute": Recompute.FULL, "tp": 2, "partition_activations": True},
    ],
)
def test_options_of_the_reference_engine_select_it(option: dict[str, Any]) -> None:
    found = plan(dp=8, **option)
    assert found.options.framework is Framework.REFERENCE
    assert len(found.options.reference_options) == 1
    assert not found.suggestions
    with pytest.raises(BadInput, match="belongs to the reference engine"):
        plan(dp=8, framework=Framework.FSDP2, **option)
    assert not plan(dp=8, framework=Framework.REFERENCE, **option).options.reference_options


@pytest.mark.parametrize(
    "options",
    [
        {"cp": 2},
        {"ep": 2},
        {"pure": True},
        {"offload": "optimizer"},
        {"precision": ComputePrecision.FP8},
        {"optimizer": OptimizerKind.MUON},
        {"recompute": Recompute.SELECTIVE},
        {"unfused": "loss"},
    ],
)
def test_the_reference_engine_refuses_what_it_does_not_have(options: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="reference"):
        plan(dp=8, framework=Framework.REFERENCE, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"world": 12, "tp": 8},
        {"world": 16, "dp": 3},
        {"tp": 2, "mp": 4},
        {"dp": 8, "global_batch": 12, "framework": Framework.FSDP2},
        {"dp": 8, "global_batch": 12, "prefetch": 2},
        {"dp": 8, "global_batch": 64, "micro_batches": 3},
        {"dp": 8, "framework": Framework.MEGATRON, "tp": 7},
        {"dp": 8, "framework": Framework.MEGATRON, "pp": 33},
        {"dp": 8, "framework": Framework.MEGATRON, "pp": 4, "virtual": 2, "micro_batches": 3},
        {"dp": 8, "framework": Framework.FSDP2, "ep": 2},
        {"dp": 8, "framework": Framework.FSDP2, "shard": 3},
        {"dp": 8, "cp": 2, "sequence": 4095},
        {"checkpointing": True, "recompute": Recompute.SELECTIVE},
    ],
)
def test_degrees_that_contradict_are_one_line(options: dict[str, Any]) -> None:
    with pytest.raises(BadInput) as caught:
        plan(**options)
    assert "\n" not in caught.value.message
    assert caught.value.hint


def test_old_names_work_and_are_named() -> None:
    old = plan(framework=Framework.MEGATRON, dp=4, mp=2, checkpointing=True)
    new = plan(framework=Framework.MEGATRON, dp=4, tp=2, recompute=Recompute.FULL)
    assert old.rows == new.rows
    assert [name for name, _ in old.options.old_options] == ["--mp", "--checkpointing"]


def test_suggestions_say_what_fits_where_the_job_does_not() -> None:
    found = plan(preset="llama-3-70b", framework=Framework.DDP, dp=64)
    assert [row.fits for row in found.rows] == [False]
    assert found.suggestions
    assert all(each.fit is not Fit.TOO_LARGE for each in found.suggestions)
    assert {each.layout.degrees.devices for each in found.suggestions} == {64}
    assert {each.layout.step_tokens for each in found.suggestions} == {64 * 4096}


def test_126_layers_are_planned_in_8_stages() -> None:
    (row,) = plan(
        preset="llama-3.1-405b", framework=Framework.MEGATRON, tp=8, pp=8, dp=16, sequence=8192
    ).rows
    assert row.layout is not None
    assert row.layout.degrees.pipeline == 8
