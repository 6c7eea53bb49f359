"""Wrap all private names of torch that zprof's collectors use; no other collector uses one.

Changes of these names in new torch versions are handled here.

zprof's modes and hooks are entered below those of the program and removed from there: a window may start or
end within a ``with`` block of the program (``FlopCounterMode()``, ``save_on_cpu()`` around a step), which
pops the top of the stack when it exits. The upper entries are therefore popped briefly, with no operator in
between, and pushed back.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import CodeType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch._ops import HigherOrderOperator as HigherOrderOperator
from torch._subclasses import FakeTensor as FakeTensor
from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor as FunctionalTensor
from torch.autograd import profiler as autograd_profiler
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode

#: Flags that a mode restores when it exits, and their values once zprof's mode is entered (None: unchanged).
_MODE_FLAGS = {
    "old_dispatch_mode_flags": True,
    "old_non_infra_dispatch_mode_flags": True,
    "old_without_ignore_compile_internals_dispatch_mode_flags": None,
}
_torch_c: Any = torch._C
_autograd: Any = torch._C._autograd
_profiler: Any = torch._C._profiler

#: Return the number of the backward pass that runs on this thread; -1 outside a backward pass.
current_graph_task_id: Callable[[], int] = torch._C._current_graph_task_id
#: Return the node of the backward pass that runs on this thread.
current_autograd_node: Callable[[], Any] = _torch_c._current_autograd_node
#: Return the sequence number of the next node of the forward.
next_sequence_number: Callable[[], int] = _autograd._get_sequence_nr
#: Gather the stack of this thread; ``symbolize_stacks`` resolves gathered stacks to frames.
gather_stack: Callable[..., Any] = _profiler.gather_traceback
symbolize_stacks: Callable[[Sequence[Any]], list[Any]] = _profiler.symbolize_tracebacks
DisableTorchDispatch: Any = _torch_c._DisableTorchDispatch
#: ``__torch_dispatch__`` of a class that does not dispatch.
NO_DISPATCH: Any = _torch_c._disabled_torch_dispatch_impl
#: Descriptor of ``ctx.saved_tensors`` in backward functions.
SAVED_TENSORS: Any = _torch_c._FunctionBase.saved_tensors
#: Tag of allocations among the profiler's events.
ALLOCATION_EVENT: Any = _profiler._EventType.Allocation
#: Methods of ``torch.autograd.profiler.profile`` that prepare and start a session.
PREPARE_TRACE, START_TRACE = "_prepare_trace", "_start_trace"
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
#: Method of ``torch.amp.GradScaler`` that calls the optimizer, or skips it if gradients have overflowed.
SCALED_STEP = "_maybe_opt_step"


def enter_mode_below(mode: TorchDispatchMode) -> None:
    """Enter a dispatch mode below the program's modes on this thread."""
    lifted = _lift_modes(None)
    mode.__enter__()  # type: ignore[no-untyped-call]
    if lifted:
        for name, entered_value in _MODE_FLAGS.items():
            flags = getattr(lifted[-1], name)
            getattr(mode, name)[-1] = flags[0]
            flags[0] = flags[0] if entered_value is None else entered_value
    _restore_modes(lifted)


def remove_mode(mode: TorchDispatchMode) -> bool:
    """Remove a dispatch mode at any position in this thread's stack. Return False if it is not on
    the stack.
    """
    size = torch._C._len_torch_dispatch_stack()
    if not any(torch._C._get_dispatch_stack_at(index) is mode for index in range(size)):
        return False
    lifted = _lift_modes(mode)
    if not lifted:
        mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        return True
    entries = sum(1 for other in lifted if other is lifted[-1])
    for name in _MODE_FLAGS:  # the next mode restores the flags that this one would have restored
        getattr(lifted[-1], name)[-entries] = getattr(mode, name).pop()
    _torch_c._pop_torch_dispatch_stack(None)
    _restore_modes(lifted)
    return True


def enter_saved_tensor_hooks(hooks: torch.autograd.graph.saved_tensors_hooks) -> None:
    """Enter saved-tensor hooks below the program's on this thread."""
    lifted = _lift_hooks(None)
    hooks.__enter__()
    _restore_hooks(lifted)


