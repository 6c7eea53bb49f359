"""Optimizers: the state that they make in their constructor or first step, and what a step allocates."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.snapshot_truth.codebase import Codebase
from benchmarks.snapshot_truth.device import Tensor, TracedDevice
from benchmarks.snapshot_truth.frames import SITE, TORCH, PythonFrame
from benchmarks.snapshot_truth.parameters import SimulatedParameter
from zprof.model.tenants import Tenant

STATE = Tenant.OPTIMIZER_STATE
TEMPORARY = Tenant.TEMPORARY_BUFFERS
WRAPPER = PythonFrame(f"{TORCH}optim/optimizer.py", 517, "wrapper")
_USE_GRAD = PythonFrame(f"{TORCH}optim/optimizer.py", 82, "_use_grad")
#: A function under ``torch.no_grad()``.
NO_GRAD = PythonFrame(f"{TORCH}utils/_contextlib.py", 120, "decorate_context")
_MIN_8BIT = 4096
_BLOCK_8BIT = 256

Parameters = Sequence[SimulatedParameter]


class StateStore:
    """The state of an optimizer: tensors by parameter, made when they are first needed."""

    def __init__(self, device: TracedDevice) -> None:
        self.device = device
        self.by_parameter: dict[SimulatedParameter, list[Tensor]] = {}

    def make(
        self,
        parameter: SimulatedParameter,
        sizes: Sequence[int],
        op: str = "zeros_like",
        line: int | None = None,
        also: tuple[Tenant, ...] = (),
    ) -> None:
        """Make the state of a parameter, unless it has one."""
        if parameter not in self.by_parameter:
            self.by_parameter[parameter] = [
                self.device.alloc(
                    size, STATE, "state", op, line=None if line is None else line + 4 * i, also=also
                )
                for i, size in enumerate(sizes)
            ]

    def use(self, size: int, op: str, line: int | None = None) -> Tensor:
        """Allocate a temporary of a step."""
        return self.device.alloc(size, TEMPORARY, "optimizer_temp", op, line=line)


Update = Callable[[StateStore, Parameters], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerRule:
    """One kind of optimizer: its class, the frames of its step inside torch's wrapper, and the update."""

    class_name: str
    frames: tuple[PythonFrame, ...]
    update: Update


def update_adam(kind: str) -> Update:
    """Return torch's Adam: foreach, single or fused."""

    def update(store: StateStore, parameters: Parameters) -> None:
        device = store.device
        file = f"{TORCH}optim/adam.py"
        with device.call(PythonFrame(file, 162, "_init_group")):
            for each in parameters:
                moments = [each.bytes] * 2
                store.make(each, [4, *moments] if kind == "fused" else moments, line=174)
        function = {"foreach": "_multi_tensor_adam", "single": "_single_tensor_adam", "fused": "_fused_adam"}
        outer = (
            PythonFrame(f"{TORCH}optim/optimizer.py", 150, "maybe_fallback"),
            PythonFrame(file, 969, "adam"),
            PythonFrame(file, 780, function[kind]),
        )
        with device.call(*outer):
            if kind == "foreach":
                for denominator in [store.use(each.bytes, "_foreach_sqrt", 768) for each in parameters]:
                    device.drop(denominator)
            elif kind == "single":
                for each in parameters:
                    root = store.use(each.bytes, "sqrt", 539)
                    denominator = store.use(each.bytes, "div", 539)
                    device.drop(root)
                    device.drop(denominator)

    return update


def update_by_hand(file: str, *, rebinds_parameters: bool, line: int = 40) -> Update:
    """Return an AdamW that makes new tensors for both moments, and perhaps for the parameters, each step."""

    def update(store: StateStore, parameters: Parameters) -> None:
        device = store.device
        for each in parameters:
            # The zeros of the first step are replaced in the same step: state only in name.
            store.make(each, [each.bytes] * 2, line=line, also=(TEMPORARY,))
            moments = store.by_parameter[each]
            for number in range(2):
                at = line + 10 + number
                decayed = store.use(each.bytes, "mul", at)
                parts = [store.use(each.bytes, op, at) for op in (("pow", "mul") if number else ("mul",))]
                new = device.alloc(each.bytes, STATE, "state", "add", line=at)
                for part in (decayed, *parts, moments[number]):
                    device.drop(part)
                moments[number] = new
            parts = [store.use(each.bytes, op, line + 15) for op in ("sqrt", "add", "div", "mul")]
            if rebinds_parameters and each.tensor is not None:
                old, each.tensor = (
                    each.tensor,
                    device.alloc(each.bytes, Tenant.PARAMETERS, old_sub(each.tensor), "sub", line=line + 16),
                )
                device.drop(old)
            for part in parts:
                device.drop(part)

    return update


def old_sub(tensor: Tensor) -> str:
    """Return the sub of a tensor that is replaced."""
    return tensor.lifetime.sub


def update_sgd(momentum: bool, foreach: bool) -> Update:
    """Return torch's SGD; the momentum is a clone of the first gradient."""

    def update(store: StateStore, parameters: Parameters) -> None:
        function, line = ("_multi_tensor_sgd", 454) if foreach else ("_single_tensor_sgd", 361)
        file = f"{TORCH}optim/sgd.py"
        with store.device.call(PythonFrame(file, 312, "sgd"), PythonFrame(file, line, function)):
            for each in parameters if momentum else ():
                store.make(each, [each.bytes], "clone")

    return update


