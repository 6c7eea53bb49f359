"""Settings that are out of range are named in one line."""

import pytest
import torch

from zprof.reference_engine import ZeroConfig
from zprof.reference_engine.comm.modelled import LinkModel
from zprof.reference_engine.config import AdamKernel, Keep
from zprof.reference_engine.program.gpt import GPTConfig
from zprof.reference_engine.program.host_faults import HostFaults
from zprof.reference_engine.program.modelled_compute import ComputeModel
from zprof.reference_engine.program.train_config import TrainConfig


def test_a_choice_may_be_given_by_its_text():
    config = ZeroConfig(keep_after_forward="all", adam="torch")
    assert config.keep_after_forward is Keep.ALL
    assert config.adam is AdamKernel.TORCH


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"stage": 4}, "stage is 4"),
        ({"stage": -1}, "stage is -1"),
        ({"dtype": torch.float64}, "dtype is torch.float64"),
        ({"reduce_dtype": torch.float16}, "reduce_dtype is torch.float16"),
        ({"keep_after_forward": "some"}, "keep_after_forward is 'some'"),
        ({"adam": "fast"}, "adam is 'fast'"),
        ({"clip_norm": 0.0}, "clip_norm is 0.0"),
        ({"micro_batches": 0}, "micro_batches is 0"),
        ({"constant_buffers": 0}, "constant_buffers is 0"),
        ({"forward_prefetch": -1}, "forward_prefetch is -1"),
        ({"backward_prefetch": 1.5}, "backward_prefetch is 1.5"),
        ({"reduce_buckets": 0}, "reduce_buckets is 0"),
        ({"alignment": 0}, "alignment is 0"),
        ({"learning_rate": -1.0}, "learning_rate is -1.0"),
        ({"eps": float("nan")}, "eps is nan"),
        ({"betas": (0.9, 1.0)}, "betas is"),
    ],
)
def test_a_setting_out_of_range_is_named_in_one_line(settings, named):
    with pytest.raises(ValueError, match=named) as caught:
        ZeroConfig(**settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: GPTConfig(layers=0), "layers is 0"),
        (lambda: GPTConfig(hidden=10, heads=4), "heads"),
        (lambda: LinkModel(bandwidth_bytes_per_s=0), "bandwidth"),
        (lambda: LinkModel(bandwidth_bytes_per_s=1, latency_s=-1), "latency"),
        (lambda: LinkModel(bandwidth_bytes_per_s=1, rank_factors={0: 0.0}), "rank_factors"),
        (lambda: ComputeModel(forward_s=-1), "forward_s is -1"),
        (lambda: ComputeModel(straggler_rotates=True, straggler_rank=1), "straggler"),
        (lambda: HostFaults(data_delay_s=-1), "data_delay_s is -1"),
        (lambda: TrainConfig(steps=0), "steps is 0"),
        (lambda: TrainConfig(shortened=1.0), "shortened is 1.0"),
    ],
)
def test_the_other_configs_name_their_setting_too(make, named):
    with pytest.raises(ValueError, match=named):
        make()
