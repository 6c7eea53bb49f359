"""The order in which units are fetched ahead is that of the pass before."""

from zprof.reference_engine.gather import PrefetchDemand, PrefetchOrder


def run(order: PrefetchOrder, units: str) -> list[PrefetchDemand]:
    order.begin()
    return [order.demand(unit) for unit in units]


def test_depth_is_how_far_it_looks_and_zero_never_does():
    deep, off = PrefetchOrder(2), PrefetchOrder(0)
    run(deep, "rabc")
    run(off, "rabc")
    assert [demand.ahead for demand in run(deep, "rabc")] == [("a", "b"), ("b", "c"), ("c",), ()]
    assert run(off, "rcba") == [PrefetchDemand()] * 4


def test_a_unit_out_of_order_is_missed_once_and_ends_the_look_ahead_of_that_pass():
    order = PrefetchOrder(1)
    run(order, "rab")
    assert run(order, "rba") == [PrefetchDemand(ahead=("a",)), PrefetchDemand(missed="a"), PrefetchDemand()]
    assert [demand.ahead for demand in run(order, "rba")] == [("b",), ("a",), ()]


def test_a_longer_pass_is_a_miss_at_its_end():
    order = PrefetchOrder(1)
    run(order, "ra")
    assert run(order, "rab")[2] == PrefetchDemand(missed="end")


def test_a_unit_that_is_used_twice_is_expected_twice():
    order = PrefetchOrder(1)
    run(order, "rara")
    assert [demand.ahead for demand in run(order, "rara")] == [("a",), ("r",), ("a",), ()]