def update_8bit() -> Update:
    """Return bitsandbytes' AdamW8bit: moments of a byte with a scale per block; small ones in fp32."""
    file = f"{SITE}bitsandbytes/optim/optimizer.py"

    def update(store: StateStore, parameters: Parameters) -> None:
        device = store.device
        for each in parameters:
            with device.call(PythonFrame(file, 468, "init_state")):
                if each.numel < _MIN_8BIT:
                    store.make(each, [each.numel * 4] * 2)
                else:
                    blocks = -(-each.numel // _BLOCK_8BIT) * 4
                    qmap = [] if store.by_parameter else [1024, 1024]
                    store.make(each, [*qmap, each.numel, blocks, each.numel, blocks])

    return update


def update_adafactor(is_torch: bool, file: str) -> Update:
    """Return Adafactor: a row and a column of second moments for matrices."""

    def update(store: StateStore, parameters: Parameters) -> None:
        device = store.device
        for each in parameters:
            shape = each.shape.shape
            sizes = [shape[0] * 4, shape[1] * 4] if each.is_matrix else [each.numel * 4]
            if is_torch:
                with device.call(PythonFrame(file, 104, "_init_group")):
                    store.make(each, sizes, "new_zeros")
            else:
                store.make(each, sizes, "zeros", 720)
            temporaries = [store.use(each.numel * 4, op, 740) for op in ("pow", "mul", "rsqrt")]
            for temporary in temporaries:
                device.drop(temporary)

    return update


def update_muon(file: str, is_torch: bool) -> Update:
    """Return Muon: one momentum for matrices, whose update is orthogonalized in bf16; Adam for the rest."""

    def update(store: StateStore, parameters: Parameters) -> None:
        device = store.device
        for each in parameters:
            is_hidden = each.is_matrix and each.shape.module == "linear" and each.shape.layer >= 0
            init = (PythonFrame(file, 157, "_init_group"),) if is_torch else ()
            with device.call(*init):
                store.make(each, [each.numel * 4] * (1 if is_hidden else 2), line=157)
            if not is_hidden:
                device.drop(store.use(each.numel * 4, "sqrt", 220))
                continue
            with device.call(PythonFrame(file, 50, "_zeropower_via_newtonschulz")):
                rows = min(each.shape.shape)
                orthogonal = store.use(each.numel * 2, "_to_copy", 50)
                for _ in range(2):
                    gram = [store.use(rows * rows * 2, op, 60) for op in ("mm", "addmm")]
                    following = store.use(each.numel * 2, "addmm", 62)
                    for tensor in (*gram, orthogonal):
                        device.drop(tensor)
                    orthogonal = following
            device.drop(orthogonal)

    return update


def list_rules(code: Codebase) -> dict[str, OptimizerRule]:
    """Return the optimizers by name; those of the user are in a file of the user's program."""
    own_file = code.own_module("optimizer.py")
    adam, sgd = f"{TORCH}optim/adam.py", f"{TORCH}optim/sgd.py"
    factor, muon = f"{TORCH}optim/_adafactor.py", f"{TORCH}optim/_muon.py"
    hf, bnb = f"{SITE}transformers/optimization.py", f"{SITE}bitsandbytes/optim/optimizer.py"

    def rule(name: str, file: str, line: int, update: Update, *, is_torch: bool = True) -> OptimizerRule:
        inner = (_USE_GRAD,) if is_torch else ()
        return OptimizerRule(class_name=name, frames=(*inner, PythonFrame(file, line, "step")), update=update)

    return {
        "adamw_foreach": rule("AdamW", adam, 247, update_adam("foreach")),
        "adamw_single": rule("AdamW", adam, 247, update_adam("single")),
        "adamw_fused": rule("AdamW", adam, 247, update_adam("fused")),
        "handwritten": rule(
            "MyAdam", own_file, 44, update_by_hand(own_file, rebinds_parameters=False), is_torch=False
        ),
        "handwritten_rebind": rule(
            "AdamW", own_file, 44, update_by_hand(own_file, rebinds_parameters=True), is_torch=False
        ),
        "sgd": rule("SGD", sgd, 133, update_sgd(momentum=False, foreach=True)),
        "sgd_momentum": rule("SGD", sgd, 133, update_sgd(momentum=True, foreach=True)),
        "sgd_momentum_single": rule("SGD", sgd, 133, update_sgd(momentum=True, foreach=False)),
        "adamw_8bit": OptimizerRule(
            class_name="AdamW8bit", frames=(NO_GRAD, PythonFrame(bnb, 292, "step")), update=update_8bit()
        ),
        "adafactor_torch": rule("Adafactor", factor, 136, update_adafactor(True, factor)),
        "adafactor_hf": OptimizerRule(
            class_name="Adafactor",
            frames=(NO_GRAD, PythonFrame(hf, 712, "step")),
            update=update_adafactor(False, hf),
        ),
        "muon_torch": rule("Muon", muon, 180, update_muon(muon, True)),
        "muon_own": OptimizerRule(
            class_name="Muon",
            frames=(NO_GRAD, PythonFrame(own_file, 91, "step")),
            update=update_muon(own_file, False),
        ),
    }
