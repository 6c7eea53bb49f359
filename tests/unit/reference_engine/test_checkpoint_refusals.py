"""What cannot be loaded or saved says so in one line, and the model is as it was."""

import json
import pickle
import re
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_models import everything, odd_engine, odd_losses, same
from engine_helpers import TINY, tiny_gpt
from fake_comm import FakeComm
from torch import nn
from torch.distributed.checkpoint import metadata
from torch.distributed.checkpoint.filesystem import FileSystemReader

from zprof.reference_engine import ZeroConfig, zero
from zprof.reference_engine.checkpoints import load_checkpoint, save_checkpoint


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    engine = odd_engine(stage=1)
    odd_losses(*engine, range(1))
    save_checkpoint(tmp_path / "x", *engine)
    return tmp_path / "x"


def refused(folder: Path, engine: Any = None, kind: type[Exception] = ValueError) -> str:
    """The line with which loading is refused; nothing in the engine has changed."""
    engine = engine or odd_engine(seed=1, stage=1)
    before, numbers = everything(*engine), engine[1].scalar_state()
    with pytest.raises(kind) as caught:
        load_checkpoint(folder, *engine)
    assert same(everything(*engine), before)
    assert engine[1].scalar_state() == numbers
    line = str(caught.value)
    assert "\n" not in line
    assert line.startswith(f"checkpoint {folder} cannot be loaded: ")
    return line.removeprefix(f"checkpoint {folder} cannot be loaded: ")


def rewrite(folder: Path, **changes: object) -> None:
    """Change the manifest as its own writer would: with a fitting checksum."""
    path = folder / "zero.json"
    whole = json.loads(path.read_text())
    for key, value in changes.items():
        (whole if key in whole else whole["content"])[key] = value
    whole["crc32"] = zlib.crc32(json.dumps(whole["content"], sort_keys=True).encode())
    path.write_text(json.dumps(whole))


def plant(folder: Path, name: str, content: bytes) -> None:
    """Replace a file as somebody would who also fits the checksum."""
    (folder / name).write_bytes(content)
    files = json.loads((folder / "zero.json").read_text())["content"]["files"]
    rewrite(folder, files=files | {name: {"bytes": len(content), "crc32": zlib.crc32(content)}})


def test_what_is_no_checkpoint(tmp_path):
    assert "there is no such folder" in refused(tmp_path / "x")
    (tmp_path / "x").mkdir()
    assert "it has no zero.json" in refused(tmp_path / "x")
    (tmp_path / "x" / "zero.json").write_text('{"format": "something.else", "version": 1}')
    assert "the format in its zero.json is 'something.else'" in refused(tmp_path / "x")


@pytest.mark.parametrize("content", ["", "[1]", "{", "[" * 100_000, "null", '{"format": 1}'])
def test_a_damaged_manifest(saved, content):
    (saved / "zero.json").write_text(content)
    assert "zero.json is damaged" in refused(saved)


def test_a_changed_number_in_the_manifest(saved):
    text = (saved / "zero.json").read_text()
    (saved / "zero.json").write_text(text.replace('"step": 1', '"step": 3'))
    assert refused(saved) == "its zero.json is damaged: the checksum differs"


def test_a_newer_format(saved):
    rewrite(saved, version=2)
    assert refused(saved) == "it has format version 2; this engine reads up to 1: use a newer one"


def test_a_file_that_is_missing_cut_short_or_changed(saved):
    data = (saved / "__0_0.distcp").read_bytes()
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 1
    (saved / "__0_0.distcp").write_bytes(flipped)
    assert refused(saved) == "its file __0_0.distcp is damaged: the checksum differs"
    (saved / "__0_0.distcp").write_bytes(data[:-1])
    assert re.fullmatch(r"its file __0_0\.distcp has \d+ bytes, not \d+", refused(saved))
    (saved / "__0_0.distcp").unlink()
    assert refused(saved) == "its file __0_0.distcp is missing"


def test_a_file_outside_of_the_folder_is_not_opened(saved):
    (saved.parent / "secret").write_text("s")
    rewrite(saved, files={"../secret": {"bytes": 1, "crc32": 0}})
    assert refused(saved) == "its file ../secret is missing"


class Bomb:
    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return Path.touch, (self.trace,)


def test_code_in_the_index_is_not_run(saved, tmp_path):
    plant(saved, ".metadata", pickle.dumps(Bomb(tmp_path / "exploded")))
    line = refused(saved)
    assert "its index .metadata cannot be used" in line
    assert "pathlib" in line
    assert not (tmp_path / "exploded").exists()
    # The bomb is a real one.
    with pytest.raises(AttributeError):
        FileSystemReader(saved).read_metadata()
    assert (tmp_path / "exploded").exists()


