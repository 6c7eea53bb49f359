"""List the operations of a rank's host threads in one step.

The order follows public code: FSDP2's `_fsdp_param_group.py` (separate copy-in, gather and reduce streams,
implicit forward prefetch, backward prefetch after the copy-out), FSDP1's limiter, DDP's and DeepSpeed's
buckets, non-reentrant checkpointing (the recomputed forward runs inside backward, on the autograd thread).
All ranks run the same program; `host.py` decides the differences between ranks and steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from zprof.simulator import kernels
from zprof.simulator.job import hash_key
from zprof.simulator.operations import (
    AUTOGRAD,
    BACKWARD,
    COMPUTE,
    COPY_IN,
    DATA_POINT,
    FORWARD,
    GATHER,
    MAIN,
    MEMCPY,
    POINT,
    RECOMPUTE,
    RECORD,
    REDUCE,
    REPLICA,
    REPLICA_COMM,
    RUNTIME,
    SHARD_COMM,
    SYNC,
    TENSOR_COMM,
    WAIT,
    WORLD_COMM,
    Op,
    OperationList,
    Segment,
)  # fmt: skip


class StepProgram(OperationList):
    """Collect the operations of a step."""

    # parameters
    def gather(self, index: int, order: str) -> None:
        """Issue the gather of a unit: copy-in, then one or more collectives."""
        job, unit = self.job, self.units[index]
        if index in self.unsharded or index in self.issued:
            return
        if job.limiter:
            self._limit_gathers()
        self.issued.add(index)
        label = f"{unit.name}/{order}/{self.micro}"
        if job.prefetch == "off":
            self.sync_streams(COPY_IN, COMPUTE)
            self.sync_streams(GATHER, COMPUTE)
        named = job.dialect.annotations == "fsdp2"
        if named:
            self.open(f"FSDP::all_gather ({unit.name})" if unit.name else "FSDP::all_gather")
        self.think(job.host.hook_ns, "gather", label)
        params = int(unit.params * (1 + job.padding))
        for piece, share in enumerate(_split_params(params, job.gather_pieces)):
            if job.engine == "fsdp2" and job.copy_factor > 0:
                cost = (
                    2 * share / job.shard_size * job.gather_itemsize / job.gpu.memory_rate * job.copy_factor
                )
                self.run_kernel(COPY_IN, kernels.COPY_IN, cost, "copy_in", label, piece)
                self.sync_streams(GATHER, COPY_IN)
            self.communicate(
                GATHER, SHARD_COMM, "all_gather", share, job.gather_itemsize, "gather", label, piece
            )
        self.record(GATHER, f"gathered {index}")
        if named:
            self.close()

    def _limit_gathers(self) -> None:
        """Block the host until a unit used before has been computed (FSDP1's `limit_all_gathers`)."""
        done = self.compute_done
        if len(done) >= self.job.limiter:
            named = self.job.dialect.annotations == "fsdp1"
            if named:
                self.open("FullyShardedDataParallel.rate_limiter")
            self.add(SYNC, self.tid, "event", done[-self.job.limiter], "cudaEventSynchronize")
            if named:
                self.close()

    def wait_gather(self, index: int, backward: bool) -> None:
        """Make compute wait for a gather, and copy the parameters out of its buffer."""
        job, unit = self.job, self.units[index]
        if index not in self.issued:
            return
        self.issued.discard(index)
        self.unsharded.add(index)
        self.add(WAIT, COMPUTE, 1_000_000 + hash_key("event", f"gathered {index}") % (1 << 40))
        if job.engine != "fsdp2":
            return
        if (
            not backward and job.prefetch != "off"
        ):  # FSDP2: the buffer before the last is free for the next copy-in
            for stream in (COPY_IN, GATHER):
                self.add(WAIT, stream, 1_000_000 + hash_key("event", "copied out") % (1 << 40))
        if job.dialect.annotations == "fsdp2":
            self.open(
                f"FSDP::all_gather_copy_out ({unit.name})" if unit.name else "FSDP::all_gather_copy_out"
            )
        if job.copy_factor > 0:
            size = unit.params * (1 + job.padding) * job.gather_itemsize
            cost = 2 * size / job.gpu.memory_rate * job.copy_factor
            self.run_kernel(COMPUTE, kernels.COPY_OUT, cost, "copy_out", unit.name, self.micro, int(backward))
        if job.dialect.annotations == "fsdp2":
            self.close()
        event = self.record(COMPUTE, "copied out")
        if backward:
            for stream in (COPY_IN, GATHER):
                self.add(WAIT, stream, event)

    def finish_unit(self) -> None:
        """Record that a unit's compute is launched: the limiter and the reduction refer to it."""
        self.serial += 1
        self.add(RECORD, COMPUTE, self.serial)
        self.compute_done.append(self.serial)

    # gradients
    def reduce(self, index: int) -> None:
        """Reduce a unit's gradients, or put them into a bucket that is reduced when it is full."""
        self.bucket.append(index)
        if len(self.bucket) >= self.job.reduce_bucket:
            self.flush_bucket()

    def flush_bucket(self) -> None:
        """Reduce the contents of the bucket."""
        job = self.job
        if not self.bucket:
            return
        label = f"{self.units[self.bucket[0]].name}/{self.micro}"
        params = int(sum(self.units[i].params for i in self.bucket) * (1 + job.padding))
        self.bucket.clear()
        if job.engine == "fsdp2" and self.pending_reduce:
            self.add(WAIT, COMPUTE, self.pending_reduce[-1])
        self.think(job.host.hook_ns, "reduce", label)
        self.sync_streams(REDUCE, COMPUTE)
        if job.engine == "fsdp2" and job.copy_factor > 0:
            cost = params * (2 + job.reduce_itemsize) / job.gpu.memory_rate
            cost *= job.padding_cost if job.padding else 1.0
            self.run_kernel(REDUCE, kernels.CHUNK_CAT, cost, "chunk_cat", label)
        whole = job.engine in ("zero1", "ddp")
        operation = "all_reduce" if whole else "reduce_scatter"
        self.communicate(REDUCE, SHARD_COMM, operation, params, job.reduce_itemsize, "reduce", label)
        shard = params if whole else params // job.shard_size
        if not job.on_cpu:  # a CPU rank would have to wait for the reduction first
            cost = 2 * shard * job.reduce_itemsize / job.gpu.memory_rate
            self.run_kernel(REDUCE, kernels.DIVIDE, cost, "divide", label)
        last = REDUCE
        if job.replicas > 1:
            self.sync_streams(REPLICA, REDUCE)
            self.communicate(
                REPLICA, REPLICA_COMM, "all_reduce", shard, job.reduce_itemsize, "replica", label
            )
            last = REPLICA
        self.pending_reduce.append(self.record(last, f"reduced {label}"))

    # phases
    def build(self) -> list[Op]:
        """Return the operations of one step."""
        job = self.job
        self.think(job.host.hook_ns, "step start")
        name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        self.open(name)
        self.think(job.data_ns, "data")
        if any(pace.data_ns for pace in job.ranks):
            self.add(POINT, MAIN, DATA_POINT)
        self.close()
        if not job.on_cpu:
            self.add(MEMCPY, MAIN, COMPUTE, "HtoD", 262_144, job.batch_copy_ns, hash_key("batch"))
        if job.engine == "inference":
            self.generate()
            return self.ops
        for self.micro in range(job.micro_batches):
            if job.sharded_parameters:
                self.forward_sharded()
                self.loss()
                self.backward_sharded()
            else:
                self.forward_replicated()
                self.loss()
                self.backward_replicated()
            self.tid = MAIN
            if job.blocking in ("micro", "unit"):
                self.read_back("loss", self.micro)
        if self.count_retries():
            self.retry("optimizer")
        self.optimize()
        if job.blocking != "none":
            self.read_back("metrics", 0)
        return self.ops

    def forward_sharded(self) -> None:
        """Run the forward pass of a job that gathers parameters."""
        job = self.job
        root = self.units[0] if self.units[0].root else None
        stages = [i for i, unit in enumerate(self.units) if not unit.root]
        if job.dialect.annotations == "fsdp1":
            self.open("FullyShardedDataParallel.forward")
        named = self.annotate("FSDP::root_pre_forward", "FullyShardedDataParallel._root_pre_forward")
        self.think(job.host.hook_ns, "root pre forward", self.micro)
        if job.unshard_early and self.micro == 0:
            self.issued.add(0)
        for stream in (COPY_IN, GATHER):
            self.sync_streams(stream, COMPUTE)
        if named:
            self.close()
        if root:
            self.pre_forward(0)
            head = root.segments[1:] if len(root.segments) == 2 else ()
            self.compute_forward(root.segments[:1] if head else root.segments)
        else:
            head = ()
        for place, index in enumerate(stages):
            unit = self.units[index]
            frame = job.dialect.python_rows
            if frame:
                self.open(f"nn.Module: {unit.name.split('.')[0].title()}Block_{index}", "python_function")
            following = stages[place + 1] if place + 1 < len(stages) else None
            self.pre_forward(index, following if self.prefetches_forward() else None)
            self.compute_forward(unit.segments)
            self.finish_unit()
            last = place + 1 == len(stages)
            named = self.annotate(
                f"FSDP::post_forward ({unit.name})", "FullyShardedDataParallel._post_forward"
            )
            self.think(job.host.hook_ns / 4, "post forward", unit.name, self.micro)
            if named:
                self.close()
            if self.drops_after_forward() and not (last and job.last_unit_kept):
                self.unsharded.discard(index)
            if job.blocking == "unit" and place % 2 == 0:
                self.read_back(f"forward {unit.name}", self.micro)
            if frame:
                self.close()
        if head:
            self.compute_forward(head)
        if job.dialect.annotations == "fsdp1":
            self.close()

    def prefetches_forward(self) -> bool:
        """Return True if the next unit's gather is launched before this unit's compute.

        With a device, the host runs ahead and launches it in time anyway. On a CPU rank the program must do
        so explicitly.
        """
        return self.job.explicit_forward_prefetch or (self.job.on_cpu and self.job.prefetch != "off")

    def drops_after_forward(self) -> bool:
        """Return True if units are resharded after this forward pass."""
        return self.job.reshard_after_forward and (self.micro == 0 or self.job.regather_every_micro_batch)

    def pre_forward(self, index: int, following: int | None = None) -> None:
        """Gather a unit for its forward pass."""
        unit = self.units[index]
        label = f" ({unit.name})" if unit.name else ""
        named = self.annotate(f"FSDP::pre_forward{label}", "FullyShardedDataParallel._pre_forward")
        self.gather(index, "forward")
        if following is not None:
            self.gather(following, "forward")
        self.wait_gather(index, backward=False)
        if named:
            self.close()

    def compute_forward(self, segments: Sequence[Segment], phase: int = FORWARD) -> None:
        """Run the forward kernels of some segments."""
        for segment in segments:
            self.run_block(segment.block, self.job.blocks[segment.block].forward, segment.forward, phase)
            self.reduce_activations(segment.block, phase)

    def compute_backward(self, segments: Sequence[Segment], recompute: bool) -> None:
        """Run the backward kernels, last segment first; checkpointed segments are recomputed first."""
        for segment in reversed(segments):
            if recompute and self.job.blocks[segment.block].is_layer:
                self.compute_forward((segment,), RECOMPUTE)
            self.run_block(segment.block, self.job.blocks[segment.block].backward, segment.backward, BACKWARD)
            self.reduce_activations(segment.block, BACKWARD)

    def reduce_activations(self, block: int, phase: int) -> None:
        """Sum the activations of a block, or their gradients, over the ranks that share it."""
        job = self.job
        if job.tensor_size > 1:
            self.communicate(
                COMPUTE, TENSOR_COMM, "all_reduce", job.tensor_elements, 2, "tensor", block, phase, self.micro
            )

    def loss(self) -> None:
        """Compute the loss on the main thread."""
        self.run_kernel(COMPUTE, kernels.SOFTMAX, 90_000, "loss", self.micro)
        if self.job.reads_loss:
            self.read_back("checked loss", self.micro)
        if self.count_retries():
            self.retry("loss")

    def backward_sharded(self) -> None:
        """Run the backward pass of a job that gathers parameters, on the autograd thread."""
        job = self.job
        self.tid = AUTOGRAD
        last_micro = self.micro + 1 == job.micro_batches
        reduces = last_micro or job.sync_every_micro_batch
        keeps = not last_micro and not job.regather_every_micro_batch
        root = self.units[0] if self.units[0].root else None
        head = root.segments[1:] if root and len(root.segments) == 2 else ()
        order = [i for i in reversed(range(len(self.units))) if not self.units[i].root]
        self.pending_reduce = []
        if root:
            named = self.annotate("FSDP::pre_backward", "FullyShardedDataParallel._pre_backward_hook")
            self.gather(0, "backward")
            self.wait_gather(0, backward=True)
            if job.prefetch == "on" and order:
                self.prefetch_backward(order[0])
            if named:
                self.close()
            self.compute_backward(head, recompute=False)
        for place, index in enumerate(order):
            unit = self.units[index]
            following = order[place + 1] if place + 1 < len(order) else None
            self.pre_backward(index, following)
            if job.blocking == "unit" and place % 2 == 0:
                self.read_back(f"backward {unit.name}", self.micro)
            if self.count_retries() and place == len(order) // 2:
                self.retry("backward")
            self.compute_backward(unit.segments, job.checkpointing and not job.checkpoint_regather)
            self.finish_unit()
            self.post_backward(index, reduces, keeps)
        if root:
            self.compute_backward(
                root.segments[:1] if head else root.segments, job.checkpointing and not head
            )
            self.finish_unit()
            self.post_backward(0, reduces, keeps)
        self.flush_bucket()
        named = job.dialect.annotations == "fsdp2"
        if named:
            self.open("FSDP::root_post_backward_callback")
        self.think(job.host.hook_ns / 2, "root post backward", self.micro)
        for event in self.pending_reduce[-2:]:
            self.add(WAIT, COMPUTE, event)
        if named:
            self.close()

    def prefetch_backward(self, index: int) -> None:
        """Issue the next unit's gather while this unit computes."""
        if index in self.unsharded or index in self.issued:
            return
        name = self.units[index].name
        named = self.annotate(
            f"FSDP::backward_prefetch for {name}", "FullyShardedDataParallel._pre_backward_prefetch"
        )
        self.gather(index, "recompute" if self.job.checkpoint_regather else "backward")
        if named:
            self.close()

    def pre_backward(self, index: int, following: int | None) -> None:
        """Gather a unit for its backward pass; a checkpoint around it gathers once more, to recompute."""
        job, unit = self.job, self.units[index]
        if job.checkpointing and job.checkpoint_regather:
            named = self.annotate(f"FSDP::pre_forward ({unit.name})", "FullyShardedDataParallel._pre_forward")
            self.gather(index, "recompute")
            self.wait_gather(index, backward=True)
            if named:
                self.close()
            inner = [s for s in unit.segments if job.blocks[s.block].is_layer]
            self.compute_forward(inner, RECOMPUTE)
            self.finish_unit()
            named = self.annotate(
                f"FSDP::post_forward ({unit.name})", "FullyShardedDataParallel._post_forward"
            )
            self.think(job.host.hook_ns / 4, "post recompute", unit.name, self.micro)
            if inner:
                self.unsharded.discard(index)
            if named:
                self.close()
        named = self.annotate(
            f"FSDP::pre_backward ({unit.name})", "FullyShardedDataParallel._pre_backward_hook"
        )
        self.gather(index, "backward")
        self.wait_gather(index, backward=True)
        if job.prefetch == "on" and following is not None:
            self.prefetch_backward(following)
        if named:
            self.close()

    def post_backward(self, index: int, reduces: bool, keeps: bool) -> None:
        """Drop a unit's parameters and reduce or accumulate its gradients."""
        job, unit = self.job, self.units[index]
        label = f" ({unit.name})" if unit.name else ""
        two = job.dialect.annotations == "fsdp2"
        if two:
            self.open(f"FSDP::post_backward_accumulate{label}")
        elif job.dialect.annotations == "fsdp1":
            self.open("FullyShardedDataParallel._post_backward_hook")
        if self.micro and not job.sync_every_micro_batch:
            cost = 3 * unit.params * 2 / job.gpu.memory_rate
            self.run_kernel(COMPUTE, kernels.ACCUMULATE, cost, "accumulate", unit.name, self.micro)
        if two:
            self.close()
            self.open(f"FSDP::post_backward_reshard{label}")
        self.think(job.host.hook_ns / 4, "reshard", unit.name, self.micro)
        if two:
            self.close()
        if not keeps:
            self.unsharded.discard(index)
        if reduces:
            if two:
                self.open(f"FSDP::post_backward_reduce{label}")
            self.reduce(index)
            if two:
                self.close()
        if job.dialect.annotations == "fsdp1":
            self.close()

    def forward_replicated(self) -> None:
        """Run the forward pass of a ZeRO-1/2 job; if gathers are hidden, each block awaits its own."""
        job = self.job
        ddp = job.dialect.annotations == "ddp"
        if ddp:
            self.open("DistributedDataParallel.forward")
        for index, unit in enumerate(self.units):
            if self.micro == 0 and job.optimizer_gather == "hidden":
                self.add(WAIT, COMPUTE, 1_000_000 + hash_key("event", f"new params {index}") % (1 << 40))
            self.compute_forward(unit.segments)
            if job.blocking == "unit" and index % 2 == 0:
                self.read_back(f"forward {unit.name}", self.micro)
        if ddp:
            self.close()

    def backward_replicated(self) -> None:
        """Run the backward pass of a ZeRO-1/2 job with bucketed reductions."""
        job = self.job
        self.tid = AUTOGRAD
        reduces = self.micro + 1 == job.micro_batches or job.sync_every_micro_batch
        self.pending_reduce = []
        for place, index in enumerate(reversed(range(len(self.units)))):
            unit = self.units[index]
            self.compute_backward(unit.segments, job.checkpointing)
            if job.blocking == "unit" and place % 2 == 0:
                self.read_back(f"backward {unit.name}", self.micro)
            if self.count_retries() and place == len(self.units) // 2:
                self.retry("backward")
            if self.micro:
                cost = 3 * unit.params * 2 / job.gpu.memory_rate
                self.run_kernel(COMPUTE, kernels.ACCUMULATE, cost, "accumulate", unit.name, self.micro)
            if reduces:
                self.reduce(index)
        self.flush_bucket()
        for event in self.pending_reduce[-2:]:
            self.add(WAIT, COMPUTE, event)

    def optimize(self) -> None:
        """Clip, step and, for ZeRO-1/2, gather the new parameters."""
        job = self.job
        shard = job.params if job.engine == "ddp" else job.params // job.shard_size
        if job.clip:
            self.run_kernel(COMPUTE, kernels.LP_NORM, 4 * shard / job.gpu.memory_rate, "norm")
            self.communicate(COMPUTE, WORLD_COMM, "all_reduce", 1, 4, "norm")
            self.run_kernel(COMPUTE, kernels.DIVIDE, 8 * shard / job.gpu.memory_rate, "clip")
        if job.dialect.optimizer_range:
            self.open("Optimizer.step#AdamW.step")
        self.think(job.host.hook_ns * 2, "optimizer")
        if job.offload_ns_per_param:
            self.optimize_on_cpu(shard)
        else:
            self.update(shard)
        if job.dialect.optimizer_range:
            self.close()
        if not job.sharded_parameters and job.engine != "ddp":
            self.gather_new_params()
        if job.unshard_early:
            self.unshard_first()
        if job.dialect.optimizer_range:
            self.open("Optimizer.zero_grad#AdamW.zero_grad")
        self.think(job.host.hook_ns / 2, "zero grad")
        if job.dialect.optimizer_range:
            self.close()

    def optimize_on_cpu(self, shard: int) -> None:
        """Copy gradients to the host, step there, copy parameters back; the GPU is idle meanwhile.

        A CPU rank fetches its states from slower memory and stores them; its update takes as long as usual.
        """
        job = self.job
        parts = 3
        for part in range(parts):
            size = 4 * shard // parts
            cost = int(size / job.host.pcie_rate)
            self.add(MEMCPY, MAIN, COMPUTE, "DtoH", size, cost, hash_key("d2h", part))
        if job.on_cpu:
            self.update(shard)
        else:
            self.add(SYNC, MAIN, "stream", COMPUTE, "cudaStreamSynchronize")
            self.open("aten::_fused_adamw_", "cpu_op")
            self.think(shard * job.offload_ns_per_param, "cpu adam")
            self.close()
        for part in range(parts):
            size = job.gather_itemsize * shard // parts
            cost = int(size / job.host.pcie_rate)
            self.add(MEMCPY, MAIN, COMPUTE, "HtoD", size, cost, hash_key("h2d", part))

    def update(self, shard: int) -> None:
        """Run the kernels of the optimizer."""
        parts = 2 + min(6, len(self.job.blocks) // 4)
        for part in range(parts):
            cost = 28 * shard / parts / self.job.gpu.memory_rate
            self.run_kernel(COMPUTE, kernels.ADAM, cost, "adam", part)

    def unshard_first(self) -> None:
        """Gather the first unit for the next forward pass, as soon as its parameters are updated."""
        self.micro = 0
        self.issued.discard(0)
        self.unsharded.discard(0)
        for stream in (COPY_IN, GATHER):
            self.sync_streams(stream, COMPUTE)
        self.gather(0, "forward")

    def gather_new_params(self) -> None:
        """Gather updated parameters: exposed all at once, or per unit during the next forward pass."""
        job = self.job
        self.sync_streams(GATHER, COMPUTE)
        hidden = job.optimizer_gather == "hidden"
        sizes = (
            [u.params for u in self.units]
            if hidden
            else _split_params(job.params, job.optimizer_gather_pieces)
        )
        for index, size in enumerate(sizes):
            params = int(size * (1 + job.padding))
            self.communicate(
                GATHER, SHARD_COMM, "all_gather", params, job.gather_itemsize, "new params", index
            )
            self.record(GATHER, f"new params {index}")
        if not hidden:
            self.sync_streams(COMPUTE, GATHER)

    def count_retries(self) -> int:
        """Return the maximum number of allocator calls in one place, over the ranks."""
        if self.job.on_cpu:
            return 0
        return max(self.job.retries, *(pace.retries or 0 for pace in self.job.ranks))

    def retry(self, where: str) -> None:
        """Free cached blocks and allocate again: cudaFree waits for the device."""
        job = self.job
        for number in range(self.count_retries()):
            call = "cudaFree" if number % 2 == 0 else "cudaMalloc"
            key = hash_key("retry", where, self.micro, number)
            self.add(RUNTIME, self.tid, call, job.retry_ns, key, number)

    def generate(self) -> None:
        """Decode tokens one by one: a forward pass, an argmax, and a copy to the host for each token."""
        job = self.job
        for self.micro in range(job.tokens):
            for index, block in enumerate(job.blocks):
                count = len(block.forward)
                inner = 0 < index < len(job.blocks) - 1
                halves = ((0, count // 2), (count // 2, count)) if inner else ((0, count),)
                for half, span in enumerate(halves):
                    self.run_block(index, block.forward, span, FORWARD)
                    if job.tensor_parallel and inner:
                        nelems = 4096 * 16
                        self.communicate(
                            COMPUTE, WORLD_COMM, "all_reduce", nelems, 2, "tp", index, half, self.micro
                        )
            self.run_kernel(COMPUTE, kernels.ARGMAX, 9_000, "argmax", self.micro)
            self.read_back("token", self.micro)


def _split_params(params: int, pieces: int) -> list[int]:
    """Return unequal pieces, like parameter groups of several dtypes or sizes."""
    if pieces == 1:
        return [params]
    weights = [2.0 ** -(i % 3) for i in range(pieces)]
    total = sum(weights)
    return [max(256, int(params * w / total)) for w in weights]
