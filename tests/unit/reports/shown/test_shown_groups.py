"""Groups are named so that a line holds them, and so that no two of them look alike by chance."""

import pytest

from zprof.reports.shown.groups import group_name


@pytest.mark.parametrize(
    ("group", "shown"),
    [
        ("0,1", "0,1"),
        ("0,1,2,3", "0,1,2,3"),
        ("0,1,2,3,4,5,6,7", "0-7"),
        ("0,1,2,3,4,5,6,7#fsdp", "0-7#fsdp"),
        (",".join(map(str, range(1024))), "0-1023"),
        (",".join(map(str, range(0, 1024, 8))), "0,8,..,1016 (128 ranks)"),
        ("0,1,2,3,8,9,10,11", "0-3,8-11"),
        ("0,1,4,5,8,9,12,13", "0-1,4-5,8-9,.. (8 ranks)"),
        ("0,2,3,4,5", "0,2-5"),
        ("stream:84", "stream:84"),
        ("unknown", "unknown"),
        ("a,b,c,d,e,f", "a,b,c,d,e,f"),
        ("1,2,3,4," + "9" * 40, "1,2,3,4," + "9" * 40),
    ],
)
def test_a_group_is_shown_short(group: str, shown: str) -> None:
    assert group_name(group) == shown
