"""Wrong values in a snapshot, in this process: the converter alone must refuse them."""

import pytest

from tests.support.hostile_pickles import good, wrong_values
from zprof.collectors.snapshot.convert import tables_of
from zprof.model.errors import BadInput


def test_the_snapshot_is_sound_before_it_is_changed() -> None:
    assert tables_of(good()).gaps == ()


@pytest.mark.parametrize("name", wrong_values())
def test_a_wrong_value_is_refused(name: str) -> None:
    change, word = wrong_values()[name]
    snapshot = good()
    change(snapshot)
    with pytest.raises(BadInput, match="not a snapshot as torch writes it") as error:
        tables_of(snapshot)
    assert word in error.value.message
    assert "\n" not in error.value.message
