"""What is detected of a model: only what is sure; the rest stays unknown."""

import torch
from torch import nn

from zprof.analysis.laws import volume_law
from zprof.collectors.training import detect_training


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))


def test_a_plain_model_is_known() -> None:
    facts = detect_training(model())
    assert (facts.engine, facts.parameters, facts.shard_ranks) == ("pytorch", 40, 1)
    assert (facts.parameter_bytes, facts.gradient_bytes, facts.communication_bytes) == (4, 4, 4)


def test_a_frozen_layer_has_no_law() -> None:
    """It is held but not communicated, and has no gradient: neither count would be right for both."""
    frozen = model()
    frozen[0].requires_grad_(False)
    facts = detect_training(frozen)
    assert facts.parameters is None
    assert facts.parameter_bytes == 4
    assert volume_law(facts) is None


def test_mixed_element_sizes_stay_unknown() -> None:
    mixed = model()
    mixed[1].to(torch.bfloat16)
    facts = detect_training(mixed)
    assert facts.parameters == 40
    assert (facts.parameter_bytes, facts.gradient_bytes, facts.communication_bytes) == (None, None, None)


def test_parameters_without_a_shape_yet_stay_unknown() -> None:
    facts = detect_training(nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 4)))
    assert (facts.engine, facts.parameters, facts.shard_ranks) == ("pytorch", None, 1)


def test_a_mesh_of_two_dimensions_has_no_number_of_shards() -> None:
    """HSDP shards over one dimension and replicates over the other."""

    class Mesh:
        ndim = 2

        def size(self) -> int:
            return 4

    hybrid = model()
    for parameter in hybrid.parameters():
        parameter.device_mesh = Mesh()
    assert detect_training(hybrid).shard_ranks is None
