"""Names, shapes and kinds: what a checkpoint and a model must agree on before anything is read."""

from collections.abc import Mapping
from typing import Any

from zprof.reference_engine.checkpoints.extras import buffers_of
from zprof.reference_engine.checkpoints.manifest import Manifest
from zprof.reference_engine.checkpoints.parts import Engine, is_split


def parameters_table(engine: Engine) -> dict[str, dict[str, Any]]:
    """Every logical parameter; with tensor parallelism the shape is that of a slice."""
    return {
        slot.name: {
            "shape": list(slot.shape),
            "trainable": unit.trainable,
            "split": is_split(unit, slot.name),
            "group": unit.group if unit.trainable else None,
        }
        for unit in engine.units
        for slot in unit.layout.slots
    }


def buffers_table(engine: Engine) -> dict[str, dict[str, Any]]:
    """Every persistent buffer."""
    return {
        name: {"shape": list(buffer.shape), "dtype": str(buffer.dtype).removeprefix("torch.")}
        for name, buffer in buffers_of(engine.module)
    }


def check_fits(manifest: Manifest, engine: Engine) -> None:
    """Compare a checkpoint with the model that wants it.

    Raises:
        ValueError: one line that names the first thing that differs.
    """
    model_parallel = 1 if engine.mp is None else engine.mp.world_size
    if manifest.model_parallel != model_parallel:
        raise ValueError(
            f"it was saved with a model-parallel degree of {manifest.model_parallel}, and this mesh has "
            f"{model_parallel}; another degree cannot be loaded"
        )
    _compare("parameter", manifest.parameters, parameters_table(engine))
    _compare("buffer", manifest.buffers, buffers_table(engine))


def _compare(
    kind: str, saved: Mapping[str, Mapping[str, Any]], here: Mapping[str, Mapping[str, Any]]
) -> None:
    if missing := [name for name in here if name not in saved]:
        raise ValueError(f"it lacks the model's {kind} {missing[0]}{_more(missing)}")
    if unexpected := [name for name in saved if name not in here]:
        raise ValueError(f"it has a {kind} {unexpected[0]}, which the model has not{_more(unexpected)}")
    for name, record in here.items():
        for field, value in record.items():
            if saved[name].get(field) != value:
                raise ValueError(
                    f"{kind} {name}: {field} is {saved[name].get(field)} there and {value} in the model"
                )


def _more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""
