"""What rules about memory share: bytes that are worth a finding, guessed owners, what a stage saves."""

from dataclasses import replace

import pytest

from tests.support.peaks import FACTS, MIB, memory_run, tenants, with_rank
from zprof.model.findings import Confidence
from zprof.rules.memory.largest_rank import LargestRank, find_largest_rank, is_worth, limit_confidence
from zprof.rules.memory.model_structure import format_module, read_sharding, saved_bytes

HIGH, MEDIUM, LOW = Confidence.HIGH, Confidence.MEDIUM, Confidence.LOW


def big(mib: float = 66, **fields: object) -> LargestRank:
    """A rank with a peak of so much."""
    found = find_largest_rank(with_rank(memory_run(tenants(activations=mib - 46)), **fields))
    assert found is not None
    return found


@pytest.mark.parametrize(("peak_mib", "least_mib"), [(66, 1), (1000, 10)])
def test_a_mebibyte_and_a_hundredth_of_the_peak_are_worth_it(peak_mib: float, least_mib: int) -> None:
    assert is_worth(least_mib * MIB, big(peak_mib))
    assert not is_worth(least_mib * MIB - 1, big(peak_mib))


@pytest.mark.parametrize(
    ("sure", "upper_bound", "guessed_ratio", "limited"),
    [
        (HIGH, False, 0.10, HIGH),
        (HIGH, False, 0.11, MEDIUM),
        (HIGH, False, 0.50, MEDIUM),
        (HIGH, False, 0.51, LOW),
        (HIGH, True, 0.0, MEDIUM),
        (LOW, True, 0.0, LOW),
    ],
)
def test_what_is_guessed_or_a_bound_is_less_sure(
    sure: Confidence, *, upper_bound: bool, guessed_ratio: float, limited: Confidence
) -> None:
    assert limit_confidence(sure, big(upper_bound=upper_bound), guessed_ratio) is limited


@pytest.mark.parametrize(("stage", "mib"), [(0, 0), (1, 16), (2, 16 + 8), (3, 16 + 8 + 8)])
def test_a_stage_saves_three_times_what_four_ranks_keep_of_its_states(stage: int, mib: int) -> None:
    sharding = read_sharding(memory_run(facts=replace(FACTS, stage=stage)))
    assert sharding is not None
    assert saved_bytes(big(), sharding) == 3 * mib * MIB


@pytest.mark.parametrize(
    ("communication", "gradient", "wire"), [(4, 4, 4), (None, 4, 4), (None, 2, 2), (2, 4, 2)]
)
def test_without_one_size_on_the_wire_the_larger_element_counts(
    communication: int | None, gradient: int, wire: int
) -> None:
    """FSDP2 gathers in 16 bit and may reduce in 32."""
    facts = replace(FACTS, communication_bytes=communication, parameter_bytes=2, gradient_bytes=gradient)
    sharding = read_sharding(memory_run(facts=facts))
    assert sharding is not None
    assert sharding.wire_bytes == wire * (FACTS.parameters or 0)


def test_sixty_characters_of_a_name_are_shown() -> None:
    assert format_module("a" * 60) == "a" * 60
    assert len(format_module("a" * 61)) == 60
