"""What cannot be loaded or saved is named in one line, and the model is as it was."""

import json
import pickle
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_models import everything, odd_engine, odd_losses, same
from fake_comm import FakeComm
from torch import nn
from torch.distributed.checkpoint import metadata
from torch.distributed.checkpoint.filesystem import FileSystemReader

from zprof.reference_engine import ZeroConfig, zero
from zprof.reference_engine.checkpoints import load_checkpoint, save_checkpoint

DATA = "__0_0.distcp"
BIAS = "optimizer.state.last.bias.exp_avg"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    engine = odd_engine(stage=1)
    odd_losses(*engine, range(1))
    save_checkpoint(tmp_path / "x", *engine)
    return tmp_path / "x"


def refused(folder: Path, engine: Any = None) -> str:
    """The line with which loading is refused; nothing in the engine has changed."""
    engine = engine or odd_engine(seed=1, stage=1)
    before, numbers = everything(*engine), engine[1].scalar_state()
    with pytest.raises(ValueError, match=str(folder)) as caught:
        load_checkpoint(folder, *engine)
    assert same(everything(*engine), before)
    assert engine[1].scalar_state() == numbers
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(str(folder), "")


def rewrite(folder: Path, **changes: object) -> None:
    """Change the manifest, with a fitting checksum."""
    path = folder / "zero.json"
    whole = json.loads(path.read_text())
    for key, value in changes.items():
        (whole if key in whole else whole["content"])[key] = value
    whole["crc32"] = zlib.crc32(json.dumps(whole["content"], sort_keys=True).encode())
    path.write_text(json.dumps(whole))


def plant(folder: Path, name: str, content: bytes) -> None:
    """Replace a file, with a fitting checksum."""
    (folder / name).write_bytes(content)
    files = json.loads((folder / "zero.json").read_text())["content"]["files"]
    rewrite(folder, files=files | {name: {"bytes": len(content), "crc32": zlib.crc32(content)}})


def test_a_folder_that_is_no_checkpoint(tmp_path):
    refused(tmp_path / "x")
    (tmp_path / "x").mkdir()
    assert "zero.json" in refused(tmp_path / "x")
    (tmp_path / "x" / "zero.json").write_text('{"format": "something.else", "version": 1}')
    assert "something.else" in refused(tmp_path / "x")


@pytest.mark.parametrize("content", ["", "[1]", "{", "[" * 100_000, "null", '{"format": 1}'])
def test_a_damaged_manifest(saved, content):
    (saved / "zero.json").write_text(content)
    assert "zero.json" in refused(saved)


def change_data(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda folder: (folder / DATA).write_bytes(change((folder / DATA).read_bytes()))


def change_index(change: Callable[[Any], object]) -> Callable[[Path], object]:
    def damage(folder: Path) -> None:
        index = pickle.loads((folder / ".metadata").read_bytes())
        change(index)
        plant(folder, ".metadata", pickle.dumps(index))

    return damage


def change_number(folder: Path) -> None:
    manifest = folder / "zero.json"
    manifest.write_text(manifest.read_text().replace('"step": 1', '"step": 3'))


def change_size(index: Any) -> None:
    index.state_dict_metadata["model.last.bias"].size = torch.Size((2, 3))


def point_elsewhere(index: Any) -> None:
    next(iter(index.storage_data.values())).relative_path = "/etc/passwd"


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (change_number, "checksum"),
        (lambda folder: rewrite(folder, version=2), "version 2"),
        (lambda folder: rewrite(folder, model_parallel=2), "model-parallel"),
        (lambda folder: rewrite(folder, files={"../secret": {"bytes": 1, "crc32": 0}}), "secret"),
        (change_data(lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:]), DATA),
        (change_data(lambda data: data[:-1]), DATA),
        (lambda folder: (folder / DATA).unlink(), DATA),
        *((lambda folder, c=c: plant(folder, ".metadata", c), ".metadata") for c in (b"", b"junk")),
        (lambda folder: plant(folder, ".metadata", pickle.dumps(7)), ".metadata"),
        (change_index(point_elsewhere), "/etc/passwd"),
        (change_index(lambda index: index.state_dict_metadata[BIAS].chunks.clear()), BIAS),
        (change_index(lambda index: index.state_dict_metadata.pop(BIAS)), BIAS),
        (change_index(change_size), "model.last.bias"),
    ],
)
def test_a_damaged_or_foreign_checkpoint(saved, damage, word):
    (saved.parent / "secret").write_text("s")
    damage(saved)
    assert word in refused(saved)


class Bomb:
    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return Path.touch, (self.trace,)


def test_code_in_the_index_is_not_run(saved, tmp_path):
    plant(saved, ".metadata", pickle.dumps(Bomb(tmp_path / "exploded")))
    assert "pathlib" in refused(saved)
    assert not (tmp_path / "exploded").exists()
    # The bomb is a real one.
    with pytest.raises(AttributeError):
        FileSystemReader(saved).read_metadata()
    assert (tmp_path / "exploded").exists()


def test_an_index_of_an_older_python_is_read(saved, monkeypatch):
    # Before 3.11.4 a member of an enumeration was pickled as a call of getattr; only members come of it.
    index = pickle.loads((saved / ".metadata").read_bytes())
    kind = metadata._MEM_FORMAT_ENCODING
    monkeypatch.setattr(kind, "__reduce_ex__", lambda member, protocol: (getattr, (kind, member.name)))
    content = pickle.dumps(index)
    assert b"getattr" in content
    plant(saved, ".metadata", content)
    load_checkpoint(saved, *odd_engine(stage=1))
    monkeypatch.setattr(kind, "__reduce_ex__", lambda member, protocol: (getattr, (kind, "__module__")))
    plant(saved, ".metadata", pickle.dumps(index))
    refused(saved)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda model: setattr(model, "extra", nn.Linear(2, 2)), "extra.weight"),
        (lambda model: delattr(model, "scale"), "scale"),
        (lambda model: setattr(model, "last", nn.Linear(6, 5)), "last.weight"),
        (lambda model: setattr(model, "scale", nn.Parameter(torch.ones(2))), "scale"),
        (lambda model: model.frozen.requires_grad_(True), "frozen.weight"),
        (lambda model: model.register_buffer("more", torch.zeros(1)), "more"),
        (lambda model: model.register_buffer("table", torch.zeros(4, 3).half()), "table"),
    ],
)
def test_another_model(saved, change, name):
    torch.manual_seed(0)
    model = odd_engine(stage=1)[0].module.__class__()
    change(model)
    assert name in refused(saved, zero(model, ZeroConfig(stage=1), FakeComm(1)))


def test_another_number_of_groups(saved):
    engine = odd_engine(stage=1)
    engine[1].param_groups.append({"params": [], "lr": 0.1})
    assert "groups" in refused(saved, engine)


def test_what_cannot_be_saved(saved, tmp_path):
    engine = odd_engine(stage=1)
    with pytest.raises(ValueError, match="data"):
        save_checkpoint(tmp_path / "y", *engine, progress={"data": [1]})
    assert not (tmp_path / "y").exists()
    with pytest.raises(ValueError, match="overwrite=True"):
        save_checkpoint(saved, *engine)
    load_checkpoint(saved, *engine)
