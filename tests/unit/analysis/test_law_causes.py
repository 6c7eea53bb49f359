"""Each cause is named where its numbers fit to within 1 %, and only there."""

from dataclasses import replace

import pytest

from zprof.analysis.memory.state_checks import (
    COUNTERS,
    NOT_EXPLAINED,
    PADDING,
    StateDifference,
    explain_difference,
)
from zprof.model.tenants import Tenant

PARAMETERS = StateDifference(
    tenant=Tenant.PARAMETERS,
    law_bytes=100_000,
    padding_bytes=0,
    scalar_bytes=0,
    measured_bytes=100_000,
    element_bytes=4,
    ranks=4,
    sharded=True,
)
GRADIENTS = replace(PARAMETERS, tenant=Tenant.GRADIENTS)
STATE = replace(PARAMETERS, tenant=Tenant.OPTIMIZER_STATE, element_bytes=8)


def test_the_law_itself_needs_no_cause() -> None:
    assert explain_difference(PARAMETERS) == ""


def test_what_is_stated_is_named() -> None:
    padded = replace(STATE, padding_bytes=64, measured_bytes=100_064)
    assert explain_difference(padded) == PADDING
    assert explain_difference(replace(STATE, scalar_bytes=20, measured_bytes=100_020)) == COUNTERS
    both = replace(padded, scalar_bytes=20, measured_bytes=100_084)
    assert explain_difference(both) == f"{PADDING} and {COUNTERS}"


def test_a_replicated_state_is_n_times_the_law() -> None:
    assert explain_difference(replace(PARAMETERS, measured_bytes=400_000)) == (
        "equals 4 x the law: the state is not sharded (replicated on 4 ranks)"
    )
    assert explain_difference(replace(PARAMETERS, measured_bytes=400_000, sharded=False)) == NOT_EXPLAINED


def test_a_state_sharded_beyond_the_law() -> None:
    found = explain_difference(replace(STATE, ranks=8, sharded=False, measured_bytes=12_500))
    assert found == "equals the law / 8: the state is sharded over 8 ranks"
    assert explain_difference(replace(STATE, ranks=8, measured_bytes=12_500)) == NOT_EXPLAINED


@pytest.mark.parametrize(
    ("state", "law", "there", "said"),
    [
        (PARAMETERS, 2, 4, "parameters are kept in fp32"),
        (PARAMETERS, 4, 2, "parameters are kept in 2 bytes an element"),
        (PARAMETERS, 2, 6, "bf16 parameters with fp32 masters"),
        (PARAMETERS, 4, 6, "fp32 parameters with a copy in 2 bytes"),
        (GRADIENTS, 2, 4, "gradients are reduced in fp32 and kept so"),
        (GRADIENTS, 4, 2, "gradients are kept in 2 bytes an element"),
        (GRADIENTS, 2, 6, "gradients in 2 bytes an element and their fp32 sums"),
        (STATE, 8, 12, "fp32 masters beside the moments"),
        (STATE, 12, 8, "no fp32 masters"),
        (STATE, 8, 4, "moments of 2 bytes, or one moment of 4"),
        (STATE, 12, 4, "4 bytes an element (masters, or one moment, alone)"),
        (STATE, 8, 2, "moments of 1 byte"),
        (STATE, 12, 6, "masters with moments of 1 byte"),
    ],
)
def test_another_size_of_an_element(state: StateDifference, law: int, there: int, said: str) -> None:
    state = replace(state, element_bytes=law, measured_bytes=100_000 * there // law)
    assert explain_difference(state).startswith(said)


@pytest.mark.parametrize("state", [PARAMETERS, GRADIENTS, STATE], ids=lambda state: state.tenant)
def test_twice_the_law_is_a_copy(state: StateDifference) -> None:
    assert explain_difference(replace(state, measured_bytes=200_000)).startswith("twice the law")


def test_where_two_causes_fit_both_are_named() -> None:
    """On two ranks a replica is twice the law as well."""
    found = explain_difference(replace(GRADIENTS, ranks=2, measured_bytes=200_000))
    assert found == (
        "equals 2 x the law: the state is not sharded (replicated on 2 ranks), or "
        "twice the law: gradients and a full copy"
    )


def test_causes_of_an_exact_size() -> None:
    assert explain_difference(replace(PARAMETERS, measured_bytes=95_000, buffer_bytes=5_000)) == (
        "buffers of the model are not counted"
    )
    assert explain_difference(replace(PARAMETERS, measured_bytes=103_000, rounding_bytes=3_000)) == (
        "the allocator's blocks are larger than the tensors in them"
    )
    assert explain_difference(replace(PARAMETERS, measured_bytes=100_024, excess_elements=6)) == (
        f"{PADDING}: 6 elements in each state"
    )


def test_padding_is_no_cause_where_nothing_is_sharded() -> None:
    state = replace(PARAMETERS, measured_bytes=100_024, excess_elements=6, sharded=False)
    assert explain_difference(state) == NOT_EXPLAINED


def test_nothing_at_all() -> None:
    assert "frees or reduces gradients" in explain_difference(replace(GRADIENTS, measured_bytes=0))
    assert explain_difference(replace(PARAMETERS, measured_bytes=0)).startswith("none was seen")


@pytest.mark.parametrize("measured", [50_000, 97_000, 103_000, 150_000, 300_000, 405_000, 394_000])
def test_what_fits_nothing_stays_unexplained(measured: int) -> None:
    state = replace(PARAMETERS, element_bytes=8, measured_bytes=measured, buffer_bytes=9, rounding_bytes=9)
    assert explain_difference(state) == NOT_EXPLAINED


def test_one_per_cent_is_the_limit() -> None:
    assert explain_difference(replace(PARAMETERS, measured_bytes=403_900)) != NOT_EXPLAINED
    assert explain_difference(replace(PARAMETERS, measured_bytes=404_100)) == NOT_EXPLAINED


def test_step_counters_and_padding_do_not_disturb_a_ratio() -> None:
    small = replace(STATE, law_bytes=1_000, padding_bytes=100, scalar_bytes=400, measured_bytes=4_800)
    assert explain_difference(small).startswith("equals 4 x the law")


def test_a_law_of_no_bytes_divides_nothing() -> None:
    assert explain_difference(replace(PARAMETERS, law_bytes=0, measured_bytes=7)) == NOT_EXPLAINED