def remove_saved_tensor_hooks(pack: Any) -> bool:
    """Remove saved-tensor hooks from this thread by their pack hook. Return False if not on the stack."""
    if not _autograd._saved_tensors_hooks_is_enabled():
        return False
    lifted = _lift_hooks(pack)
    is_present = _autograd._top_saved_tensors_default_hooks(True) is not None
    if is_present:
        _autograd._pop_saved_tensors_default_hooks()
    _restore_hooks(lifted)
    return is_present


class SavingFunctions(NamedTuple):
    """torch's functions that disable, enable and push saved-tensor hooks."""

    disable: Callable[..., None]
    enable: Callable[[], None]
    push: Callable[[Any, Any], None]


def get_innermost_saving_hooks() -> tuple[Any, Any] | None:
    """Return the innermost pack and unpack hook of this thread."""
    return _autograd._top_saved_tensors_default_hooks(True)


def get_saving_functions() -> SavingFunctions:
    """Return the functions in use."""
    return SavingFunctions(
        _autograd._saved_tensors_hooks_disable,
        _autograd._saved_tensors_hooks_enable,
        _autograd._push_saved_tensors_default_hooks,
    )


def set_saving_functions(functions: SavingFunctions) -> None:
    """Replace the functions, or restore them."""
    _autograd._saved_tensors_hooks_disable = functions.disable
    _autograd._saved_tensors_hooks_enable = functions.enable
    _autograd._push_saved_tensors_default_hooks = functions.push


def is_outside_modes() -> bool:
    """Return True if no dispatch mode or saved-tensor hook is active on this thread."""
    return torch._C._len_torch_dispatch_stack() == 0 and get_innermost_saving_hooks() is None


def get_run_backward() -> Callable[..., Any]:
    """Return the function through which ``backward()`` and ``grad()`` run."""
    run: Callable[..., Any] = torch.autograd._engine_run_backward  # type: ignore[attr-defined]
    return run


def set_run_backward(run: Callable[..., Any]) -> None:
    """Replace the function through which ``backward()`` and ``grad()`` run."""
    setattr(torch.autograd, "_engine_run_backward", run)  # noqa: B010, mypy does not know the name


def process_group_class() -> Any:
    """Return torch's ``ProcessGroup``; None if torch was built without distributed."""
    return getattr(getattr(torch._C, "_distributed_c10d", None), "ProcessGroup", None)


def work_class() -> Any:
    """Return torch's ``Work``; None if torch was built without distributed."""
    return getattr(getattr(torch._C, "_distributed_c10d", None), "Work", None)


def make_fake_store() -> Any:
    """Return a store for the backend "fake", whose collectives transfer no data."""
    from torch.testing._internal.distributed.fake_pg import FakeStore  # registers the backend

    return FakeStore()


def is_profiler_running() -> bool:
    """Return True if a profiler is running on this thread or, as far as torch exposes it, on any thread."""
    return bool(getattr(autograd_profiler, "_is_profiler_enabled", False) or _autograd._profiler_enabled())


def disable_profiler() -> None:
    """Stop the running profiler and discard its recording."""
    _autograd._disable_profiler()
    getattr(autograd_profiler, "_run_on_profiler_stop", lambda: None)()


def profile_all_threads_config() -> Any:
    """Return the profiler config that records all threads, and if possible for export only, which takes 40 %
    less memory.

    Raises:
        AttributeError, TypeError: this torch has no such option.
    """
    try:
        return _profiler._ExperimentalConfig(profile_all_threads=True, trace_only=True)
    except TypeError:  # before torch 2.13
        return _profiler._ExperimentalConfig(profile_all_threads=True)


def has_cuda_context(index: int) -> bool | None:
    """Return True if this process has a context on the device; None if this torch cannot tell."""
    query = getattr(torch._C, "_cuda_hasPrimaryContext", None)
    return None if query is None else bool(query(index))


def is_cuda_history_recorded() -> bool:
    """Return True if the CUDA allocator is recording its history."""
    return bool(_torch_c._cuda_isHistoryEnabled())


def record_cuda_history(max_entries: int) -> None:
    """Make the CUDA allocator record every allocation and free with its Python stack."""
    torch.cuda.memory._record_memory_history(
        enabled="all", context="alloc", stacks="python", max_entries=max_entries
    )


