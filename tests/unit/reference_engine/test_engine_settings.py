import argparse

import pytest
import torch

from zprof.reference_engine import ZeroConfig
from zprof.reference_engine.comm.collective import Collective, Kind, get_ring_factor
from zprof.reference_engine.comm.modelled import LinkModel
from zprof.reference_engine.config import AdamKernel, Keep
from zprof.reference_engine.flat_unit import get_policy
from zprof.reference_engine.program.gpt import GPTConfig
from zprof.reference_engine.program.modelled_compute import ComputeModel
from zprof.reference_engine.program.options import add_arguments, make_config
from zprof.reference_engine.program.train_config import TrainConfig


def test_each_stage_shards_one_state_more():
    sharded = [
        (policy.shard_optimizer, policy.shard_gradients, policy.shard_parameters)
        for policy in map(get_policy, range(4))
    ]
    assert sharded == [(False, False, False), (True, False, False), (True, True, False), (True, True, True)]
    assert [get_policy(stage).gathers_after_step for stage in range(4)] == [False, True, True, False]


def test_a_choice_may_be_given_by_its_text():
    config = ZeroConfig(keep_after_forward="all", adam="torch")
    assert config.keep_after_forward is Keep.ALL
    assert config.adam is AdamKernel.TORCH


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"stage": 4}, "stage is 4"),
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
        (lambda: GPTConfig(hidden=10, heads=4), "multiple of heads"),
        (lambda: LinkModel(bandwidth_bytes_per_s=0), "bandwidth"),
        (lambda: LinkModel(bandwidth_bytes_per_s=1, latency_s=-1), "latency"),
        (lambda: LinkModel(bandwidth_bytes_per_s=1, rank_factors={0: 0.0}), "rank_factors"),
        (lambda: ComputeModel(forward_s=-1), "forward_s is -1"),
        (lambda: TrainConfig(steps=0), "steps is 0"),
    ],
)
def test_the_other_configs_name_their_setting_too(make, named):
    with pytest.raises(ValueError, match=named):
        make()


def parse(*arguments: str) -> TrainConfig:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return make_config(parser.parse_args(arguments))


def test_no_options_are_the_defaults_on_the_real_network():
    config = parse()
    assert config == TrainConfig()
    assert config.modelled == ()


def test_options_become_the_config():
    line = """
        --stage 3 --dtype bfloat16 --forward-prefetch 0 --backward-prefetch 2 --no-overlap-reduce
        --link-gbps 8 --link-latency-us 50 --compute-forward-ms 12 --compute-backward-ms 24
        --straggler-rank 1 --straggler-ms 40 --tied
    """
    config = parse(*line.split())
    assert (config.zero.stage, config.zero.dtype) == (3, torch.bfloat16)
    assert (config.zero.forward_prefetch, config.zero.backward_prefetch) == (0, 2)
    assert (config.zero.overlap_reduce, config.zero.overlap_gather) == (False, True)
    assert config.gpt.tied
    assert config.link == LinkModel(bandwidth_bytes_per_s=1e9, latency_s=50e-6)
    assert config.compute == ComputeModel(
        forward_s=0.012, backward_s=0.024, straggler_rank=1, straggler_s=0.04
    )
    assert config.modelled == ("link", "compute")


@pytest.mark.parametrize("option", ["--link-latency-us", "--straggler-rank", "--straggler-ms"])
def test_half_of_a_pair_of_options_is_refused(option):
    with pytest.raises(ValueError, match=option):
        parse(option, "1")


def test_a_run_that_does_not_fit_the_ranks_is_refused():
    TrainConfig(batch=8).check_ranks(4)
    with pytest.raises(ValueError, match="batch is 8; it must be a multiple of the 3 ranks"):
        TrainConfig(batch=8).check_ranks(3)
    with pytest.raises(ValueError, match="straggler_rank is 2; there are ranks 0 to 1"):
        TrainConfig(compute=ComputeModel(straggler_rank=2)).check_ranks(2)


def collective(kind: Kind, size: int) -> Collective:
    return Collective(kind=kind, group="0", sequence=0, unit="u", bytes=size, dtype="float32")


@pytest.mark.parametrize(
    ("kind", "moved"), [(Kind.ALL_GATHER, 750), (Kind.REDUCE_SCATTER, 750), (Kind.ALL_REDUCE, 1500)]
)
def test_a_link_takes_its_latency_and_the_ring_volume(kind, moved):
    assert 1000 * get_ring_factor(kind, 4) == moved
    link = LinkModel(bandwidth_bytes_per_s=1000, latency_s=2, rank_factors={3: 2.0})
    assert link.seconds(collective(kind, 1000), 3 + 1) == pytest.approx((2 + moved / 1000) * 2)
    assert link.seconds(collective(kind, 1000), 1) == 0