@pytest.mark.parametrize("content", [b"", b"junk", pickle.dumps(7), pickle.dumps({})[:-1]])
def test_an_index_that_is_none(saved, content):
    plant(saved, ".metadata", content)
    assert "its index .metadata cannot be used" in refused(saved)


def test_an_index_of_an_older_python_is_read(saved, monkeypatch):
    """Before 3.11.4 a member of an enumeration was pickled as a call of getattr; only members come of it."""
    index = pickle.loads((saved / ".metadata").read_bytes())
    kind = metadata._MEM_FORMAT_ENCODING
    monkeypatch.setattr(kind, "__reduce_ex__", lambda member, protocol: (getattr, (kind, member.name)))
    content = pickle.dumps(index)
    assert b"getattr" in content
    plant(saved, ".metadata", content)
    load_checkpoint(saved, *odd_engine(stage=1))
    monkeypatch.setattr(kind, "__reduce_ex__", lambda member, protocol: (getattr, (kind, "__module__")))
    plant(saved, ".metadata", pickle.dumps(index))
    assert "it asks for an attribute" in refused(saved)


def test_an_index_that_points_elsewhere(saved):
    index = pickle.loads((saved / ".metadata").read_bytes())
    next(iter(index.storage_data.values())).relative_path = "/etc/passwd"
    plant(saved, ".metadata", pickle.dumps(index))
    assert refused(saved) == "its index .metadata points to /etc/passwd, not one of its files"


def test_an_index_that_lacks_elements_or_tensors(saved):
    content = (saved / ".metadata").read_bytes()
    index = pickle.loads(content)
    index.state_dict_metadata["optimizer.state.last.bias.exp_avg"].chunks.clear()
    plant(saved, ".metadata", pickle.dumps(index))
    assert refused(saved) == "of 6 elements of optimizer.state.last.bias.exp_avg it holds 0"
    del index.state_dict_metadata["optimizer.state.last.bias.exp_avg"]
    plant(saved, ".metadata", pickle.dumps(index))
    assert refused(saved) == "it has no tensor optimizer.state.last.bias.exp_avg"
    index = pickle.loads(content)
    index.state_dict_metadata["model.last.bias"].size = torch.Size((2, 3))
    plant(saved, ".metadata", pickle.dumps(index))
    assert refused(saved) == "its model.last.bias has shape (2, 3), the model's (6,)"


def changed(change: Any) -> Any:
    torch.manual_seed(0)
    model = odd_engine(stage=1)[0].module.__class__()
    change(model)
    return zero(model, ZeroConfig(stage=1), FakeComm(1))


def test_another_model(saved):
    assert refused(saved, changed(lambda model: setattr(model, "extra", nn.Linear(2, 2)))) == (
        "it lacks the model's parameter extra.weight (and 1 more)"
    )
    assert refused(saved, changed(lambda model: delattr(model, "scale"))) == (
        "it has a parameter scale, which the model has not"
    )
    assert refused(saved, changed(lambda model: setattr(model, "last", nn.Linear(6, 5)))) == (
        "it lacks the model's parameter last.weight"
    )
    assert refused(saved, changed(lambda model: setattr(model, "scale", nn.Parameter(torch.ones(2))))) == (
        "parameter scale: shape is [] there and [2] in the model"
    )
    assert refused(saved, changed(lambda model: model.frozen.requires_grad_(True))) == (
        "parameter frozen.weight: trainable is False there and True in the model"
    )
    assert refused(saved, changed(lambda model: model.register_buffer("more", torch.zeros(1)))) == (
        "it lacks the model's buffer more"
    )
    assert refused(
        saved, changed(lambda model: model.register_buffer("table", torch.zeros(4, 3).half()))
    ) == ("buffer table: dtype is float32 there and float16 in the model")


def test_another_number_of_groups_and_another_model_parallel_degree(saved):
    engine = odd_engine(stage=1)
    engine[1].param_groups.append({"params": [], "lr": 0.1})
    assert refused(saved, engine) == "it has 1 parameter groups, the optimizer 2"
    rewrite(saved, model_parallel=2)
    assert refused(saved) == (
        "it was saved with a model-parallel degree of 2, and this mesh has 1; another degree cannot be loaded"
    )


def test_progress_must_be_numbers_and_strings(tmp_path):
    model, optimizer = zero(tiny_gpt(TINY), ZeroConfig(), FakeComm(1))
    with pytest.raises(ValueError, match=r"progress\['data'\] is \[1\]"):
        save_checkpoint(tmp_path / "x", model, optimizer, progress={"data": [1]})
    assert not any(tmp_path.iterdir())


def test_an_existing_checkpoint_needs_overwrite(saved):
    engine = odd_engine(stage=1)
    with pytest.raises(ValueError, match=r"^checkpoint \S+ was not saved: it exists; .* overwrite=True"):
        save_checkpoint(saved, *engine)
    load_checkpoint(saved, *engine)
