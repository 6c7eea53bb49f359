"""Record the tensors that autograd saves for the backward pass: each is an activation, and so are the results
of the program's own pack hooks (save_on_cpu, ZeRO's partitioned checkpoints).

A tensor saved under saved-tensor hooks is unpacked as a new tensor, even if it is a parameter. A custom
autograd function may read attributes that the program stores on its parameters (``weight.main_grad``), so it
gets the original tensor back.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from zprof.collectors.record.memory.phases import PhaseTracker
from zprof.collectors.record.torch_private import (
    SAVED_TENSORS,
    SavingFunctions,
    enter_saved_tensor_hooks,
    get_innermost_saving_hooks,
    get_saving_functions,
    remove_saved_tensor_hooks,
    set_saving_functions,
    skip_in_compiler,
)
from zprof.model.training import Phase

AnyPack = Callable[[Any], Any]


class PackHookTracker:
    """Track whether a pack hook of the program is running."""

    def __init__(self, phases: PhaseTracker) -> None:
        self._phases = phases
        #: Number of running pack hooks; if above 0, results of operators are kept for the backward pass.
        self.depth = 0

    def wrap(self, pack: AnyPack, on_packed: Callable[[Any], None]) -> AnyPack:
        """Return the hook wrapped for tracking; ``on_packed`` gets its result."""

        def tracked_pack(tensor: Any) -> Any:
            if self._phases.phase is Phase.RECOMPUTE:  # short-lived, like everything that is recomputed
                return pack(tensor)
            self.depth += 1
            try:
                packed = pack(tensor)
            finally:
                self.depth -= 1
            on_packed(packed)
            return packed

        return tracked_pack


#: What autograd saves: the tensor without its graph, and its version (None: not checked).
PackedTensor = tuple[torch.Tensor, int | None]
Pack = Callable[[torch.Tensor], PackedTensor]


class SavedTensors:
    """Install a pack hook on this thread, and remove it where torch or a collective cannot work with it.

    torch.func (grad, vjp, jacrev) forbids saved-tensor hooks while it runs, and raises if there are any.
    """

    def __init__(
        self, pack: Pack, wrap: Callable[[AnyPack], AnyPack], on_error: Callable[[Exception], None]
    ) -> None:
        """Create the hooks, not installed yet.

        ``wrap`` gets each pack hook that the program installs inside zprof's; its result replaces the hook.
        ``on_error`` gets the error if custom functions cannot get their own parameters back.
        """
        self._pack = pack
        self._wrap_pack_hook = wrap
        self._hooks = torch.autograd.graph.saved_tensors_hooks(pack, unpack_saved)
        self._saved_originals = SavedOriginals(unpack_saved, on_error)
        self._suspended: set[int] = set()
        self._originals: SavingFunctions | None = None

    def install(self) -> None:
        """Hook autograd on this thread."""
        enter_saved_tensor_hooks(self._hooks)
        self._wrap_saving_functions()
        self._saved_originals.install()

    def remove(self) -> bool:
        """Remove all hooks. Return False if zprof's hooks are not on this thread, or cannot be removed."""
        self._suspended.clear()
        self._saved_originals.remove()
        if self._originals is not None:
            set_saving_functions(self._originals)
            self._originals = None
        return remove_saved_tensor_hooks(self._pack)

    @contextmanager
    def suspend(self) -> Iterator[None]:
        """Suspend zprof's hooks on this thread, if they are the innermost ones."""
        is_innermost = self._is_innermost()
        if is_innermost:
            self._hooks.__exit__()
        try:
            yield
        finally:
            if is_innermost:
                self._hooks.__enter__()

    def _is_innermost(self) -> bool:
        top = get_innermost_saving_hooks()
        return top is not None and top[0] == self._pack

    def _wrap_saving_functions(self) -> None:
        originals = get_saving_functions()

        def disable_without_own_hooks(message: str, fail_if_non_empty: bool = True) -> None:
            # Compiled code passes False: that forbids new hooks only, and installed hooks stay active.
            if fail_if_non_empty and self._originals is not None and self._is_innermost():
                self._hooks.__exit__()
                self._suspended.add(threading.get_ident())
            originals.disable(message, fail_if_non_empty)

        def enable_with_own_hooks() -> None:
            originals.enable()
            if threading.get_ident() in self._suspended:
                self._suspended.discard(threading.get_ident())
                self._hooks.__enter__()

        def push_wrapped(pack: AnyPack, unpack: Callable[[Any], Any]) -> None:
            originals.push(pack if pack == self._pack else self._wrap_pack_hook(pack), unpack)

        self._originals = originals
        set_saving_functions(SavingFunctions(disable_without_own_hooks, enable_with_own_hooks, push_wrapped))


def unpack_saved(packed: PackedTensor) -> torch.Tensor:
    """Return the tensor, after checking for in-place changes, which autograd skips if hooks are installed."""
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
_PROPERTY_NAME = "saved_tensors"


class SavedOriginals:
    """Replace ``ctx.saved_tensors`` while installed."""

    def __init__(self, unpack: Callable[..., torch.Tensor], on_error: Callable[[Exception], None]) -> None:
        """Create the replacement, not installed yet.

        ``unpack`` is the unpack hook of the tensors whose originals are known. ``on_error`` gets the error if
        this torch does not expose the raw saved tensors of a context.
        """
        self._unpack, self._on_error = unpack, on_error
        self._patch: Any = None

    def install(self) -> None:
        """Set the property on the class that all contexts share; its base has torch's own."""
        if _PROPERTY_NAME in BackwardCFunction.__dict__:  # already patched by another library
            return

        def saved_tensors(context: Any) -> Any:
            unpacked = SAVED_TENSORS.__get__(context)
            return unpacked if _is_compiling() or not unpacked else self._originals(context, unpacked)

        self._patch = property(saved_tensors)
        setattr(BackwardCFunction, _PROPERTY_NAME, self._patch)

    def remove(self) -> None:
        """Remove the property."""
        if self._patch is not None and BackwardCFunction.__dict__.get(_PROPERTY_NAME) is self._patch:
            delattr(BackwardCFunction, _PROPERTY_NAME)
        self._patch = None

    def _originals(self, context: Any, unpacked: tuple[torch.Tensor | None, ...]) -> Any:
        try:
            saved = context._raw_saved_tensors
            return tuple(
                tensor if tensor is None or not tensor.requires_grad else self._original(raw, tensor)
                for raw, tensor in zip(saved, unpacked, strict=True)
            )
        except Exception as error:  # this torch does not expose them: return the unpacked tensors
            self._on_error(error)
            return unpacked

    def _original(self, raw: Any, tensor: torch.Tensor) -> torch.Tensor:
        if raw.unpack_hook is not self._unpack:
            return tensor
        original: torch.Tensor = raw.data[0]
        return original if original.requires_grad else tensor  # a detached tensor is not the original
