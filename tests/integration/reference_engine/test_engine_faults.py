"""A rank that goes away, by a signal or by an exception, ends the others with an error: nobody hangs."""

import re
import signal
from pathlib import Path
from typing import Any

import pytest
from engine_ranks import run_ranks

pytestmark = pytest.mark.ranks

SIZES = {"layers": 2, "hidden": 16, "heads": 2, "vocabulary": 31, "context": 8}
LINK = {"bandwidth_bytes_per_s": 1e9}


def faulty_case(stage: int, link: dict[str, float] | None, fault: str) -> dict[str, Any]:
    return {
        "zero": {"stage": stage},
        "gpt": SIZES,
        "steps": 50,
        "batch": 4,
        "link": link,
        "faulty_rank": 1,
        "fault": {"die_in": 2, "die_by": fault},
    }


@pytest.mark.parametrize(
    ("stage", "link", "fault"),
    [
        (0, None, "kill"),
        pytest.param(3, None, "raise", marks=pytest.mark.slow),
        pytest.param(3, LINK, "kill", marks=pytest.mark.slow),
        (2, LINK, "raise"),
    ],
    ids=["stage 0 killed", "stage 3 raised", "modelled link killed", "modelled link raised"],
)
def test_the_others_end_with_an_error(tmp_path: Path, stage: int, link: dict[str, float] | None, fault: str):
    ended = run_ranks({"case": faulty_case(stage, link, fault)}, 2, tmp_path, timeout_s=60)
    survivor, faulty = ended
    assert faulty.code == (-signal.SIGKILL if fault == "kill" else 1)
    assert survivor.code == 1
    assert survivor.results == {}
    assert re.search(r"RuntimeError: [a-z_]+ of unit \S+ failed: ", survivor.error)
