"""What a stage saves of the states, and names of modules in sentences."""

from dataclasses import replace

import pytest

from tests.support.peaks import FACTS, MIB, memory_run
from zprof.rules.memory.largest import largest_rank
from zprof.rules.memory.modules import shown
from zprof.rules.memory.sharding import saved_bytes, sharding_of


@pytest.mark.parametrize(("stage", "mib"), [(0, 0), (1, 16), (2, 16 + 8), (3, 16 + 8 + 8)])
def test_a_stage_saves_three_times_what_four_ranks_keep_of_its_states(stage: int, mib: int) -> None:
    analysis = memory_run(facts=replace(FACTS, stage=stage))
    big, sharding = largest_rank(analysis), sharding_of(analysis)
    assert big is not None
    assert sharding is not None
    assert saved_bytes(big, sharding) == 3 * mib * MIB


def test_sixty_characters_of_a_name_are_shown() -> None:
    assert shown("a" * 60) == "a" * 60
    assert len(shown("a" * 61)) == 60
