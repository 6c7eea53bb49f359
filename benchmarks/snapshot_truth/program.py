"""A program on one device: it builds a model, and trains it or runs inference."""

import random

from benchmarks.snapshot_truth.codebase import Codebase
from benchmarks.snapshot_truth.data_parallel import GradientBuckets, gather_metrics, make_barrier
from benchmarks.snapshot_truth.device import Tensor, TracedDevice
from benchmarks.snapshot_truth.frames import TORCH, PythonFrame
from benchmarks.snapshot_truth.gradients import (
    AccumulatedGradients,
    MainGradients,
    OffloadedGradients,
    become_gradient,
)
from benchmarks.snapshot_truth.model_setup import (
    DEEPSPEED_STATES,
    MEGATRON_BUFFERS,
    add_lora,
    flatten_for_deepspeed,
    freeze_parameters,
    load_state,
    make_masters,
)
from benchmarks.snapshot_truth.operators import Operators
from benchmarks.snapshot_truth.optimizer_step import ParameterUpdate
from benchmarks.snapshot_truth.optimizers import (
    NO_GRAD,
    TEMPORARY,
    WRAPPER,
    OptimizerRule,
    StateStore,
    list_rules,
)
from benchmarks.snapshot_truth.parameters import SimulatedParameter, build_buffers, build_parameters
from benchmarks.snapshot_truth.sharding import FlatSharding, NoSharding, ShardedParameters
from benchmarks.snapshot_truth.transformer import Transformer
from benchmarks.snapshot_truth.variants import ProgramOptions
from zprof.model.tenants import Tenant

_BACKWARD = (
    PythonFrame(f"{TORCH}_tensor.py", 625, "backward"),
    PythonFrame(f"{TORCH}autograd/__init__.py", 354, "backward"),
)
_TORCH_ADAMS = ("adamw_foreach", "adamw_single", "adamw_fused")