def stop_cuda_history() -> None:
    """Stop the recording of the CUDA allocator's history."""
    torch.cuda.memory._record_memory_history(enabled=None)


def take_cuda_snapshot() -> Mapping[str, Any]:
    """Return the state of the CUDA allocator and its history."""
    return torch.cuda.memory._snapshot()


def _lift_modes(stop_at: Any) -> list[Any]:
    """Pop the program's modes above ``stop_at``, top first. torch's own modes are below all of them."""
    lifted: list[Any] = []
    while size := torch._C._len_torch_dispatch_stack():
        mode: Any = torch._C._get_dispatch_stack_at(size - 1)
        if mode is stop_at or mode.is_infra_mode():
            break
        lifted.append(_torch_c._pop_torch_dispatch_stack(None))
    return lifted


def _restore_modes(lifted: list[Any]) -> None:
    for mode in reversed(lifted):
        _torch_c._push_on_torch_dispatch_stack(mode)


def _lift_hooks(stop_at: Any) -> list[Any]:
    lifted: list[Any] = []
    while (top := _autograd._top_saved_tensors_default_hooks(True)) is not None and top[0] != stop_at:
        lifted.append(top)
        _autograd._pop_saved_tensors_default_hooks()
    return lifted


def _restore_hooks(lifted: list[Any]) -> None:
    for hooks in reversed(lifted):
        _autograd._push_saved_tensors_default_hooks(*hooks)


def skip_in_compiler(code: CodeType) -> bool:
    """Make the compiler skip a function and everything it calls. Return False if this torch cannot.

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


class ProcessGroupFacts(NamedTuple):
    """One process group that this rank is in; ``ranks`` are global, in the order of the group."""

    name: str
    description: str
    ranks: tuple[int, ...]


def list_process_groups() -> list[ProcessGroupFacts]:
    """Return the process groups of this rank in the order of their creation."""
    world: Any = dist.distributed_c10d._world
    return [
        ProcessGroupFacts(
            name=str(world.pg_names.get(group, "")),
            description=str(getattr(group, "group_desc", "")),
            ranks=tuple(sorted(ranks, key=ranks.__getitem__)),
        )
        for group, ranks in list(world.pg_group_ranks.items())
        if group is not None and ranks
    ]


def dump_flight_status() -> tuple[bytes, bytes]:
    """Return the counters of all process groups, without entries: NCCL's and those of other backends.

    Each is JSON, empty without such a flight recorder.
    """
    return (
        _call_recorder("_dump_nccl_trace_json", False, False) or b"",
        _call_recorder("_dump_fr_trace_json", False, False) or b"",
    )


def dump_flight_recorder() -> bytes | None:
    """Return the flight recorder with Python frames as a pickle, None without one.

    NCCL has one of its own; a program that uses it is asked for that one.
    """
    uses_nccl = dist.is_initialized() and "nccl" in dist.get_backend()
    own = _call_recorder("_dump_nccl_trace", True, True, False) if uses_nccl else None
    return own or _call_recorder("_dump_fr_trace", True, True, False)


def _call_recorder(name: str, *arguments: bool) -> bytes | None:
    bindings: Any = getattr(_torch_c, "_distributed_c10d", None)
    function = getattr(bindings, name, None)
    if function is None:
        return None
    content = function(*arguments)
    return content.encode() if isinstance(content, str) else bytes(content)


class FlatShard(NamedTuple):
    """One flat parameter of FSDP1; the elements are those of all ranks of its shard group.

    ``parameters``: what the model holds of it, the flat parameter or the original ones. ``replicas``: number
    of shard groups; None for strategies without replicas.
    """

    parameters: Sequence[Any]
    is_trained: bool
    elements: int
    padded_elements: int
    ranks: int
    replicas: int | None
    dtype: torch.dtype
    gathered_dtype: torch.dtype
    reduced_dtype: torch.dtype
    keeps_low_precision: bool
    computes_on_cpu: bool


def list_flat_shards(wrappers: Iterable[Any]) -> list[FlatShard]:
    """Return the flat parameters of FSDP1's wrappers."""
    return [
        _read_flat_shard(wrapper) for wrapper in wrappers if getattr(wrapper, "_handle", None) is not None
    ]


