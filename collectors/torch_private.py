"""Wrap the parts of torch that zprof needs and that have no public name: the stacks of dispatch modes and
saved-tensor hooks, the compiler's skip list, the default store, and the methods of ``ProcessGroup`` that
launch a collective.

zprof's modes and hooks are entered below those of the program and removed from there: a window may start or
end within a ``with`` block of the program (``FlopCounterMode()``, ``save_on_cpu()`` around a step), which
pops the top of the stack when it exits. So the upper entries are popped for a moment, with no operator in
between, and pushed back.
"""

from types import CodeType
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

#: Flags that a mode restores when it exits, and their values once zprof's mode is entered (None: unchanged).
_MODE_FLAGS = {
    "old_dispatch_mode_flags": True,
    "old_non_infra_dispatch_mode_flags": True,
    "old_without_ignore_compile_internals_dispatch_mode_flags": None,
}
_torch_c: Any = torch._C
_autograd: Any = torch._C._autograd


def enter_mode_below(mode: TorchDispatchMode) -> None:
    """Enter a dispatch mode below the program's modes on this thread."""
    above = _lift_modes(None)
    mode.__enter__()  # type: ignore[no-untyped-call]
    if above:
        for name, within in _MODE_FLAGS.items():
            kept = getattr(above[-1], name)
            getattr(mode, name)[-1] = kept[0]
            kept[0] = kept[0] if within is None else within
    _put_modes_back(above)


def leave_mode_anywhere(mode: TorchDispatchMode) -> bool:
    """Leave a dispatch mode at any place of this thread's stack. Return False if it is not on the stack."""
    size = torch._C._len_torch_dispatch_stack()
    if not any(torch._C._get_dispatch_stack_at(index) is mode for index in range(size)):
        return False
    above = _lift_modes(mode)
    if not above:
        mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        return True
    entries = sum(1 for other in above if other is above[-1])
    for name in _MODE_FLAGS:  # the next mode restores what this one would have
        getattr(above[-1], name)[-entries] = getattr(mode, name).pop()
    _torch_c._pop_torch_dispatch_stack(None)
    _put_modes_back(above)
    return True


def enter_saving_below(hooks: torch.autograd.graph.saved_tensors_hooks) -> None:
    """Enter saved-tensor hooks below the program's on this thread."""
    above = _lift_hooks(None)
    hooks.__enter__()
    _put_hooks_back(above)


def leave_saving_anywhere(pack: Any) -> bool:
    """Remove saved-tensor hooks from this thread by their pack hook. Return False if not on the stack."""
    if not _autograd._saved_tensors_hooks_is_enabled():
        return False
    above = _lift_hooks(pack)
    found = _autograd._top_saved_tensors_default_hooks(True) is not None
    if found:
        _autograd._pop_saved_tensors_default_hooks()
    _put_hooks_back(above)
    return found


def _lift_modes(until: Any) -> list[Any]:
    """Pop the program's modes above ``until``, top first. torch's own modes lie below all of them."""
    above: list[Any] = []
    while size := torch._C._len_torch_dispatch_stack():
        mode: Any = torch._C._get_dispatch_stack_at(size - 1)
        if mode is until or mode.is_infra_mode():
            break
        above.append(_torch_c._pop_torch_dispatch_stack(None))
    return above


def _put_modes_back(above: list[Any]) -> None:
    for mode in reversed(above):
        _torch_c._push_on_torch_dispatch_stack(mode)


def _lift_hooks(until: Any) -> list[Any]:
    above: list[Any] = []
    while (top := _autograd._top_saved_tensors_default_hooks(True)) is not None and top[0] != until:
        above.append(top)
        _autograd._pop_saved_tensors_default_hooks()
    return above


def _put_hooks_back(above: list[Any]) -> None:
    for hooks in reversed(above):
        _autograd._push_saved_tensors_default_hooks(*hooks)


def skip_in_compiler(code: CodeType) -> bool:
    """Make the compiler skip a function and all that it calls. Return False if this torch has no way to.

    Equivalent to torch's own wrapper, but saves half a microsecond per call and does not import the whole
    compiler into programs that compile nothing.
    """
    try:
        frames: Any = torch._C._dynamo.eval_frame
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(code, frames._FrameExecStrategy(skip, skip))
    except (AttributeError, TypeError):
        return False
    return True


def default_store() -> Any:
    """Return the store of the default process group."""
    return dist.distributed_c10d._get_default_store()


#: Methods of ``ProcessGroup`` that return a work object, without ``barrier``, which has no tensors.
COLLECTIVE_METHODS = (
    "_allgather_base",
    "_reduce_scatter_base",
    "all_gather_single",
    "reduce_scatter_single",
    "all_gather_single_coalesced",
    "reduce_scatter_single_coalesced",
    "all_to_all_single",
    "allgather",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "allreduce",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor_coalesced",
    "scatter",
)
