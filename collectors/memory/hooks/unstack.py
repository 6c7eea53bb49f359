"""Puts a mode or hooks of ours on this thread below those of the program, and takes them off from there.

A window may begin or end within a ``with`` block of the program (``FlopCounterMode()``, ``save_on_cpu()``
around a step), which at its end takes off what is on top.  So what is on top is lifted for the moment, with
no operator in between, and lies on top again.
"""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

#: What each mode puts back when it is left, and what is so once ours is entered (None: as before).
_BEFORE = {
    "old_dispatch_mode_flags": True,
    "old_non_infra_dispatch_mode_flags": True,
    "old_without_ignore_compile_internals_dispatch_mode_flags": None,
}
_stack: Any = torch._C
_autograd: Any = torch._C._autograd


def enter_mode(mode: TorchDispatchMode) -> None:
    """Enter a mode below the program's on this thread."""
    above = _lifted(None)
    mode.__enter__()  # type: ignore[no-untyped-call]
    if above:
        for name, within in _BEFORE.items():
            kept = getattr(above[-1], name)
            getattr(mode, name)[-1] = kept[0]
            kept[0] = kept[0] if within is None else within
    _put_back(above)


def leave_mode(mode: TorchDispatchMode) -> bool:
    """Leave a dispatch mode, wherever it lies on this thread's stack; false where it is not on it."""
    size = torch._C._len_torch_dispatch_stack()
    if not any(torch._C._get_dispatch_stack_at(index) is mode for index in range(size)):
        return False
    above = _lifted(mode)
    if not above:
        mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        return True
    entries = sum(1 for other in above if other is above[-1])
    for name in _BEFORE:  # the next one puts back what ours would have
        getattr(above[-1], name)[-entries] = getattr(mode, name).pop()
    _stack._pop_torch_dispatch_stack(None)
    _put_back(above)
    return True


def enter_saving(hooks: torch.autograd.graph.saved_tensors_hooks) -> None:
    """Enter saved-tensor hooks below the program's on this thread."""
    above = _lifted_hooks(None)
    hooks.__enter__()
    _put_back_hooks(above)


def leave_saving(pack: Any) -> bool:
    """Take saved-tensor hooks off this thread by their pack hook; false where they are not on it."""
    if not _autograd._saved_tensors_hooks_is_enabled():
        return False
    above = _lifted_hooks(pack)
    found = _autograd._top_saved_tensors_default_hooks(True) is not None
    if found:
        _autograd._pop_saved_tensors_default_hooks()
    _put_back_hooks(above)
    return found


def _lifted(until: Any) -> list[Any]:
    """The program's modes down to one, the upper first; torch's own lie below all of them."""
    above: list[Any] = []
    while size := torch._C._len_torch_dispatch_stack():
        mode: Any = torch._C._get_dispatch_stack_at(size - 1)
        if mode is until or mode.is_infra_mode():
            break
        above.append(_stack._pop_torch_dispatch_stack(None))
    return above


def _put_back(above: list[Any]) -> None:
    for mode in reversed(above):
        _stack._push_on_torch_dispatch_stack(mode)


def _lifted_hooks(until: Any) -> list[Any]:
    above: list[Any] = []
    while (top := _autograd._top_saved_tensors_default_hooks(True)) is not None and top[0] != until:
        above.append(top)
        _autograd._pop_saved_tensors_default_hooks()
    return above


def _put_back_hooks(above: list[Any]) -> None:
    for hooks in reversed(above):
        _autograd._push_saved_tensors_default_hooks(*hooks)