def uses_original_parameters(wrapper: Any) -> bool:
    """Return True if a wrapper of FSDP1 keeps the original parameters in the model."""
    return bool(wrapper._use_orig_params)


def _read_flat_shard(wrapper: Any) -> FlatShard:
    handle = wrapper._handle
    flat = handle.flat_param
    originals = [each for each in getattr(flat, "_params", None) or () if each is not None]
    replicas = getattr(wrapper, "_inter_node_pg", None)
    is_sharded = handle.uses_sharded_strategy
    elements = sum(int(size) for size in flat._numels)
    padded = handle.world_size * flat._sharded_size.numel() if is_sharded else flat._sharded_size.numel()
    return FlatShard(
        parameters=(flat, *originals),
        is_trained=all(each.requires_grad for each in originals or (flat,)),
        elements=elements,
        padded_elements=int(padded),
        ranks=int(handle.world_size),
        replicas=None if replicas is None else int(replicas.size()),
        dtype=handle._orig_param_dtype,
        gathered_dtype=handle._fwd_bwd_param_dtype,
        reduced_dtype=handle._reduce_dtype,
        keeps_low_precision=bool(handle._keep_low_precision_grads),
        computes_on_cpu=wrapper.compute_device.type == "cpu",
    )


class ShardedGroup(NamedTuple):
    """One group of parameters that FSDP2 gathers together.

    ``ranks`` and ``replicas``: sizes of the mesh's dimensions; ``replicas`` is None without that dimension.
    ``shards_only``: False if the parameters are also split by tensor parallelism.
    ``reshard_after_forward``: the number of ranks if it is neither all nor none of the shard group.
    ``is_default_root``: the root, of which the program did not say if it is resharded.
    """

    ranks: int
    replicas: int | None
    shards_only: bool
    padding_elements: int
    reshard_after_forward: bool | int
    is_default_root: bool
    param_dtype: torch.dtype | None
    reduce_dtype: torch.dtype | None
    offload_policy: str
    prefetches_forward: bool
    prefetches_backward: bool
    requires_gradient_sync: bool
    requires_all_reduce: bool
    reshard_after_backward: bool
    computes_on_cpu: bool


def list_sharded_groups(modules: Iterable[Any]) -> list[ShardedGroup]:
    """Return the groups of FSDP2's modules; a state belongs to several modules if they are one unit."""
    states = {id(state): state for module in modules if (state := module._get_fsdp_state()) is not None}
    found = []
    for state in states.values():
        groups = getattr(state, "_fsdp_param_groups", None)
        if groups is None:  # until torch 2.11
            group = getattr(state, "_fsdp_param_group", None)
            groups = [] if group is None else [group]
        found += [_read_group(state, group) for group in groups]
    return found


def _read_group(state: Any, group: Any) -> ShardedGroup:
    mesh, after_forward = group.mesh_info, group.post_forward_mesh_info
    ranks = int(mesh.shard_mesh_size)
    kept_ranks = None if after_forward is None else int(after_forward.shard_mesh_size)
    replicas = getattr(mesh, "replicate_mesh_size", None)
    dimensions = 1 if replicas is None else 2
    # The elements that make the shards of one parameter equal; the original size is global.
    return ShardedGroup(
        ranks=ranks,
        replicas=None if replicas is None else int(replicas),
        shards_only=all(each.sharded_param.device_mesh.ndim == dimensions for each in group.fsdp_params),
        padding_elements=sum(
            int(ranks * each.padded_sharded_param_size.numel() - each._orig_size.numel())
            for each in group.fsdp_params
        ),
        reshard_after_forward=False if kept_ranks is None else kept_ranks == ranks or kept_ranks,
        is_default_root=bool(state._is_root and getattr(state, "_auto_reshard_after_forward", False)),
        param_dtype=group.mp_policy.param_dtype,
        reduce_dtype=group.mp_policy.reduce_dtype,
        offload_policy=type(group.offload_policy).__name__,
        prefetches_forward=bool(state._states_to_forward_prefetch),
        prefetches_backward=bool(state._states_to_backward_prefetch),
        requires_gradient_sync=bool(group.reduce_grads),
        requires_all_reduce=bool(group.all_reduce_grads),
        reshard_after_backward=bool(group.reshard_after_backward),
        computes_on_cpu=group.device.type == "cpu",
    )
