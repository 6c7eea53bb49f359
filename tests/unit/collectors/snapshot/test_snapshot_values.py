"""Wrong values in a snapshot, in this process: the converter alone must refuse them."""

import pytest

from tests.support.hostile_pickles import good, wrong_values
from zprof.collectors.snapshot.convert import convert_snapshot
from zprof.model.errors import BadInput


def test_the_snapshot_is_sound_before_it_is_changed() -> None:
    assert convert_snapshot(good()).gaps == ()


@pytest.mark.parametrize("name", wrong_values())
def test_a_wrong_value_is_refused(name: str) -> None:
    change, word = wrong_values()[name]
    snapshot = good()
    change(snapshot)
    with pytest.raises(BadInput, match="not a snapshot as torch writes it") as error:
        convert_snapshot(snapshot)
    assert word in error.value.message
    assert "\n" not in error.value.message
