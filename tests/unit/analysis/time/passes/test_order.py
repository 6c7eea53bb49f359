"""The order of the units alone tells forward, backward and micro-batch; where it cannot, it tells nothing."""

import pytest

from zprof.analysis.time.passes import infer_passes_by_order, infer_units_by_order


@pytest.mark.parametrize(
    ("units", "passes"),
    [
        ("abccba", "f0 f0 f0 b0 b0 b0"),
        ("abcba", "f0 f0 f0 b0 b0"),  # the last unit was kept
        ("abccbaabccba", "f0 f0 f0 b0 b0 b0 f1 f1 f1 b1 b1 b1"),
        ("abcabc", "f0 f0 f0 f1 f1 f1"),
        ("abcccbbaa", "f0 f0 f0 b0 b0 b0 b0 b0 b0"),  # recomputation gathers twice
        ("rabccba", "f0 f0 f0 f0 b0 b0 b0"),  # the root is gathered once
        ("aaa", None),
    ],
)
def test_passes_of_gathers_with_known_units(units: str, passes: str | None) -> None:
    found = infer_passes_by_order(list(units))
    assert (found and " ".join(f"{phase[0]}{number}" for phase, number in found)) == passes


F, B = "forward", "backward"


@pytest.mark.parametrize(
    ("gathers", "units"),
    [
        # pieces of a unit: compute is launched before the first of them only
        ([(F, 8, 1), (F, 4, 0), (F, 9, 1), (F, 5, 0), (B, 9, 1), (B, 5, 0), (B, 8, 0), (B, 4, 0)],
         [0, 0, 2, 2, 2, 2, 0, 0]),
        # recomputation gathers a unit a second time soon after the first
        ([(F, 3, 1), (F, 4, 1), (F, 5, 1), (B, 5, 1), (B, 4, 1), (B, 4, 1), (B, 3, 1), (B, 3, 1)],
         [0, 1, 2, 2, 1, 1, 0, 0]),
    ],
)  # fmt: skip
def test_units_of_gathers_with_known_sizes(gathers: list[tuple[str, int, int]], units: list[int]) -> None:
    phases, sizes, computed = zip(*gathers, strict=True)
    found = infer_units_by_order(phases, sizes, [bool(value) for value in computed])
    assert found == [f"gather {place}" for place in units]
