"""Which optimizer ends a step, from the order alone."""

import pytest

from zprof.collectors.program.steps import GIVE_UP_AFTER, StepCycle


def boundaries(order: str, cycle: StepCycle | None = None) -> str:
    """The optimizers after which a step is over."""
    cycle = cycle or StepCycle()
    return "".join(name if cycle.ended(name) else "." for name in order)


@pytest.mark.parametrize(
    ("order", "ends"),
    [
        ("AAAA", "AAAA"),
        # until B is seen for the first time, A looks like the whole cycle
        ("ABABAB", "AB.B.B"),
        ("ABCABC", "ABC..C"),
        ("DDDGDDDG", "DDDG...G"),
        ("BAAA", "BAAA"),
    ],
)
def test_the_one_that_was_first_seen_last_closes_the_cycle(order: str, ends: str) -> None:
    assert boundaries(order) == ends


def test_steps_are_counted_from_the_first_whole_cycle() -> None:
    cycle = StepCycle()
    boundaries("DDDG", cycle)
    assert (cycle.closings, cycle.repeated) == (1, False)
    boundaries("DDDG", cycle)
    assert (cycle.closings, cycle.repeated) == (2, True)


def test_a_skipped_optimizer_makes_one_longer_step_and_breaks_nothing() -> None:
    """A GradScaler leaves out the step of an optimizer whose gradients overflowed."""
    assert boundaries("ABAB" + "A" + "AB" + "B" + "AB") == "AB.B" + "." + ".B" + "B" + ".B"


def test_once_settled_a_new_optimizer_changes_nothing() -> None:
    cycle = StepCycle()
    boundaries("AA", cycle)
    cycle.settle()
    assert boundaries("ABAB", cycle) == "A.A."


def test_a_closing_optimizer_that_has_stopped_is_given_up() -> None:
    """It fitted something at the start, and never steps again."""
    cycle = StepCycle()
    boundaries("AB", cycle)
    assert boundaries("A" * GIVE_UP_AFTER, cycle) == "." * GIVE_UP_AFTER
    assert boundaries("AAA", cycle) == "AAA"
