"""List the models that have a name: published ones (``presets.json``) and those of the ZeRO paper.

``presets.json`` has the keys of each published config.json that set sizes; parameters are counted from them,
tensor by tensor.

The ZeRO paper's shapes come from its tables 5 (figure 2), 6 (figure 3), 7 (figure 6) and 10 (figure 4). Table
4 prints hidden 4096 for 40B to 60B, which is an error: 12 * 88 * 4096^2 is only 17.7e9. Table 5 has the
correct 6144. If two tables give a model different shapes, the second preset has the shape in its name.
"""

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

import msgspec
from msgspec import Struct

from zprof.base.errors import BadInput, ask_for_name
from zprof.model.job import Shape
from zprof.model.transformer import Transformer
from zprof.planner.model_shapes import count_parameters
from zprof.planner.models import counting
from zprof.planner.models.config_file import ConfigAssumption, parse_config
from zprof.planner.models.shapes import make_shape, make_transformer

#: GPT-2's 50257 words, padded as Megatron-LM pads them (a multiple of 128 on each of 8 or 16 ranks).
_VOCABULARY = 51_200
#: "Sequence length 1K" throughout the paper.
_CONTEXT = 1024
#: Heads by hidden size: from table 5 if it lists the size, else heads of 96 to 160 elements.
_HEADS = {1600: 16, 1920: 16, 2304: 24, 3072: 24, 4096: 32, 6144: 32, 8192: 64, 25600: 160}
_SEPARATORS = re.compile(r"[-_/\s]+")
#: Words of a name that do not change the shape: publishers, tuning, precision, dates and revisions.
_IRRELEVANT = re.compile(
    r"meta|nvidia|hf|base|it|instruct|chat|thinking|original|8k|bf16|fp8|mxfp4|nvfp4|v0\.\d|\d{4}"
)
_PAPER = "arXiv 1910.02054"
_PAPER_MODELS = (
    ("gpt2-1.5b", 48, 1600, f"{_PAPER}, section 3.2 and table 5"),
    ("1.5b", 34, 1920, f"{_PAPER}, table 10"),
    ("2.5b", 54, 1920, f"{_PAPER}, table 10"),
    ("4b", 64, 2304, f"{_PAPER}, table 10"),
    ("6b", 52, 3072, f"{_PAPER}, table 10"),
    ("7.5b", 36, 4096, f"size of {_PAPER}, figure 1, which gives no shape"),
    ("8b", 72, 3072, f"{_PAPER}, tables 5 and 10"),
    ("10b", 50, 4096, f"{_PAPER}, table 10"),
    ("11b", 54, 4096, f"{_PAPER}, table 10"),
    ("12b", 58, 4096, f"{_PAPER}, table 10"),
    ("13b", 62, 4096, f"{_PAPER}, table 10"),
    ("40b", 88, 6144, f"{_PAPER}, table 5 (table 4 prints hidden 4096, an error)"),
    ("40b-50x8192", 50, 8192, f"{_PAPER}, table 7"),
    ("50b", 62, 8192, f"{_PAPER}, table 7"),
    ("60b", 75, 8192, f"{_PAPER}, tables 6 and 9"),
    ("60b-132x6144", 132, 6144, f"{_PAPER}, tables 5 and 7 (table 4 prints hidden 4096, an error)"),
    ("80b", 100, 8192, f"{_PAPER}, table 5"),
    ("100b", 125, 8192, f"{_PAPER}, table 5"),
    ("120b", 150, 8192, f"{_PAPER}, table 5"),
    ("128b", 159, 8192, f"size of {_PAPER}, table 1, which gives no shape"),
    ("140b", 175, 8192, f"{_PAPER}, tables 5 and 7"),
    ("150b", 187, 8192, f"{_PAPER}, table 7"),
    ("170b", 212, 8192, f"{_PAPER}, tables 5 and 9"),
    ("1t", 128, 25600, f"size of {_PAPER}, table 1; shape of arXiv 2104.04473, table 1"),
)
_PAPER_CONTEXTS = {"1t": 2048}


class ModelPreset(Struct, frozen=True, kw_only=True):
    """A named model; ``source``: publication of its shape.

    ``shape``: None if the reference engine has no such layers. ``parameters``: of the paper's models by the
    paper's formula, without norms and biases; of all others the exact number.
    """

    name: str
    source: str
    transformer: Transformer
    parameters: int
    shape: Shape | None = None
    aliases: tuple[str, ...] = ()
    assumptions: tuple[ConfigAssumption, ...] = ()


def find_preset(name: str) -> ModelPreset:
    """Return the model with that name, as people type it: ``llama3-8b``, ``meta-llama/Meta-Llama-3-8B``.

    Case, separators, the owner of a repository and words that do not change the shape are ignored.

    Raises:
        BadInput: no preset has that name; the hint lists similar names.
    """
    presets, typed = load_presets(), name.strip()[:100]
    names = _index_names()
    for candidate in (typed, typed.rpartition("/")[2]):
        if preset_name := names.get(_normalize_name(candidate)):
            return presets[preset_name]
    question = ask_for_name(typed.rpartition("/")[2], presets)
    raise BadInput(
        f"unknown model {name[:60]!r}",
        hint=" ".join((*([question] if question else []), "zprof plan --preset list shows all")),
    )


@cache
def load_presets() -> Mapping[str, ModelPreset]:
    """Return all models by name: the ZeRO paper's, then the published ones by family."""
    presets = [_make_paper_preset(*row) for row in _PAPER_MODELS]
    published = msgspec.json.decode((files(__package__) / "presets.json").read_bytes())
    for name, entry in published.items():
        model = parse_config(entry["config"], where=name, name=name)
        presets.append(
            ModelPreset(
                name=name,
                source=entry["source"],
                transformer=model.transformer,
                parameters=counting.count_parameters(model.transformer),
                shape=make_shape(model.transformer),
                aliases=tuple(entry.get("aliases", ())),
                assumptions=model.assumptions,
            )
        )
    return {preset.name: preset for preset in presets}


@cache
def _index_names() -> Mapping[str, str]:
    """Return the name of the preset by each normalized name."""
    return {
        _normalize_name(name): preset.name
        for preset in load_presets().values()
        for name in (preset.name, *preset.aliases)
    }


def _normalize_name(name: str) -> str:
    words = [word for word in _SEPARATORS.split(name.lower()) if word and not _IRRELEVANT.fullmatch(word)]
    return "".join(words)


def _make_paper_preset(name: str, layers: int, hidden: int, source: str) -> ModelPreset:
    context = _PAPER_CONTEXTS.get(name, _CONTEXT)
    shape = Shape(layers=layers, hidden=hidden, vocabulary=_VOCABULARY, context=context, heads=_HEADS[hidden])
    return ModelPreset(
        name=name,
        source=source,
        transformer=make_transformer(shape),
        parameters=count_parameters(shape),
        shape=shape,
    )
