"""A ``ds_config.json`` as people write it is read as given; a broken one ends in one line."""

import json
from pathlib import Path
from typing import Any

import pytest

from zprof.base.errors import BadInput
from zprof.model.layout import ComputePrecision, EngineBuffers, OptimizerKind
from zprof.planner.deepspeed_config import DeepspeedConfig, read_deepspeed_config


def read(folder: Path, content: Any) -> DeepspeedConfig:
    path = folder / "ds_config.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return read_deepspeed_config(path)


def test_every_setting_is_read(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        {
            "train_micro_batch_size_per_gpu": 4,
            "gradient_accumulation_steps": 8,
            "train_batch_size": 256,
            "bf16": {"enabled": True},
            "communication_data_type": "fp32",
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
            "gradient_clipping": 1.0,
            "zero_optimization": {
                "stage": 3,
                "offload_optimizer": {"device": "cpu", "pin_memory": True},
                "offload_param": {"device": "nvme", "nvme_path": "/scratch"},
                "overlap_comm": False,
                "reduce_bucket_size": 2e8,
                "allgather_bucket_size": 3e8,
                "stage3_prefetch_bucket_size": 4e7,
                "stage3_max_live_parameters": 6e8,
                "stage3_max_reuse_distance": 7e8,
                "stage3_param_persistence_threshold": 8e4,
                "mics_shard_size": 16,
            },
        },
    )
    assert found == DeepspeedConfig(
        stage=3,
        precision=ComputePrecision.BF16,
        micro_batch=4,
        micro_batches=8,
        global_batch=256,
        optimizer=OptimizerKind.ADAM,
        offload_optimizer=True,
        offload_parameters=True,
        shard=16,
        fp32_reduce=True,
        buffers=EngineBuffers(
            reduce_bucket_elements=200_000_000,
            allgather_bucket_elements=300_000_000,
            prefetch_bucket_elements=40_000_000,
            max_live_elements=600_000_000,
            max_reuse_distance_elements=700_000_000,
            persistence_threshold_elements=80_000,
            overlap_comm=False,
        ),
    )


def test_an_empty_file_has_the_defaults_of_deepspeed(tmp_path: Path) -> None:
    found = read(tmp_path, {})
    assert (found.stage, found.precision, found.offload_optimizer) == (0, ComputePrecision.FP32, False)
    assert found.buffers.reduce_bucket_elements == 500_000_000
    assert [
        read(tmp_path, {"zero_optimization": {"stage": stage}}).buffers.overlap_comm for stage in (1, 2, 3)
    ] == [
        False,
        False,
        True,
    ]


def test_auto_is_filled_as_transformers_does(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        {
            "train_micro_batch_size_per_gpu": "auto",
            "bf16": {"enabled": "auto"},
            "zero_optimization": {
                "stage": 3,
                "reduce_bucket_size": "auto",
                "stage3_prefetch_bucket_size": "auto",
                "stage3_param_persistence_threshold": "auto",
            },
        },
    )
    assert (found.micro_batch, found.precision) == (None, ComputePrecision.BF16)
    assert set(found.auto_keys) == {
        "train_micro_batch_size_per_gpu",
        "bf16.enabled",
        "reduce_bucket_size",
        "stage3_prefetch_bucket_size",
        "stage3_param_persistence_threshold",
    }
    buffers = found.fill_auto_buffers(4096)
    assert buffers.reduce_bucket_elements == 16_777_216
    assert buffers.prefetch_bucket_elements == 15_099_494
    assert buffers.persistence_threshold_elements == 40_960
    assert buffers.allgather_bucket_elements == 500_000_000


@pytest.mark.parametrize(
    "content",
    [
        pytest.param('{"zero_optimization": {"reduce_bucket_size": ' + "9" * 4000 + "}}", id="4000 digits"),
        pytest.param('{"zero_optimization": {"reduce_bucket_size": ' + "9" * 5000 + "}}", id="5000 digits"),
        pytest.param("[" * 100_000, id="deep"),
        pytest.param('{"pad": "' + "x" * 300_000 + '"}', id="large"),
        "",
        "[]",
        "null",
        "{",
        '{"zero_optimization": 3}',
        '{"zero_optimization": {"stage": 4}}',
        '{"zero_optimization": {"stage": true}}',
        '{"zero_optimization": {"stage": "two\\nlines"}}',
        '{"zero_optimization": {"reduce_bucket_size": 1e400}}',
        '{"zero_optimization": {"reduce_bucket_size": NaN}}',
        '{"zero_optimization": {"reduce_bucket_size": -1}}',
        '{"zero_optimization": {"offload_optimizer": {"device": "tape"}}}',
        '{"train_micro_batch_size_per_gpu": 0}',
        '{"gradient_accumulation_steps": 1.5}',
        '{"bf16": {"enabled": 1}}',
        '{"optimizer": {"type": "\\u001b[31mRed"}}',
        '{"optimizer": {"type": ["AdamW"]}}',
    ],
)
def test_a_broken_file_ends_in_one_line(tmp_path: Path, content: str) -> None:
    with pytest.raises(BadInput) as caught:
        read(tmp_path, content)
    assert "ds_config.json" in caught.value.message
    assert caught.value.message.isprintable()
    assert len(caught.value.message.removeprefix(str(tmp_path))) < 200


@pytest.mark.parametrize("name", ["missing.json", "."])
def test_what_is_no_file_ends_in_one_line(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput):
        read_deepspeed_config(tmp_path / name)
