"""Choose the fix for hosts that wait for their device, or launch later than the device could start."""

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.time.host_calls import WaitKind
from zprof.analysis.time.host_time import (
    LINE_REMEDY,
    WaitGroup,
    find_idle_line,
    has_device,
    is_inference,
    list_wait_groups,
)
from zprof.analysis.time.program_lines import name_place
from zprof.causes.fix import ANY, Fix, choose_fix, is_on_cpu
from zprof.model.training import Framework

_FIX = Fix(
    forms={},
    settings={
        (Framework.TRANSFORMERS, ANY): "TrainingArguments(logging_steps=100, logging_nan_inf_filter=False)\n"
        "no .item(), .cpu() or print(tensor) in compute_loss, callbacks and metrics",
        (Framework.LIGHTNING, ANY): 'self.log("loss", loss.detach())  # not loss.item()\n'
        "Trainer(log_every_n_steps=100)",
    },
    general="total += loss.detach()  # instead of loss.item(); print it every 100 steps\n"
    "torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)  # without error_if_nonfinite",
)
_TO_HOST_FIX = "tensor.to('cpu', non_blocking=True) into pinned memory, and read it a step later"
_TO_DEVICE_FIX = "DataLoader(..., pin_memory=True); tensor.to(device, non_blocking=True)"
_SHAPE_FIX = "torch.where(mask, x, 0) instead of x[mask] and nonzero(): their shape has to come to the host"
_SYNC_FIX = "no torch.cuda.synchronize(), event.synchronize() or empty_cache() in the loop"
#: Operators that read one value, and operators whose output shape depends on values.
_READ_OPERATORS = frozenset({"aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal"})
_SHAPE_OPERATORS = frozenset(
    {
        "aten::nonzero",
        "aten::masked_select",
        "aten::index",
        "aten::index_put_",
        "aten::unique_dim",
        "aten::_unique2",
        "aten::repeat_interleave",
    }
)
_TO_DEVICE = frozenset({WaitKind.TO_DEVICE, WaitKind.TO_DEVICE_PINNED, WaitKind.TO_DEVICE_PAGEABLE})
_SYNCS = frozenset({WaitKind.STREAM, WaitKind.EVENT, WaitKind.DEVICE})
_CPU_INFERENCE_FIX = (
    "schedule the next batch while this one runs; check for the end of sequences every few tokens\n"
    "no .item() or .tolist() between two forwards"
)
_INFERENCE_FIX = (
    "choose the next token on the device, and copy it to pinned memory with non_blocking=True\n"
    "schedule the next batch while this one runs; check for the end of sequences every few tokens\n"
    "no .item(), .tolist() or torch.cuda.synchronize() between two forwards"
)


def choose_wait_fix(analysis: RunAnalysis) -> str:
    """Return what to do instead of waiting for the device, or for the collectives of a CPU rank.

    One fix per kind of wait, the costliest first.
    """
    if is_inference(analysis):
        return _CPU_INFERENCE_FIX if is_on_cpu(analysis) else _INFERENCE_FIX
    read_fix = choose_fix(analysis, _FIX)
    if not has_device(analysis):
        return read_fix
    fixes = [_choose_group_fix(group, read_fix) for group in list_wait_groups(analysis)]
    return "\n".join(dict.fromkeys(fixes or [read_fix, _TO_HOST_FIX, _SYNC_FIX]))


def _choose_group_fix(group: WaitGroup, read_fix: str) -> str:
    if group.operator in _SHAPE_OPERATORS:
        return _SHAPE_FIX
    if group.operator in _READ_OPERATORS:
        return read_fix
    if group.kind in _TO_DEVICE:
        return _TO_DEVICE_FIX
    return _SYNC_FIX if group.kind in _SYNCS else _TO_HOST_FIX


_INFERENCE_LAUNCH_FIX = (
    "model = torch.compile(model, mode='reduce-overhead')  # or CUDA graphs of the decoding step\n"
    "larger batches; fewer hooks, and fewer Python statements, in each layer"
)
_CPU_INFERENCE_LAUNCH_FIX = (
    "model = torch.compile(model)  # fewer operators, and less Python between them\n"
    "larger batches; fewer hooks, and fewer Python statements, in each layer"
)


def choose_launch_fix(analysis: RunAnalysis) -> str:
    """Choose the applicable fix: CUDA graphs only on devices, torch.compile only if not in use."""
    if is_inference(analysis):
        return _CPU_INFERENCE_LAUNCH_FIX if is_on_cpu(analysis) else _INFERENCE_LAUNCH_FIX
    is_compiled = bool(analysis.host.bools("is_compiled").any())
    lines = ["optimizer = torch.optim.AdamW(parameters, fused=True)"]
    if has_device(analysis) and is_compiled:
        lines.insert(0, "model = torch.compile(model, mode='reduce-overhead')  # adds CUDA graphs")
    elif has_device(analysis):
        lines.insert(0, "model = torch.compile(model)  # or mode='reduce-overhead': CUDA graphs")
    elif (idle := find_idle_line(analysis)) is None:
        lines.insert(0, "py-spy record --native -- python train.py  # which Python that is")
    else:
        lines.insert(0, f"{name_place(idle.location)} takes {idle.share:.0%} of that time: {LINE_REMEDY}")
    if not has_device(analysis) and not is_compiled:
        lines.append("model = torch.compile(model)  # fewer operators, and less Python between them")
    if is_compiled:
        lines.append("TORCH_LOGS=graph_breaks python train.py  # what runs outside of compiled regions")
    lines.append("larger micro-batches; fewer hooks, and fewer Python statements, in each layer")
    return "\n".join(lines)
