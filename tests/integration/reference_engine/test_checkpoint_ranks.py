"""A saved run goes on with the same losses at any number of ranks and stage; a killed save leaves the old."""

import itertools
import json
import math
import pickle
import signal
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_ranks import run_alone

pytestmark = pytest.mark.ranks

STAGES = range(4)
SAVED = {
    **{f"stage{stage}": {"stage": stage} for stage in STAGES},
    "bfloat16": {"stage": 2, "dtype": "bfloat16"},
    "float16": {"stage": 3, "dtype": "float16"},
}
#: Saved by 2 ranks; by ranks that load: stage that saved, stage that loads.  All 16 pairs of stages.
LOADED = {
    1: [(1, 0), (3, 2)],
    2: [(0, 0), (0, 1), (1, 1), (1, 2), (2, 2), (2, 3), (3, 3), (3, 0)],
    4: [(0, 2), (0, 3), (1, 3), (2, 0), (2, 1), (3, 1)],
}


def case(do: str, path: Path, **settings: Any) -> dict[str, Any]:
    return {"do": do, "path": str(path), "zero": settings}


def loads(folder: Path, ranks: int) -> dict[str, Any]:
    table = {
        f"stage{first} to {then}": case("load", folder / f"stage{first}", stage=then)
        for first, then in LOADED[ranks]
    }
    return table | {
        f"load {name}": case("load", folder / name, **SAVED[name]) for name in ("bfloat16", "float16")
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def seen(run_on, folder: Path):
    """What the first rank saw: ``seen(2)`` of the saves and loads of 2 ranks, ``seen(4)`` of loads by 4."""

    @cache
    def run(ranks: int) -> dict[str, Any]:
        cases = loads(folder, ranks)
        if ranks == 2:
            saves = {name: case("save", folder / name, **settings) for name, settings in SAVED.items()}
            cases = saves | {"split": case("save", folder / "split", stage=1) | {"mp": 2}} | cases
        else:
            run(2)
        return run_on(ranks, "checkpoint_worker", cases)[0]

    return run


def assert_says(line: str, *words: str) -> None:
    assert "\n" not in line
    assert all(word in line for word in words)


def marked(ranks: int, *rest: int) -> Any:
    return pytest.param(ranks, *rest, marks=[pytest.mark.slow] if ranks == 4 else [])


@pytest.mark.parametrize(
    ("ranks", "first", "then"), [marked(ranks, *pair) for ranks, pairs in LOADED.items() for pair in pairs]
)
def test_the_next_losses_are_those_of_the_run_without_interruption(seen, ranks, first, then):
    expected, found = seen(2)[f"stage{first}"], seen(ranks)[f"stage{first} to {then}"]
    assert found["progress"] == {"step": 2}
    assert found["numbers"] == expected["numbers"]
    if ranks == 2:
        assert found["losses"] == expected["losses"]
        # Only stages 1 and 2 gather what was loaded.
        assert set(found["moved"]) == ({"all_gather"} if then in (1, 2) else set())
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    # Steps differ by more than the tolerance, or equal losses mean little.
    assert all(abs(a - b) > 1e-3 * a for a, b in itertools.pairwise(found["losses"]))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("ranks", [marked(ranks) for ranks in LOADED])
def test_mixed_precision_goes_on_from_its_master_weights_and_its_loss_scale(seen, ranks, dtype):
    expected, found = seen(2)[dtype], seen(ranks)[f"load {dtype}"]
    assert found["numbers"] == expected["numbers"]
    assert (expected["numbers"]["loss_scale"] is not None) == (dtype == "float16")
    # The sums over another number of ranks are rounded elsewhere.
    assert found["losses"] == (
        expected["losses"] if ranks == 2 else pytest.approx(expected["losses"], rel=5e-3)
    )


def test_with_tensor_parallelism_the_number_of_data_parallel_ranks_alone_may_change(run_on, seen, folder):
    expected, split = seen(2)["split"], folder / "split"
    cases = {"found": case("load", split, stage=3) | {"mp": 2}, "refused": case("refused", split, stage=3)}
    results = run_on(4, "checkpoint_worker", cases)[0]
    found = results["found"]
    assert found["numbers"] == expected["numbers"]
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    entries = pickle.loads((folder / "split" / ".metadata").read_bytes()).state_dict_metadata
    assert {"model.final_norm.weight", "model.token_embedding.weight/mp1of2"} < entries.keys()
    assert_says(results["refused"]["line"], "ValueError", "model-parallel", "rank 0")


@pytest.mark.parametrize("stage", STAGES)
def test_every_rank_writes_its_share_and_nothing_is_written_twice(seen, folder, stage):
    seen(2)
    folder = folder / f"stage{stage}"
    index = pickle.loads((folder / ".metadata").read_bytes())
    written = Counter({"__0_0.distcp": 0, "__1_0.distcp": 0})
    for place, info in index.storage_data.items():
        record = index.state_dict_metadata[place.fqn]
        if record.properties.dtype == torch.float32:
            written[info.relative_path] += record.chunks[place.index].sizes.numel()
    parameters = json.loads((folder / "zero.json").read_text())["content"]["parameters"]
    elements = sum(math.prod(record["shape"]) for record in parameters.values())
    assert sum(written.values()) == 3 * elements
    assert max(written.values()) < 1.05 * min(written.values())


def test_ranks_that_fail_or_are_killed_while_saving_leave_the_old_checkpoint(run_on, tmp_path):
    """What one rank cannot do, all ranks say; then they go on."""
    old = tmp_path / "old"
    cases = {"old": case("save", old, stage=3), "failed": case("failed", old, stage=3)}
    first, second = run_on(2, "checkpoint_worker", cases)
    (write, read), other = first["failed"]["lines"]
    assert [write, read] == other
    assert_says(write, "RuntimeError", "No space left", "rank 1")
    assert_says(read, "ValueError", "old-elsewhere", "rank 1")
    assert first["failed"]["progress"] == second["failed"]["progress"] == {"step": 2}
    alone = tmp_path / "alone"
    alone.mkdir()
    ended = run_alone("checkpoint_worker", {"killed": case("killed", old, stage=3)}, 2, alone)
    assert [rank.code for rank in ended] == [0, -signal.SIGKILL]
    assert_says(ended[0].results["killed"]["line"], "RuntimeError", str(old))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alone", "old"]
    (found,) = run_on(1, "checkpoint_worker", {"old": case("load", old, stage=1)})
    assert found["old"]["progress"] == {"step": 2}
    assert found["old"]["losses"] == pytest.approx(first["old"]["losses"], rel=1e-5)
