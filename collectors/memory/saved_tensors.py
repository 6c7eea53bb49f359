"""Record what autograd saves for the backward pass: each saved tensor is an activation, and so is what the
program's own pack hooks keep (save_on_cpu, ZeRO's partitioned checkpoints).

A tensor saved under saved-tensor hooks is unpacked as a new tensor, even if it is a parameter. A custom
autograd function may read attributes that the program keeps on its parameters (``weight.main_grad``), so it
gets the original back.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from zprof.collectors.memory.phases import PhaseTracker
from zprof.collectors.torch_private import (
    SAVED_TENSORS,
    SavingFunctions,
    enter_saving_below,
    get_saving_functions,
    leave_saving_anywhere,
    set_saving_functions,
    skip_in_compiler,
    top_saving_hooks,
)
from zprof.model.training import Phase

AnyPack = Callable[[Any], Any]


class PackWatch:
    """Tracks whether a pack hook of the program is running."""

    def __init__(self, phases: PhaseTracker) -> None:
        self._phases = phases
        #: Pack hooks that run now; if above 0, what operators return is kept for the backward.
        self.depth = 0

    def watched(self, pack: AnyPack, kept: Callable[[Any], None]) -> AnyPack:
        """Return the hook wrapped to be tracked; ``kept`` gets what it returned."""

        def watched_pack(tensor: Any) -> Any:
            if self._phases.phase is Phase.RECOMPUTE:  # short-lived, like all that is recomputed
                return pack(tensor)
            self.depth += 1
            try:
                packed = pack(tensor)
            finally:
                self.depth -= 1
            kept(packed)
            return packed

        return watched_pack


#: What autograd keeps: the tensor without its graph, and its version (None: not checked).
PackedTensor = tuple[torch.Tensor, int | None]
Pack = Callable[[torch.Tensor], PackedTensor]


class SavedTensors:
    """Installs a pack hook on this thread, and removes it where torch or a collective cannot work with it.

    torch.func (grad, vjp, jacrev) forbids saved-tensor hooks while it runs, and raises if there are any.
    """

    def __init__(
        self, pack: Pack, watched: Callable[[AnyPack], AnyPack], missed: Callable[[Exception], None]
    ) -> None:
        """Create the hooks, not installed yet.

        ``watched`` gets each pack hook that the program installs on top; its result replaces the hook.
        ``missed`` gets the error that keeps custom functions from getting their own parameters back.
        """
        self._pack = pack
        self._watched = watched
        self._hooks = torch.autograd.graph.saved_tensors_hooks(pack, unpack_saved)
        self._saved_originals = SavedOriginals(unpack_saved, missed)
        self._suspended: set[int] = set()
        self._originals: SavingFunctions | None = None

    def install(self) -> None:
        """Hook autograd on this thread."""
        enter_saving_below(self._hooks)
        self._wrap_switch()
        self._saved_originals.install()

    def remove(self) -> bool:
        """Remove all hooks. Return False if zprof's are not on this thread, or cannot be removed."""
        self._suspended.clear()
        self._saved_originals.remove()
        if self._originals is not None:
            set_saving_functions(self._originals)
            self._originals = None
        return leave_saving_anywhere(self._pack)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Suspend zprof's hooks on this thread, if no others are on top of them."""
        on_top = self._is_on_top()
        if on_top:
            self._hooks.__exit__()
        try:
            yield
        finally:
            if on_top:
                self._hooks.__enter__()

    def _is_on_top(self) -> bool:
        top = top_saving_hooks()
        return top is not None and top[0] == self._pack

    def _wrap_switch(self) -> None:
        originals = get_saving_functions()

        def disable_without_ours(message: str, fail_if_non_empty: bool = True) -> None:
            # Compiled code passes False: that forbids new hooks only, and those in place stay active.
            if fail_if_non_empty and self._originals is not None and self._is_on_top():
                self._hooks.__exit__()
                self._suspended.add(threading.get_ident())
            originals.disable(message, fail_if_non_empty)

        def enable_with_ours() -> None:
            originals.enable()
            if threading.get_ident() in self._suspended:
                self._suspended.discard(threading.get_ident())
                self._hooks.__enter__()

        def push_watched(pack: AnyPack, unpack: Callable[[Any], Any]) -> None:
            originals.push(pack if pack == self._pack else self._watched(pack), unpack)

        self._originals = originals
        set_saving_functions(SavingFunctions(disable_without_ours, enable_with_ours, push_watched))


def unpack_saved(packed: PackedTensor) -> torch.Tensor:
    """Return the tensor, after the check for in-place changes, which autograd skips if there are hooks."""
    tensor, version = packed
    if version is not None and tensor._version != version:  # detach() shares the counter
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"[{tensor.type()} {list(tensor.shape)}] is at version {tensor._version}; expected version "
            f"{version} instead. Hint: enable anomaly detection to find the operation that failed to compute "
            "its gradient, with torch.autograd.set_detect_anomaly(True)."
        )
    return tensor


skip_in_compiler(unpack_saved.__code__)


_is_compiling = torch.compiler.is_compiling
_NAME = "saved_tensors"


class SavedOriginals:
    """Replaces ``ctx.saved_tensors`` while installed."""

    def __init__(self, unpack: Callable[..., torch.Tensor], missed: Callable[[Exception], None]) -> None:
        """Create the replacement, not installed yet.

        ``unpack`` is the unpack hook of the tensors whose originals are known. ``missed`` gets the error if
        this torch does not expose what a context keeps.
        """
        self._unpack, self._missed = unpack, missed
        self._patch: Any = None

    def install(self) -> None:
        """Set the property on the class that all contexts share; its base has torch's own."""
        if _NAME in BackwardCFunction.__dict__:  # already patched by another library
            return

        def saved_tensors(context: Any) -> Any:
            found = SAVED_TENSORS.__get__(context)
            return found if _is_compiling() or not found else self._originals(context, found)

        self._patch = property(saved_tensors)
        setattr(BackwardCFunction, _NAME, self._patch)

    def remove(self) -> None:
        """Remove the property."""
        if self._patch is not None and BackwardCFunction.__dict__.get(_NAME) is self._patch:
            delattr(BackwardCFunction, _NAME)
        self._patch = None

    def _originals(self, context: Any, found: tuple[torch.Tensor | None, ...]) -> Any:
        try:
            saved = context._raw_saved_tensors
            return tuple(
                tensor if tensor is None or not tensor.requires_grad else self._original(kept, tensor)
                for kept, tensor in zip(saved, found, strict=True)
            )
        except Exception as error:  # this torch does not expose what it keeps: return the unpacked tensors
            self._missed(error)
            return found

    def _original(self, kept: Any, tensor: torch.Tensor) -> torch.Tensor:
        if kept.unpack_hook is not self._unpack:
            return tensor
        original: torch.Tensor = kept.data[0]
        return original if original.requires_grad else tensor  # a detached tensor is not the original
