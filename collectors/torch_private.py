"""Wrap what zprof takes from torch without a public name: the dispatch-mode and saved-tensor-hook stacks,
the compiler's skip list, the default store, and the methods of ``ProcessGroup`` that launch a
collective.

Modes and hooks of ours are entered below those of the program and taken off from there: a window may
start or end within a ``with`` block of the program (``FlopCounterMode()``, ``save_on_cpu()`` around a
step), which at its end takes off what is on top.  So what is on top is lifted for a moment, with no
operator in between, and put back.
"""

from types import CodeType
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

#: What each mode puts back when it is left, and what is so once ours is entered (None: as before).
_MODE_FLAGS = {
    "old_dispatch_mode_flags": True,
    "old_non_infra_dispatch_mode_flags": True,
    "old_without_ignore_compile_internals_dispatch_mode_flags": None,
}
_torch_c: Any = torch._C
_autograd: Any = torch._C._autograd


def enter_mode_below(mode: TorchDispatchMode) -> None:
    """Enter a mode below the program's on this thread."""
    above = _lift_modes(None)
    mode.__enter__()  # type: ignore[no-untyped-call]
    if above:
        for name, within in _MODE_FLAGS.items():
            kept = getattr(above[-1], name)
            getattr(mode, name)[-1] = kept[0]
            kept[0] = kept[0] if within is None else within
    _put_modes_back(above)


def leave_mode_anywhere(mode: TorchDispatchMode) -> bool:
    """Leave a dispatch mode, wherever it lies on this thread's stack; false where it is not on it."""
    size = torch._C._len_torch_dispatch_stack()
    if not any(torch._C._get_dispatch_stack_at(index) is mode for index in range(size)):
        return False
    above = _lift_modes(mode)
    if not above:
        mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        return True
    entries = sum(1 for other in above if other is above[-1])
    for name in _MODE_FLAGS:  # the next one puts back what ours would have
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
    """Take saved-tensor hooks off this thread by their pack hook; false where they are not on it."""
    if not _autograd._saved_tensors_hooks_is_enabled():
        return False
    above = _lift_hooks(pack)
    found = _autograd._top_saved_tensors_default_hooks(True) is not None
    if found:
        _autograd._pop_saved_tensors_default_hooks()
    _put_hooks_back(above)
    return found


def _lift_modes(until: Any) -> list[Any]:
    """The program's modes down to one, the upper first; torch's own lie below all of them."""
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
    """Have the compiler skip a function and all that it calls; false where this torch cannot be told so.

    The same as torch's own wrapper for it, without half a microsecond for each call, and without an import
    of the whole compiler in programs that compile nothing.
    """
    try:
        frames: Any = torch._C._dynamo.eval_frame
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(code, frames._FrameExecStrategy(skip, skip))
    except (AttributeError, TypeError):
        return False
    return True


def default_store() -> Any:
    """That of the default process group; torch has no public name for it."""
    return dist.distributed_c10d._get_default_store()


#: Those of ``ProcessGroup`` that return a work object.  ``barrier`` has no tensors, and is not among them.
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
