"""One rank: accumulates the cases that a JSON file names over micro-batches, and writes gradients and bytes.

python gradient_worker.py FOLDER        (RANK, WORLD_SIZE and MASTER_* in the environment)
"""

from typing import Any

import torch
from optional_model import Optional, inputs
from rank_program import run_cases

from zprof.reference_engine import ZeroConfig, ZeroModel, zero
from zprof.reference_engine.comm.modelled import LinkModel, ModelledComm
from zprof.reference_engine.comm.native import NativeComm


def run(case: dict[str, Any]) -> dict[str, Any]:
    """``moved`` is the total after each micro-batch and step; gradients are those of the last step."""
    settings = dict(case["zero"])
    for name in {"dtype", "reduce_dtype"} & set(settings):
        settings[name] = getattr(torch, settings[name])
    config = ZeroConfig(learning_rate=1e-2, **settings)
    comm = ModelledComm(LinkModel(**case["link"])) if case["link"] else NativeComm()
    model, optimizer = zero(Optional(), config, comm)
    moved = [sum(comm.moved.values())]
    for step in range(case["steps"]):
        optimizer.zero_grad()
        for micro_batch in range(config.micro_batches):
            x = inputs(comm.rank, step * config.micro_batches + micro_batch).to(config.dtype)
            model(x, (comm.rank + micro_batch) % 4).backward()
            moved.append(sum(comm.moved.values()))
        optimizer.step()
        moved.append(sum(comm.moved.values()))
    result = {"moved": moved, "gradients": owned(model), "weights": weights(model)}
    result["psi"] = model.facts.parameters + model.facts.padding_elements
    comm.close()
    return result


def owned(model: ZeroModel) -> dict[str, Any]:
    """This rank's part of every unit's gradient, and where parameters lie in the whole."""
    return {
        unit.name: {
            "values": gradients.owned.tolist(),
            "slots": [[slot.name, slot.offset, slot.numel] for slot in unit.layout.slots],
        }
        for unit, gradients in model._reducer._gradients.items()
    }


def weights(model: ZeroModel) -> dict[str, Any]:
    return {name: value.flatten().tolist() for name, value in model.state_dict().items()}


if __name__ == "__main__":
    run_cases(run)