class Program:
    """A program with its model and optimizer on a device.

    ``partner`` is a second model with its own optimizer, trained in turn (a discriminator).
    """

    def __init__(
        self,
        options: ProgramOptions,
        code: Codebase,
        device: TracedDevice,
        chance: random.Random,
        partner: "Program | None" = None,
    ) -> None:
        self._partner = partner
        self.options, self.code, self.device, self.chance = options, code, device, chance
        self._rule: OptimizerRule = list_rules(code)[options.optimizer]
        self._state = StateStore(device)
        self._masters: list[SimulatedParameter] = []
        self._flat_gradients: Tensor | None = None
        self._batch: list[Tensor] = []
        self._logits: Tensor | None = None
        self._buckets: GradientBuckets | None = None
        self._main_gradients: MainGradients | None = None

    def run(self) -> None:
        """Run the program to its end, or to the end of the window."""
        with self.device.call(*self.code.main):
            for program in self._all_programs():
                program._build()
            with self.device.call(*self.code.loop):
                if self.options.mode in ("inference", "kv_cache"):
                    for request in range(self.options.steps):
                        self._infer(request)
                else:
                    for step in range(self.options.steps):
                        for program in self._all_programs():
                            program._train_step(step)

    def _all_programs(self) -> list["Program"]:
        return [self] if self._partner is None else [self._partner, self]

    def _build(self) -> None:
        options, device, code = self.options, self.device, self.code
        shape = options.model
        self.parameters = build_parameters(
            device, code, shape, element_bytes=options.param_bytes, birth=options.birth
        )
        self._buffers = build_buffers(device, code, shape, options.birth)
        if shape.is_tied:
            next(each for each in self.parameters if each.shape.name == "embed").uses = 2
        freeze_parameters(options, self.parameters)
        lora = add_lora(device, code, self.parameters, self.chance) if options.has_lora else {}
        self._copies: list[SimulatedParameter] = []
        if options.has_reference:
            self._copies = build_parameters(
                device, code, shape, element_bytes=options.param_bytes,
                birth=self.chance.choice((options.birth, "deepcopy")), sub="frozen",
            )  # fmt: skip
            for copy in self._copies:
                copy.is_trained = False
        if options.has_ema:
            self._copies_of_weights = build_parameters(
                device, code, shape, element_bytes=options.param_bytes, birth="deepcopy", sub="ema"
            )
        adapters = [each for pair in lora.values() for each in pair]
        self._trained = [each for each in (*self.parameters, *adapters) if each.is_trained]
        if options.world_size > 1:
            self._barrier = make_barrier(device)
        hooks = self._hooks = self._shard()
        ops = self._ops = Operators(
            device, code, AccumulatedGradients(device, self._store), act_bytes=options.act_bytes,
            has_workspace=options.has_workspace,
        )  # fmt: skip
        ops.has_autocast = options.has_autocast
        self.model = Transformer(
            shape, self.parameters, ops, is_checkpointed=options.is_checkpointed, lora=lora, hooks=hooks
        )
        if options.has_reference:
            self._reference = Transformer(shape, self._copies, ops)
        if options.mode in ("train", "forward_only"):
            self._prepare_optimizer()
            self._update = ParameterUpdate(
                options, code, device, self._rule,
                state=self._state, trained=self._trained, masters=self._masters,
            )  # fmt: skip

    def _prepare_optimizer(self) -> None:
        """Make what the constructor makes: fp32 copies of the weights, buffers of gradients."""
        options, device, code = self.options, self.device, self.code
        self._offloaded = OffloadedGradients(device)
        if options.masters == "deepspeed":
            self._masters, self._flat_gradients = flatten_for_deepspeed(device, code, self._trained)
            # DeepSpeed makes the state at once, so that a lack of memory shows early.
            with device.call(*code.setup, *DEEPSPEED_STATES, WRAPPER, *self._rule.frames):
                self._rule.update(self._state, self._masters)
        elif options.masters:
            self._masters = make_masters(device, code, self._trained)
        if options.main_grad:
            self._main_gradients = MainGradients(
                device, self._trained, MEGATRON_BUFFERS, flat=options.main_grad == "flat"
            )
        if options.is_resumed and options.optimizer in _TORCH_ADAMS and options.masters != "deepspeed":
            has_step = options.optimizer == "adamw_fused"
            load_state(device, code, self._state, self._masters or self._trained, has_step=has_step)

    def _shard(self) -> FlatSharding | ShardedParameters | NoSharding:
        """Wrap the model; afterwards ``_trained`` are what the optimizer updates."""
        options, device = self.options, self.device
        if options.data_parallel:
            with device.call(*self.code.setup):
                self._buckets = GradientBuckets(
                    device, self._trained, has_views=options.data_parallel == "views"
                )
        with device.call(*self.code.setup):
            if options.fsdp == 1:
                flat = FlatSharding(device, self.parameters, options.world_size)
                self._trained = [flat.shards[unit] for unit in sorted(flat.shards)]
                return flat
            if options.fsdp == 2:
                sharded = ShardedParameters(
                    device, self.parameters, world_size=options.world_size, compute_bytes=options.act_bytes
                )
                self._trained = [each for unit in sorted(sharded.shards) for each in sharded.shards[unit]]
                return sharded
        return NoSharding()

    def _store(self, parameter: SimulatedParameter, grad: Tensor) -> None:
        """Keep the whole gradient of a parameter as this program does."""
        hooks = self._hooks
        if isinstance(hooks, FlatSharding | ShardedParameters):
            hooks.store(parameter, grad)
        elif self._main_gradients is not None:
            self._main_gradients.store(parameter, grad)
        elif self.options.is_offloaded:
            self._offloaded.store(parameter, grad)
        elif self._buckets is not None:
            self._buckets.store(parameter, grad)
        elif parameter.grad is None:
            become_gradient(grad)
            parameter.grad = grad
        else:
            self.device.drop(grad)

    def _train_step(self, step: int) -> None:
        options, device = self.options, self.device
        if options.zeroes_first:
            self._update.zero_grad()
        for micro_batch in range(options.micro_batches):
            with device.call(*self.code.micro_step):
                self._micro_batch(step, micro_batch)
        if self.chance.random() < 0.05:
            device.empty_cache()
        with device.phase("optimizer", step):
            self._update.step()
        if not options.zeroes_first:
            self._update.zero_grad()
        if options.world_size > 1:
            with device.call(*self.code.micro_step):
                gather_metrics(device, options.world_size)
        if options.evaluates:
            self._evaluate(step)

    def _evaluate(self, step: int) -> None:
        """Compute a loss without gradients."""
        options, device, ops = self.options, self.device, self._ops
        tokens = options.model.tokens
        frames = PythonFrame(self.code.main[-1].file, 302, "evaluate"), NO_GRAD
        with device.call(*reversed(frames)), device.phase("forward", step), ops.no_grad():
            ids, targets = self._load_batch(tokens)
            logits = self.model.forward(ids, tokens, options.model.seq)
            loss = self.model.loss(logits, targets, tokens)
            ops.end_autocast()
            self._hooks.end_forward(ops)
            device.drop(logits)
            device.drop(loss)

    def _micro_batch(self, step: int, micro_batch: int) -> None:
        options, device, ops = self.options, self.device, self._ops
        tokens = options.model.tokens
        with device.phase("forward", step, micro_batch):
            ids, targets = self._load_batch(tokens)
            if self._buckets is not None and (step, micro_batch) > (0, 0):
                self._buckets.rebuild(device.call(*self.code.module(1950, "forward")))
            ops.tape = []
            if options.has_reference:
                with ops.no_grad():
                    logits = self._reference.forward(ids, tokens, options.model.seq)
                    scores = device.alloc(tokens * 4, TEMPORARY, "reference_scores", "gather")
                    device.drop(logits)
            logits = self.model.forward(ids, tokens, options.model.seq)
            loss = self.model.loss(logits, targets, tokens)
            ops.end_autocast()
            if self._logits is not None:
                device.drop(self._logits)
                self._logits = None
            if options.keeps_logits:
                self._logits = logits
            else:
                device.drop(logits)
        with device.phase("backward", step, micro_batch):
            with device.call(*_BACKWARD, PythonFrame(f"{TORCH}autograd/__init__.py", 217, "_make_grads")):
                root = device.alloc(4, TEMPORARY, "act_grad", "ones_like")
            with device.on_engine():
                self._hooks.pre_backward(ops, -1)
                ops.run_backward(root)
                self._hooks.post_backward(ops, -1)
            device.drop(loss)
            if options.has_reference:
                device.drop(scores)
            if self._flat_gradients is not None:
                self._update.drop_gradients()

    def _load_batch(self, tokens: int) -> list[Tensor]:
        """Replace the batch: the new one is there before the old one is dropped."""
        new = [
            self.device.alloc(
                tokens * 8, TEMPORARY, "input", "_to_copy", line=184 + i, also=(Tenant.ACTIVATIONS, TEMPORARY)
            )
            for i in range(2)
        ]
        for each in self._batch:
            self.device.drop(each)
        self._batch = new
        return new

    def _infer(self, request: int) -> None:
        options, device, ops = self.options, self.device, self._ops
        shape = options.model
        ops.tape = None
        generated = self.chance.randint(3, 12) if options.mode == "kv_cache" else 0
        with device.call(*self.code.micro_step), device.phase("forward", request, 0):
            if options.mode == "kv_cache":
                self._start_cache()
            for token in range(generated + 1):
                tokens = shape.tokens if token == 0 else shape.batch
                ids, _ = self._load_batch(tokens)
                logits = self.model.forward(ids, tokens, shape.seq + token)
                logits.lifetime.tenant, logits.lifetime.sub = Tenant.ACTIVATIONS, "logits"
                logits.lifetime.also = (TEMPORARY,)
                ops.end_autocast()
                if self._logits is not None:
                    device.drop(self._logits)
                self._logits = logits
                device.drop(device.alloc(shape.batch * 8, TEMPORARY, "op_output", "argmax"))

    def _start_cache(self) -> None:
        """Empty the cache of every layer: it starts with tensors of no elements."""
        cache = self.model.cache
        for tensors in cache.values():
            for tensor in tensors:
                self.device.drop(tensor)
        for layer in range(self.options.model.layers):
            cache[layer] = []
