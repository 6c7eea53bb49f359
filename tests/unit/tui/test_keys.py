"""The keys: each is bound once where it works, and the help names them all."""

from collections import Counter

from zprof.tui.help_texts import format_keys
from zprof.tui.keys import KEYS, Where, bindings

#: So many fit in 80 columns.
MOST_IN_FOOTER = 8


def test_a_key_does_one_thing_in_a_place() -> None:
    for where in Where:
        beside = () if where is Where.LIVE else (Where.EVERYWHERE,)  # an app of its own
        counted = Counter(key.keys for key in KEYS if key.where in (where, *beside))
        assert max(counted.values(), default=1) == 1, counted


def test_all_are_in_the_help() -> None:
    text = format_keys(KEYS)
    assert all(f"{key.written:<10} {key.says}" in text for key in KEYS)


def test_the_footer_fits() -> None:
    keys = [*bindings(Where.EVERYWHERE), *bindings(Where.TABLE)]
    assert len([binding for binding in keys if binding.show]) <= MOST_IN_FOOTER
