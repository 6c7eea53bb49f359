"""What stands beside the series: whose bandwidth is meant, and in which order a plan answers."""

from dataclasses import replace

from tests.support import plans
from zprof.reports.plan.head import answers
from zprof.reports.plan.sensitivity import sensitivity_grids

GROUP = (
    "bandwidth: of what the data-parallel group gets, the lesser of the bus in a node and the node's cards"
)


def test_tables_of_bandwidths_say_whose_bandwidth_it_is() -> None:
    said = {grid.title: any(note.startswith(GROUP) for note in grid.notes)
            for grid in sensitivity_grids(plans.sensitivity())}  # fmt: skip
    assert [title for title, there in said.items() if there] == ["Break-even", "Bandwidth between nodes"]
    assert len(said) > 2


def test_first_whether_it_holds_then_whether_it_fits_then_the_rest() -> None:
    found = replace(plans.sensitivity(), answers=("It holds.", "Gathers hide.", "It is super-linear."))
    said = answers(replace(plans.full(), sensitivity=found))
    begins = [sentence.split()[0] for sentence in said]
    assert begins[:2] == ["It", "Fits"]
    assert said[0] == "It holds."
    states = next(at for at, sentence in enumerate(said) if "of model states" in sentence)
    assert said[states + 1 :][:2] == ("Gathers hide.", "It is super-linear.")


def test_without_hardware_nothing_fits_and_states_come_second() -> None:
    found = replace(plans.sensitivity(), answers=("It holds.", "Gathers hide."))
    said = answers(replace(plans.bare(), sensitivity=found))
    assert (said[0], said[2]) == ("It holds.", "Gathers hide.")
