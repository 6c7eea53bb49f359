"""What a stage saves of the states, and names of modules in sentences."""

from dataclasses import replace

import pytest

from tests.support.peaks import FACTS, MIB, memory_run
from zprof.rules.memory.largest_rank import find_largest_rank
from zprof.rules.memory.model_structure import format_module, read_sharding, saved_bytes


@pytest.mark.parametrize(("stage", "mib"), [(0, 0), (1, 16), (2, 16 + 8), (3, 16 + 8 + 8)])
def test_a_stage_saves_three_times_what_four_ranks_keep_of_its_states(stage: int, mib: int) -> None:
    analysis = memory_run(facts=replace(FACTS, stage=stage))
    big, sharding = find_largest_rank(analysis), read_sharding(analysis)
    assert big is not None
    assert sharding is not None
    assert saved_bytes(big, sharding) == 3 * mib * MIB


def test_sixty_characters_of_a_name_are_shown() -> None:
    assert format_module("a" * 60) == "a" * 60
    assert len(format_module("a" * 61)) == 60
