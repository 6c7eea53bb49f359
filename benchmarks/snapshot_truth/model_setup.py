"""What is done to a model before training: freezing, low-rank matrices, fp32 copies, a loaded state."""

import random
from collections.abc import Sequence

from benchmarks.snapshot_truth.codebase import Codebase
from benchmarks.snapshot_truth.device import Tensor, TracedDevice
from benchmarks.snapshot_truth.frames import SITE, TORCH, PythonFrame
from benchmarks.snapshot_truth.model_shapes import ParamShape
from benchmarks.snapshot_truth.optimizers import STATE, StateStore
from benchmarks.snapshot_truth.parameters import SimulatedParameter
from benchmarks.snapshot_truth.variants import ProgramOptions
from zprof.model.tenants import Tenant

_BF16_OPTIMIZER = f"{SITE}deepspeed/runtime/bf16_optimizer.py"
_DEEPSPEED = (
    PythonFrame(f"{SITE}deepspeed/__init__.py", 193, "initialize"),
    PythonFrame(f"{SITE}deepspeed/runtime/engine.py", 330, "__init__"),
    PythonFrame(f"{SITE}deepspeed/runtime/engine.py", 1750, "_configure_bf16_optimizer"),
    PythonFrame(_BF16_OPTIMIZER, 98, "__init__"),
    PythonFrame(_BF16_OPTIMIZER, 140, "_setup_for_real_optimizer"),
)
DEEPSPEED_STATES = (*_DEEPSPEED, PythonFrame(_BF16_OPTIMIZER, 260, "initialize_optimizer_states"))
MEGATRON_BUFFERS = (
    PythonFrame(f"{SITE}megatron/core/distributed/distributed_data_parallel.py", 230, "__init__"),
    PythonFrame(f"{SITE}megatron/core/distributed/param_and_grad_buffer.py", 640, "__init__"),
)
_LORA = (
    PythonFrame(f"{SITE}peft/mapping_func.py", 125, "get_peft_model"),
    PythonFrame(f"{SITE}peft/tuners/tuners_utils.py", 590, "inject_adapter"),
    PythonFrame(f"{SITE}peft/tuners/lora/layer.py", 208, "update_layer"),
)
_LORA_NAMES = (("q", "v"), ("q", "k", "v", "o"), ("q", "v", "up", "down"))
_OPTIMIZER = f"{TORCH}optim/optimizer.py"
_LOAD_STATE = (
    PythonFrame(f"{TORCH}_compile.py", 53, "inner"),
    PythonFrame(_OPTIMIZER, 933, "load_state_dict"),
    PythonFrame(_OPTIMIZER, 915, "_cast"),
    PythonFrame(_OPTIMIZER, 748, "_process_value_according_to_param_policy"),
)

Adapters = dict[tuple[int, str], tuple[SimulatedParameter, SimulatedParameter]]


def freeze_parameters(options: ProgramOptions, parameters: Sequence[SimulatedParameter]) -> None:
    """Freeze the whole model under LoRA, or the embedding and its first layers."""
    for parameter in parameters:
        is_low = parameter.shape.layer < options.frozen_layers
        is_last = parameter.shape.name.startswith(("head", "final_norm"))
        if options.has_lora or (options.frozen_layers and is_low and not is_last):
            parameter.is_trained = False
            if parameter.tensor is not None:
                parameter.tensor.lifetime.sub = "frozen"


def add_lora(
    device: TracedDevice, code: Codebase, parameters: Sequence[SimulatedParameter], chance: random.Random
) -> Adapters:
    """Add pairs of low-rank matrices in fp32, as peft does."""
    rank, names = chance.choice((4, 8, 16)), chance.choice(_LORA_NAMES)
    found: Adapters = {}
    with device.call(*code.setup, *_LORA):
        for parameter in parameters:
            name, layer = parameter.shape.name.removesuffix(".weight"), parameter.shape.layer
            if (
                parameter.shape.module != "linear"
                or name not in names
                or layer < 0
                or not parameter.is_matrix
            ):
                continue
            wide, deep = parameter.shape.shape
            pair = []
            for letter, sizes in (("A", (rank, deep)), ("B", (wide, rank))):
                shape = ParamShape(name=f"{name}.{letter}", shape=sizes, module="linear", layer=layer)
                added = SimulatedParameter(shape, 4)
                added.tensor = device.alloc(added.bytes, Tenant.PARAMETERS, "weight", "_to_copy")
                pair.append(added)
            found[layer, name] = (pair[0], pair[1])
    return found


def make_masters(
    device: TracedDevice, code: Codebase, trained: Sequence[SimulatedParameter]
) -> list[SimulatedParameter]:
    """Make an fp32 copy of each parameter, in the constructor of the user's optimizer."""
    masters = []
    with device.call(*code.setup, PythonFrame(code.own_module("mixed_precision.py"), 33, "__init__")):
        for parameter in trained:
            master = SimulatedParameter(parameter.shape, 4)
            master.tensor = device.alloc(master.bytes, STATE, "master", "_to_copy", line=36)
            masters.append(master)
    return masters


def flatten_for_deepspeed(
    device: TracedDevice, code: Codebase, trained: Sequence[SimulatedParameter]
) -> tuple[list[SimulatedParameter], Tensor]:
    """Move the parameters into one flat buffer; return its fp32 copy and the buffer of fp32 gradients."""
    numel = sum(each.numel for each in trained)
    with device.call(*code.setup, *_DEEPSPEED):
        flat = device.alloc(numel * 2, Tenant.PARAMETERS, "weight", "cat", line=150)
        flat.references = len(trained)
        for parameter in trained:
            assert parameter.tensor is not None
            device.drop(parameter.tensor)
            parameter.tensor = flat
        shape = ParamShape(name="flat", shape=(numel,), module="flat", layer=-1)
        master = SimulatedParameter(shape, 4)
        master.tensor = device.alloc(numel * 4, STATE, "master", "clone", line=165)
        gradients = device.alloc(numel * 4, Tenant.GRADIENTS, "master_grad", "zeros", line=170)
    return [master], gradients


def load_state(
    device: TracedDevice,
    code: Codebase,
    state: StateStore,
    parameters: Sequence[SimulatedParameter],
    *,
    has_step: bool,
) -> None:
    """Make Adam's moments as ``load_state_dict`` does, before the first step."""
    with device.call(*code.setup, *_LOAD_STATE):
        for parameter in parameters:
            scalar = [4] if has_step else []
            state.make(parameter, [*scalar, parameter.bytes, parameter.bytes], "_to_copy")
