"""The states of ZeRO in bytes, from the formulas of arXiv 1910.02054 (figure 1) and not from our own law.

With 16-bit parameters and gradients and K = 12 bytes of optimizer state: 2 psi + 2 psi + K psi, of which the
stages divide K psi, then the gradients, then the parameters by the number of ranks.
"""

from typing import TYPE_CHECKING

import pytest

from zprof.model.tenants import Tenant

if TYPE_CHECKING:
    from conftest import Recorded

pytestmark = [pytest.mark.ranks, pytest.mark.xdist_group("memory")]

#: Elements of the transformer; the engine needs no padding for it.  One step counter for each of 5 units.
PSI, COUNTERS = 3_421_696, 5 * 4


@pytest.mark.parametrize(
    ("case", "ranks", "stage"),
    [
        ("zero0_alone", 1, 0),
        ("zero3_alone", 1, 3),
        ("zero0_bf16_modelled", 2, 0),
        ("zero1_bf16_modelled", 2, 1),
        ("zero2_bf16_modelled", 2, 2),
        ("zero3_bf16", 2, 3),
        ("zero2_of_four", 4, 2),
        ("zero3_of_four", 4, 3),
    ],
)
def test_states_by_the_formulas_of_the_paper(recorded: "Recorded", case: str, ranks: int, stage: int) -> None:
    expected = {
        Tenant.PARAMETERS: 2 * PSI // (ranks if stage >= 3 else 1),
        Tenant.GRADIENTS: 2 * PSI // (ranks if stage >= 2 else 1),
        Tenant.OPTIMIZER_STATE: 12 * PSI // (ranks if stage >= 1 else 1) + COUNTERS,
    }
    assert len(recorded.ranks(case)) == ranks
    for memory in recorded.ranks(case):
        assert memory.state_bytes == expected, f"rank {memory.rank}"


@pytest.mark.parametrize(("case", "ranks"), [("zero3_bf16", 2), ("zero3_of_four", 4), ("zero3_alone", 1)])
def test_masters_are_a_third_of_the_optimizer_state(recorded: "Recorded", case: str, ranks: int) -> None:
    """Of K = 12 bytes, 4 are the fp32 master weight and 8 the two moments."""
    for lives in recorded.lives(case):
        parts, end_ns = lives.segments, lives.timeline.end_ns
        alive = (parts.begin_ns <= end_ns) & (parts.end_ns > end_ns)
        held = {sub: int(parts.bytes[alive & (parts.sub == sub)].sum()) for sub in ("master", "state")}
        assert held == {"master": 4 * PSI // ranks, "state": 8 * PSI // ranks + COUNTERS}
