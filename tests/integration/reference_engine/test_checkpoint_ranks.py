"""A saved run goes on with the same losses at any number of ranks and stage; a killed save leaves the old."""

import itertools
import json
import math
import pickle
import re
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_ranks import run_ranks

pytestmark = pytest.mark.ranks

WORKER = Path(__file__).with_name("checkpoint_worker.py")
STAGES = range(4)
SAVED = {
    **{f"stage{stage}": {"stage": stage} for stage in STAGES},
    "bfloat16": {"stage": 2, "dtype": "bfloat16"},
    "float16": {"stage": 3, "dtype": "float16"},
}
# Saved by 2 ranks; by ranks that load: stage that saved, stage that loads.  All 16 pairs of stages are there.
LOADED = {
    1: [(0, 3), (1, 0), (2, 1), (3, 2), (3, 3)],
    2: [(0, 0), (0, 1), (1, 1), (1, 2), (2, 2), (2, 3), (3, 3), (3, 0)],
    4: [(0, 2), (1, 3), (2, 0), (3, 1), (3, 3), (3, 0), (3, 2)],
}


def load_case(folder: Path, name: str, **settings: Any) -> dict[str, Any]:
    return {"do": "load", "path": str(folder / name), "zero": settings}


def save_case(folder: Path, name: str, **settings: Any) -> dict[str, Any]:
    return {"do": "save", "path": str(folder / name), "zero": settings}


def loads(folder: Path, ranks: int) -> dict[str, Any]:
    pairs = {
        f"stage{first} to {then}": load_case(folder, f"stage{first}", stage=then)
        for first, then in LOADED[ranks]
    }
    mixed = {f"load {name}": load_case(folder, name, **SAVED[name]) for name in ("bfloat16", "float16")}
    return pairs | mixed


def faults(folder: Path) -> dict[str, Any]:
    return {
        "old": save_case(folder, "old", stage=3),
        "failed": {"do": "failed", "path": str(folder / "old"), "zero": {"stage": 3}},
        "killed": {"do": "killed", "path": str(folder / "old"), "zero": {"stage": 3}},
    }


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Any]:
    """What the first rank saw, by ranks; ``saved`` is by 2 ranks, and one of them is killed at last."""
    folder = tmp_path_factory.mktemp("checkpoints")
    saves = {name: save_case(folder, name, **settings) for name, settings in SAVED.items()}
    saves["split"] = save_case(folder, "split", stage=1) | {"mp": 2}
    two = run(saves | loads(folder, 2) | faults(folder), 2, folder, codes=[0, -signal.SIGKILL])
    leftovers = sorted(path.name for path in folder.glob(".*"))
    wide = {
        "wide": save_case(folder, "wide", stage=3),
        "split": load_case(folder, "split", stage=3) | {"mp": 2},
        "not split": load_case(folder, "split", stage=3) | {"do": "refused"},
    }
    four = run(loads(folder, 4) | wide, 4, folder)
    back = {"wide": load_case(folder, "wide", stage=1), "old": load_case(folder, "old", stage=1)}
    one = run(loads(folder, 1) | back, 1, folder)
    return {"folder": folder, "leftovers": leftovers, "saved": two, 1: one, 2: two, 4: four}


def run(cases: dict[str, Any], ranks: int, folder: Path, codes: list[int] | None = None) -> dict[str, Any]:
    ended = run_ranks(cases, ranks, folder, timeout_s=120, worker=WORKER)
    assert [rank.code for rank in ended] == (codes or [0] * ranks), [rank.error for rank in ended]
    return ended[0].results


PAIRS = [(ranks, first, then) for ranks, pairs in LOADED.items() for first, then in pairs]


@pytest.mark.parametrize(("ranks", "first", "then"), PAIRS)
def test_the_next_losses_are_those_of_the_run_without_interruption(results, ranks, first, then):
    expected = results["saved"][f"stage{first}"]
    found = results[ranks][f"stage{first} to {then}"]
    assert found["progress"] == {"step": 2}
    assert found["numbers"] == expected["numbers"]
    if ranks == 2:
        assert found["losses"] == expected["losses"]
    else:
        assert found["losses"] == pytest.approx(expected["losses"], rel=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("ranks", LOADED)
def test_mixed_precision_goes_on_from_its_master_weights_and_its_loss_scale(results, ranks, dtype):
    expected, found = results["saved"][dtype], results[ranks][f"load {dtype}"]
    assert found["numbers"] == expected["numbers"]
    assert (expected["numbers"]["loss_scale"] is not None) == (dtype == "float16")
    # The sums over another number of ranks are rounded elsewhere.
    assert found["losses"] == (
        expected["losses"] if ranks == 2 else pytest.approx(expected["losses"], rel=5e-3)
    )


def test_four_ranks_are_read_by_one(results):
    assert results[1]["wide"]["losses"] == pytest.approx(results[4]["wide"]["losses"], rel=1e-5)


def test_with_tensor_parallelism_the_number_of_data_parallel_ranks_may_change(results):
    expected, found = results["saved"]["split"], results[4]["split"]
    assert found["numbers"] == expected["numbers"]
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    entries = pickle.loads((results["folder"] / "split" / ".metadata").read_bytes()).state_dict_metadata
    assert {"model.final_norm.weight", "model.token_embedding.weight/mp1of2"} < entries.keys()


def test_another_model_parallel_degree_is_refused(results):
    assert results[4]["not split"]["line"] == (
        f"ValueError: checkpoint {results['folder']}/split cannot be loaded: it was saved with a "
        "model-parallel degree of 2, and this mesh has 1; another degree cannot be loaded (rank 0)"
    )


def test_losses_tell_a_resumed_run_from_another(results):
    """The model learns and the steps differ by more than the tolerance: equal losses mean something."""
    losses = results["saved"]["stage3"]["losses"]
    assert all(abs(a - b) > 1e-3 * a for a, b in itertools.pairwise(losses))


@pytest.mark.parametrize("stage", STAGES)
def test_every_rank_writes_its_share_and_nothing_is_written_twice(results, stage):
    folder = results["folder"] / f"stage{stage}"
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


def test_loading_moves_only_what_stages_1_and_2_gather(results):
    found = results[2]
    assert found["stage0 to 0"]["moved"] == found["stage3 to 3"]["moved"] == {}
    assert set(found["stage0 to 1"]["moved"]) == set(found["stage1 to 2"]["moved"]) == {"all_gather"}


def test_what_one_rank_cannot_do_all_ranks_say_and_go_on(results):
    failed = results["saved"]["failed"]
    assert failed["lines"][0] == failed["lines"][1]
    assert failed["lines"][0] == [
        f"RuntimeError: checkpoint {results['folder']}/old was not saved: "
        "OSError: [Errno 28] No space left on device (rank 1)",
        f"ValueError: checkpoint {results['folder']}/old-elsewhere cannot be loaded: "
        "it is not a checkpoint: there is no such folder (rank 1)",
    ]
    assert failed["progress"] == {"step": 2}


def test_a_rank_that_is_killed_while_saving_leaves_the_old_checkpoint(results):
    line = results["saved"]["killed"]["line"]
    assert re.match(r"RuntimeError: checkpoint \S+/old was not saved: .*by peer", line)
    assert "\n" not in line
    assert results["leftovers"] == []
    assert results[1]["old"]["progress"] == {"step": 2}
    assert results[1]["old"]["losses"] == pytest.approx(results["saved"]["old"]["losses"], rel=1e-5)
