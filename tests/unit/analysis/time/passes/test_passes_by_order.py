"""The order of the units alone says forward, backward and micro-batch; where it cannot, it says nothing."""

from zprof.analysis.time.passes.order import infer_passes_by_order, infer_units_by_order


def said(units: str) -> str:
    found = infer_passes_by_order(list(units))
    assert found is not None
    return " ".join(f"{phase[0]}{number}" for phase, number in found)


def test_forward_then_backward() -> None:
    assert said("abccba") == "f0 f0 f0 b0 b0 b0"


def test_a_unit_that_was_kept_is_not_gathered_again() -> None:
    assert said("abcba") == "f0 f0 f0 b0 b0"


def test_each_new_forward_is_a_micro_batch() -> None:
    assert said("abccbaabccba") == "f0 f0 f0 b0 b0 b0 f1 f1 f1 b1 b1 b1"


def test_forwards_alone() -> None:
    assert said("abcabc") == "f0 f0 f0 f1 f1 f1"


def test_recomputation_gathers_twice_in_the_backward() -> None:
    assert said("abcccbbaa") == "f0 f0 f0 b0 b0 b0 b0 b0 b0"


def test_a_root_that_is_gathered_once() -> None:
    assert said("rabccba") == "f0 f0 f0 f0 b0 b0 b0"


def test_one_unit_has_no_order() -> None:
    assert infer_passes_by_order(["a", "a", "a"]) is None


def test_pieces_of_a_unit_are_matched_in_their_order_and_named_as_one() -> None:
    forward = [(8, True), (4, False), (9, True), (5, False)]
    backward = [(9, True), (5, False), (8, False), (4, False)]
    gathers = [*forward, *backward]
    phases = ["forward"] * 4 + ["backward"] * 4
    names = infer_units_by_order(phases, [size for size, _ in gathers], [computed for _, computed in gathers])
    first, second = "gather 0", "gather 2"
    assert names == [first, first, second, second, second, second, first, first]


def test_recomputation_gathers_a_unit_a_second_time_soon_after_the_first() -> None:
    sizes = [3, 4, 5, 5, 4, 4, 3, 3]
    names = infer_units_by_order(["forward"] * 3 + ["backward"] * 5, sizes, [True] * 8)
    assert names == [f"gather {place}" for place in (0, 1, 2, 2, 1, 1, 0, 0)]
