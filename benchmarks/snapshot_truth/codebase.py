"""The files and functions of a user's program: what the Python frames of a stack name."""

import random
from dataclasses import dataclass

from benchmarks.snapshot_truth.frames import SITE, TORCH, PythonFrame

#: What calling a module adds to a stack.
MODULE_CALL = (
    PythonFrame(f"{TORCH}nn/modules/module.py", 1776, "_wrapped_call_impl"),
    PythonFrame(f"{TORCH}nn/modules/module.py", 1787, "_call_impl"),
)
_IPYTHON = (
    PythonFrame("<frozen runpy>", 198, "_run_module_as_main"),
    PythonFrame(f"{SITE}ipykernel_launcher.py", 18, "<module>"),
    PythonFrame(f"{SITE}ipykernel/kernelbase.py", 545, "dispatch_queue"),
    PythonFrame(f"{SITE}ipykernel/zmqshell.py", 549, "run_cell"),
    PythonFrame(f"{SITE}IPython/core/interactiveshell.py", 3075, "run_cell"),
    PythonFrame(f"{SITE}IPython/core/interactiveshell.py", 3577, "run_code"),
)
_TRAINER = f"{SITE}transformers/trainer.py"
_LLAMA = f"{SITE}transformers/models/llama/modeling_llama.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Codebase:
    """Where a program's functions are.

    ``main`` are the outermost frames, ``setup``, ``loop`` and ``step`` what they call; ``model_file`` has the
    modules. ``has_own_layers``: linear layers and norms are the user's, not torch's.
    """

    style: str
    main: tuple[PythonFrame, ...]
    setup: tuple[PythonFrame, ...]
    loop: tuple[PythonFrame, ...]
    micro_step: tuple[PythonFrame, ...]
    model_file: str
    own_file: str
    model_class: str
    has_own_layers: bool
    #: The user's norm is a ``torch.autograd.Function``, whose backward is in Python.
    has_own_backward: bool = False

    @property
    def norm_backward(self) -> tuple[PythonFrame, ...]:
        """Return the frames of a backward that is written in Python, on the engine's thread."""
        if not self.has_own_backward:
            return ()
        apply = PythonFrame(f"{TORCH}autograd/function.py", 313, "apply")
        return apply, PythonFrame(self.own_file, 104, "backward")

    def own_module(self, name: str) -> str:
        """Return a file of the user's beside the model; in a notebook it is the cell."""
        folder = self.own_file.rpartition("/")[0]
        return f"{folder}/{name}" if folder and self.style != "notebook" else self.own_file

    def module(self, line: int, name: str = "forward", file: str = "") -> tuple[PythonFrame, ...]:
        """Return the frames of a call of a module of the user's model."""
        return *MODULE_CALL, PythonFrame(file or self.model_file, line, name)

    def leaf(self, kind: str) -> tuple[PythonFrame, ...]:
        """Return the frames of a call of a linear layer, norm, embedding or dropout."""
        if self.has_own_layers and kind in ("linear", "norm", "embedding"):
            line = {"linear": 31, "norm": 58, "embedding": 80}[kind]
            return *MODULE_CALL, PythonFrame(self.own_file, line, "forward")
        if kind == "linear":
            return *MODULE_CALL, PythonFrame(f"{TORCH}nn/modules/linear.py", 134, "forward")
        name, line = {
            "norm": ("normalization", 229),
            "embedding": ("sparse", 192),
            "dropout": ("dropout", 73),
        }[kind]
        function = {
            "norm": ("layer_norm", 2985),
            "embedding": ("embedding", 2567),
            "dropout": ("dropout", 1490),
        }
        return (
            *MODULE_CALL,
            PythonFrame(f"{TORCH}nn/modules/{name}.py", line, "forward"),
            PythonFrame(f"{TORCH}nn/functional.py", function[kind][1], function[kind][0]),
        )


def draw_codebase(chance: random.Random) -> Codebase:
    """Return the files of a random program."""
    style = chance.choice(("script", "script", "package", "trainer", "notebook", "flat"))
    own, own_backward = chance.random() < 0.3, chance.random() < 0.5
    if style == "trainer":
        main = (
            PythonFrame("/data/runs/finetune/run_clm.py", 688, "<module>"),
            PythonFrame("/data/runs/finetune/run_clm.py", 622, "main"),
        )
        return Codebase(
            style=style,
            main=main,
            setup=(PythonFrame("/data/runs/finetune/run_clm.py", 431, "build"),),
            loop=(PythonFrame(_TRAINER, 2240, "train"), PythonFrame(_TRAINER, 2555, "_inner_training_loop")),
            micro_step=(
                PythonFrame(_TRAINER, 3745, "training_step"),
                PythonFrame(_TRAINER, 3810, "compute_loss"),
            ),
            model_file=_LLAMA,
            own_file="/data/runs/finetune/custom.py",
            model_class="LlamaForCausalLM",
            has_own_layers=False,
        )
    if style == "notebook":
        cell = f"<ipython-input-{chance.randint(3, 60)}-{chance.getrandbits(48):012x}>"
        if chance.random() < 0.5:
            cell = f"/tmp/ipykernel_{chance.randint(100, 99999)}/{chance.getrandbits(31)}.py"
        names = ("<module>", "<cell line: 1>") if chance.random() < 0.5 else ("<module>", "run")
        return Codebase(
            style=style,
            main=(*_IPYTHON, PythonFrame(cell, 1, names[1])),
            setup=(PythonFrame(cell, 12, "make_model"),),
            loop=(PythonFrame(cell, 34, "fit"),),
            micro_step=(),
            model_file=cell.replace(".py", "7.py") if cell.endswith(".py") else cell,
            own_file=cell,
            model_class="TinyGPT",
            has_own_layers=own,
            has_own_backward=own_backward,
        )
    if style == "flat":
        script = "train_gpt2.py"
        return Codebase(
            style=style,
            main=(PythonFrame(script, 310, "<module>"),),
            setup=(),
            loop=(),
            micro_step=(),
            model_file=script,
            own_file=script,
            model_class="GPT",
            has_own_layers=own,
            has_own_backward=own_backward,
        )
    root = {"script": "/workspace/gpt/", "package": "/home/ana/src/lmkit/lmkit/"}[style]
    script = f"{root}{chance.choice(('train.py', 'pretrain.py', 'main.py'))}"
    return Codebase(
        style=style,
        main=(PythonFrame(script, 402, "<module>"), PythonFrame(script, 371, "main")),
        setup=(PythonFrame(script, 88, "build_model"),),
        loop=(PythonFrame(script, 240, "train"),),
        micro_step=(PythonFrame(script, 190, chance.choice(("train_step", "run_batch", "step"))),),
        model_file=f"{root}{chance.choice(('model.py', 'modeling.py', 'nn/transformer.py'))}",
        own_file=f"{root}layers.py",
        model_class="Transformer",
        has_own_layers=own,
        has_own_backward=own_backward,
    )
