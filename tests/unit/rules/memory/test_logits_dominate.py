"""logits_dominate finds the output layer's tensors among the largest, by name or by size."""

from dataclasses import replace

import pytest

from tests.support.memories import HOSTILE
from tests.support.peaks import MIB, allocation, memory_run, tenants
from zprof.model.findings import Confidence, Finding
from zprof.model.memory import Allocation, Basis
from zprof.model.tenants import Tenant
from zprof.rules.memory.logits_dominate import logits_dominate

ACTIVATIONS, TEMPORARY = Tenant.ACTIVATIONS, Tenant.TEMPORARY_BUFFERS
HELD = tenants(activations=60, temporary=60)  # 164 MiB with the rest
BLOCK = allocation(2, ACTIVATIONS, "layers.0.mlp")


def logits(module: str, mib: float = 20) -> tuple[Allocation, ...]:
    return (
        allocation(mib, ACTIVATIONS, module),
        allocation(mib, TEMPORARY, module, "act_grad"),
        allocation(mib, TEMPORARY, module, "act_grad"),
        BLOCK,
    )


def answer(*top: Allocation) -> object:
    return logits_dominate(memory_run(HELD, top=top), None)


@pytest.mark.parametrize(
    "module", ["lm_head", "module.loss", "model.lm_head", "output", "_orig_mod.criterion.cross_entropy"]
)
def test_logits_are_named(module: str) -> None:
    finding = answer(*logits(module))
    assert isinstance(finding, Finding)
    assert finding.id == "ZP204"
    assert finding.confidence is Confidence.HIGH
    assert module in finding.sentence
    assert "60.0 MiB of 164.0 MiB" in finding.sentence
    assert finding.saving_bytes == (40 * MIB, int(52.5 * MIB))


@pytest.mark.parametrize("module", ["layers.0.attention.output", "layers.3.head", "encoder", "heads"])
def test_other_modules_are_not_the_output(module: str) -> None:
    assert answer(*logits(module)) is None


@pytest.mark.parametrize(("mib", "fires"), [(10.9, False), (11.0, True)])
def test_the_boundary_is_a_fifth_of_the_peak(mib: float, *, fires: bool) -> None:
    """A fifth of 164 MiB is 32.8."""
    assert isinstance(answer(*logits("lm_head", mib)), Finding) == fires


def test_copies_of_the_root_module_count_with_them() -> None:
    """The loss runs outside of any module: an fp32 copy has twice the bytes."""
    top = (allocation(20, ACTIVATIONS, "lm_head"), allocation(40, ACTIVATIONS, ""), BLOCK)
    finding = answer(*top)
    assert isinstance(finding, Finding)
    assert "2 tensors" in finding.sentence
    # A root tensor of another size is something else.
    assert answer(allocation(20, ACTIVATIONS, "lm_head"), allocation(90, ACTIVATIONS, ""), BLOCK) is None


def test_far_above_the_rest_without_a_name_is_a_guess() -> None:
    finding = answer(*logits("module"))
    assert isinstance(finding, Finding)
    assert finding.confidence is Confidence.LOW
    near = allocation(6, ACTIVATIONS, "layers.0.mlp")
    assert answer(*logits("module"), near) is None
    assert answer(allocation(60, ACTIVATIONS, ""), BLOCK) is None  # alone it may be anything
    assert answer(*logits("module")[:3]) is None  # nothing to be far above of


def test_parameters_of_the_head_are_no_logits() -> None:
    assert answer(allocation(60, Tenant.PARAMETERS, "lm_head", "weight"), BLOCK) is None
    assert answer(allocation(60, Tenant.COMMUNICATION_BUFFERS, "lm_head", "gathered_param"), BLOCK) is None


def test_guessed_owners_are_no_certainty() -> None:
    rows = tuple(replace(row, basis=Basis.RULE) for row in logits("lm_head"))
    finding = answer(*rows)
    assert isinstance(finding, Finding)
    assert finding.confidence is Confidence.LOW


def test_a_hostile_name_steers_nothing() -> None:
    finding = answer(*logits(f"lm_head.{HOSTILE.replace('.0', '')}" + "x" * 500))
    assert isinstance(finding, Finding)
    texts = [finding.sentence, finding.fix, finding.disprove, *(fact.what for fact in finding.evidence)]
    assert all(text.isprintable() or "\n" in finding.fix for text in texts)
    assert "\x1b" not in "".join(texts)
    assert len(finding.sentence) < 400


def test_another_rank_s_allocations_are_not_the_largest_rank_s() -> None:
    assert answer(*(replace(row, rank=1) for row in logits("lm_head"))) is None


def count(*top: Allocation) -> int:
    finding = answer(*top)
    assert isinstance(finding, Finding)
    return int(finding.sentence.split()[0])


def test_a_fifth_of_the_peak_itself_is_enough() -> None:
    top = (allocation(16, ACTIVATIONS, "lm_head"), allocation(16, TEMPORARY, "lm_head"), BLOCK)
    held = tenants(activations=56, temporary=60)  # 160 MiB with the rest
    assert isinstance(logits_dominate(memory_run(held, top=top), None), Finding)


def test_sizes_on_their_bounds_belong_to_the_logits() -> None:
    """A quarter of the largest in the output layer; from half of it to twice it in the root module."""
    two = logits("lm_head")[:2]
    assert count(*two, allocation(5, ACTIVATIONS, "lm_head")) == 3
    assert count(*two, allocation(4.9, ACTIVATIONS, "lm_head")) == 2
    assert count(*two, allocation(10, ACTIVATIONS, ""), allocation(40, ACTIVATIONS, "")) == 4
    assert count(*two, allocation(9.9, ACTIVATIONS, ""), allocation(41, ACTIVATIONS, "")) == 2


@pytest.mark.parametrize(("rest", "fires"), [(9, True), (10, True), (10.1, False), (11, False)])
def test_without_a_name_four_times_the_rest(rest: float, *, fires: bool) -> None:
    top = (*(allocation(40, TEMPORARY, "") for _ in range(2)), allocation(rest, ACTIVATIONS, "layers.0"))
    assert isinstance(answer(*top), Finding) == fires


def test_without_a_name_half_of_the_largest() -> None:
    block = allocation(2, ACTIVATIONS, "layers.0")
    assert count(allocation(40, TEMPORARY, ""), allocation(20, TEMPORARY, ""), block) == 2
    assert answer(allocation(40, TEMPORARY, ""), allocation(19.9, TEMPORARY, ""), block) is None


def test_one_tensor_is_less_sure_than_two() -> None:
    one = answer(allocation(40, ACTIVATIONS, "lm_head"), BLOCK)
    two = answer(*(allocation(20, ACTIVATIONS, "lm_head") for _ in range(2)), BLOCK)
    assert isinstance(one, Finding)
    assert isinstance(two, Finding)
    assert (one.confidence, two.confidence) == (Confidence.MEDIUM, Confidence.HIGH)
