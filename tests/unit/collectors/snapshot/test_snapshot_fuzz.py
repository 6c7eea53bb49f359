"""Random damage to a good file: read, or refused in one line; never a crash of the reader's parent."""

import pickle
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.snapshots import random_history, snapshot_of
from zprof.collectors.snapshot.reader import read_snapshot
from zprof.model.errors import BadInput

ROOT = Path(__file__).parents[4]

#: Reads many mutations under the child's own limits; anything but these two errors ends it.
MANY = """
import io, pickle, random, sys
from tests.support.snapshots import random_history, snapshot_of
from zprof.collectors.snapshot.convert import convert_snapshot
from zprof.collectors.snapshot.limits import apply_limits, limits_for
from zprof.collectors.snapshot.child import load_plain_data
from zprof.model.errors import BadInput
chance = random.Random(int(sys.argv[1]))
good = [pickle.dumps(snapshot_of(random_history(seed, 40)), protocol=2 + seed % 4) for seed in range(8)]
apply_limits(limits_for(1 << 16))
counts = {"read": 0, "refused": 0}
for _ in range(int(sys.argv[2])):
    content = bytearray(chance.choice(good))
    for _ in range(chance.choice([1, 1, 2, 8])):
        content[chance.randrange(2, len(content))] = chance.randrange(256)
    try:
        convert_snapshot(load_plain_data(io.BytesIO(content)), most_rows=len(content))
        counts["read"] += 1
    except (BadInput, MemoryError) as error:
        assert "\\n" not in str(error), error
        counts["refused"] += 1
print(counts["read"], counts["refused"])
"""


def mutated(seed: int) -> bytes:
    chance = random.Random(seed)
    snapshot = snapshot_of(random_history(seed, 40))
    content = bytearray(pickle.dumps(snapshot, protocol=chance.choice([2, 3, 4, 5])))
    for _ in range(chance.choice([1, 1, 3, 20])):
        content[chance.randrange(2, len(content))] ^= 1 << chance.randrange(8)
    return bytes(content[: chance.choice([len(content), len(content), chance.randrange(2, len(content))])])


def reading(path: Path) -> str:
    """What comes of it: read, or the refusal and its hint."""
    try:
        with read_snapshot(path) as read:
            assert read.tables["block"].num_rows >= 0
    except BadInput as error:
        return f"{error.message}; {error.hint}"
    return "read"


@pytest.mark.parametrize("seed", range(12))
def test_a_damaged_file_is_read_or_refused(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(mutated(seed))
    said = reading(path)
    assert said == "read" or said.startswith(str(path))
    assert "\n" not in said
    assert "please report" not in said, "the reader itself failed"


def test_a_thousand_damaged_files_are_read_or_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MANY, "1", "1000"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    read, refused = map(int, done.stdout.split())
    assert read > 20, "every damage is refused: the fuzz tests the unpickler only"
    assert refused > 20
