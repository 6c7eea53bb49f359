"""Parameters of a simulated model: how they are born, and their gradients."""

from dataclasses import dataclass, field

from benchmarks.snapshot_truth.codebase import Codebase
from benchmarks.snapshot_truth.device import Tensor, TracedDevice
from benchmarks.snapshot_truth.frames import SITE, TORCH, PythonFrame
from benchmarks.snapshot_truth.model_shapes import ModelShape, ParamShape
from zprof.model.tenants import Tenant

_MODULE = f"{TORCH}nn/modules/module.py"
_INIT_FILES = {"linear": ("linear", 106), "norm": ("normalization", 188), "embedding": ("sparse", 170)}


@dataclass(eq=False, slots=True)
class SimulatedParameter:
    """A parameter with its block and gradient. ``element_bytes`` is that of the parameter."""

    shape: ParamShape
    element_bytes: int
    is_trained: bool = True
    tensor: Tensor | None = None
    grad: Tensor | None = None
    #: Uses of a tied parameter whose gradient has not arrived yet in this backward.
    uses: int = 1
    arrived: list[Tensor] = field(default_factory=list)

    @property
    def numel(self) -> int:
        return self.shape.numel

    @property
    def bytes(self) -> int:
        return self.numel * self.element_bytes

    @property
    def is_matrix(self) -> bool:
        return len(self.shape.shape) == 2


def build_parameters(
    device: TracedDevice,
    code: Codebase,
    model: ModelShape,
    *,
    element_bytes: int,
    birth: str,
    sub: str = "weight",
) -> list[SimulatedParameter]:
    """Allocate the parameters of a model; ``birth`` is "to", "device", "pretrained" or "deepcopy"."""
    parameters = [SimulatedParameter(shape, element_bytes) for shape in model.params()]
    with device.call(*code.setup):
        for parameter in parameters:
            with device.call(*_birth_frames(code, birth, parameter.shape)):
                parameter.tensor = device.alloc(
                    parameter.bytes, Tenant.PARAMETERS, sub, "_to_copy" if birth == "to" else "empty"
                )
    return parameters


def build_buffers(device: TracedDevice, code: Codebase, model: ModelShape, birth: str) -> list[Tensor]:
    """Allocate the buffers of a model: tables of rotary embeddings, or a causal mask per layer."""
    if model.buffers == "none":
        return []
    shape = ParamShape(name="buffer", shape=(1,), module="buffer", layer=0)
    sizes = [model.seq * model.head_dim * 4] * 2
    if model.buffers == "masks":
        sizes = [model.seq * model.seq] * model.layers
    made = []
    with device.call(*code.setup):
        for size in sizes:
            with device.call(*_birth_frames(code, birth, shape)):
                made.append(device.alloc(size, Tenant.PARAMETERS, "buffer", "_to_copy"))
    return made


def _birth_frames(code: Codebase, birth: str, shape: ParamShape) -> tuple[PythonFrame, ...]:
    if birth == "to":
        depth = 1 if shape.layer < 0 else 3
        applies = tuple(PythonFrame(_MODULE, 930 + 5 * (i < depth), "_apply") for i in range(depth + 1))
        return PythonFrame(_MODULE, 1371, "to"), *applies, PythonFrame(_MODULE, 1357, "convert")
    if birth == "deepcopy":
        copy = "/usr/lib/python3.12/copy.py"
        parameter = PythonFrame(f"{TORCH}nn/parameter.py", 66, "__deepcopy__")
        tree = (PythonFrame(copy, 162, "deepcopy"), PythonFrame(copy, 221, "_deepcopy_dict"))
        return *tree, *tree, PythonFrame(copy, 143, "deepcopy"), parameter
    if birth == "pretrained":
        return (
            PythonFrame(f"{SITE}transformers/modeling_utils.py", 5048, "from_pretrained"),
            PythonFrame(f"{SITE}transformers/modeling_utils.py", 5468, "_load_pretrained_model"),
            PythonFrame(f"{SITE}transformers/modeling_utils.py", 822, "_load_state_dict_into_meta_model"),
        )
    constructors = [PythonFrame(code.model_file, 240, "__init__")]
    if shape.layer >= 0:
        constructors += [
            PythonFrame(code.model_file, 160, "__init__"),
            PythonFrame(code.model_file, 90, "__init__"),
        ]
    if code.has_own_layers or shape.module not in _INIT_FILES:
        return *constructors, PythonFrame(code.own_file, 20, "__init__")
    name, line = _INIT_FILES[shape.module]
    return *constructors, PythonFrame(f"{TORCH}nn/modules/{name}.py", line, "__init__")
