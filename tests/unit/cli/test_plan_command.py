"""``zprof plan``: the paper's figures, and every option reaches the job."""

import json
import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.command_calls import Call
from zprof.planner.plan_request import plan_request
from zprof.planner.request import PlanRequest
from zprof.reports.pages.plan_search import format_layout_command

SHAPED = ("--layers", "4", "--hidden", "256", "--heads", "4", "--vocabulary", "512", "--context", "64")


def planned(call: Call, *options: str | Path) -> Any:
    code, out, _ = call("plan", *options, "-f", "json")
    assert code == 0
    return json.loads(out)


def test_every_option_reaches_the_job(call: Call) -> None:
    job = planned(
        call, *SHAPED, "--untied", "--micro-batch", "2", "--sequence", "64", "--micro-batches", "3", "--dp",
        "8", "--mp", "2", "--pp", "2", "--checkpointing", "--partition-activations", "--offload-activations",
        "--constant-buffers", "5e5", "--defragment", "--prefetch", "2", "--keep-last", "--backend", "gloo",
        "--hardware", "v100", "--device-memory", "16GB", "--bandwidth", "50GB/s", "--latency", "20us",
        "--intra-bandwidth", "200GB/s", "--intra-latency", "3us",
    )["job"]  # fmt: skip
    assert job["shape"] == {
        "layers": 4, "hidden": 256, "vocabulary": 512, "context": 64, "heads": 4, "tied": False,
        "block": None,
    }  # fmt: skip
    assert job["degrees"] == {"dp": 8, "mp": 2, "pp": 2}
    assert job["batch"] == {"samples": 2, "sequence": 64, "micro_batches": 3}
    assert job["residual"] == {
        "checkpointing": True, "partition": True, "offload": True, "constant_buffer_elements": 500_000,
        "defragment": True,
    }  # fmt: skip
    assert (job["overlap"]["prefetch"], job["overlap"]["keep_last"], job["backend"]) == (2, True, "gloo")
    hardware = job["hardware"]
    assert hardware["memory_bytes"] == 16 * 10**9
    assert (hardware["node_bytes_per_s"], hardware["inter_latency_ns"]) == (50e9, 20_000)
    assert (hardware["intra_bytes_per_s"], hardware["intra_latency_ns"]) == (200e9, 3_000)
    assert hardware["flops_per_s"] == 125e12, "the rest is the preset's"


def test_a_preset_grows_to_the_sequence(call: Call) -> None:
    short, long = (planned(call, "--preset", "7.5b", "--sequence", n)["job"] for n in ("1024", "4096"))
    assert (short["name"], short["shape"]["layers"], short["shape"]["context"]) == ("7.5b", 36, 1024)
    assert (long["shape"]["context"], long["name"] == short["name"]) == (4096, False)
    assert long["parameters"] - short["parameters"] == 3072 * 4096, "a row of positions for each"
    shape = planned(call, "--layers", "4", "--hidden", "256", "--sequence", "128")["job"]["shape"]
    assert shape["context"] == 128


def test_parameters_alone_are_answered_and_what_is_assumed_is_marked(call: Call) -> None:
    stated = ("--params", "13e9", "--dp", "64", "--framework", "reference")
    plan = planned(call, *stated)
    job, rows = plan["job"], {row["scheme"]: row for row in plan["rows"]}
    assert job["assumed"] == ["shape", "micro_batch", "sequence", "hardware"]
    assert (job["shape"]["layers"], job["shape"]["hidden"], job["parameters"]) == (40, 5120, 13 * 10**9)
    zero_3 = rows["zero_3"]
    assert zero_3["fits"] is True
    assert zero_3["step"]["wall_ns"] > 0
    assert {"fits", "step", "peak_bytes", "largest_parameters"} == set(zero_3["assumed"])
    (link,) = zero_3["links"]
    assert (link["elements"], link["assumed"]) == (3 * 13 * 10**9, ["time_ns"]), "bytes are of the parameters"
    assert zero_3["state_bytes"] == 16 * 13 * 10**9 // 64
    out = call("plan", *stated)[1]
    assert "~" in out
    assert "~208" not in out, "the paper's figure rests on nothing that is assumed"


def test_what_is_stated_is_not_replaced_and_not_marked(call: Call) -> None:
    stated = ("--micro-batch", "2", "--sequence", "512", "--hardware", "a100")
    job = planned(call, "--params", "13e9", "--dp", "25", "--mp", "16", *stated)["job"]
    assert job["assumed"] == ["shape"]
    assert job["batch"] == {"samples": 2, "sequence": 512, "micro_batches": 1}
    assert (job["hardware"]["name"], job["degrees"]["mp"], job["parameters"]) == ("a100", 16, 13 * 10**9)
    assert job["shape"]["heads"] % 16 == 0, "a usual value fits what is stated"
    whole = planned(call, "--preset", "llama-3-8b", "--dp", "8", *stated)
    assert not whole["job"]["assumed"]
    assert not any(row["assumed"] or any(link["assumed"] for link in row["links"]) for row in whole["rows"])
    assert "~" not in call("plan", "--preset", "llama-3-8b", "--dp", "8", *stated)[1]


def test_a_size_without_a_usual_shape_is_a_gap(call: Call) -> None:
    plan = planned(call, "--params", "1e15", "--dp", "4")
    assert plan["job"]["shape"] is None
    assert plan["gaps"]


@pytest.mark.parametrize(
    ("preset", "world"), [("llama-3-70b", 64), ("mixtral-8x7b", 16), ("qwen2.5-0.5b", 1)]
)
def test_the_command_beside_a_layout_plans_this_layout(call: Call, preset: str, world: int) -> None:
    found = plan_request(
        PlanRequest(
            preset=preset, world=world, global_batch=128, sequence=2048, hardware="h100", fp32_reduce=True
        ),
        lambda name, job: job,
        analyses=("search",),
    )
    assert found.search is not None
    for estimate in found.search.front:
        _, _, *options = shlex.split(format_layout_command(found, estimate))
        (row,) = planned(call, *options)["rows"]
        assert row["layout"] == json.loads(msgspec.json.encode(estimate.layout))
        assert row["peak_bytes"] == estimate.peak_bytes


def test_a_search_says_what_it_tried(call: Call) -> None:
    found = planned(call, "--preset", "llama-3-8b", "--world", "16", "--global-batch", "64", "--search")[
        "search"
    ]
    assert found["best"] in found["front"]
    assert found["tried"] >= found["fitting"] >= len(found["front"]) > 1
    assert (found["devices"], found["global_batch"], found["sequence"]) == (16, 64, 4096)


def test_a_positional_config_is_that_of_the_option(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 2, "vocab_size": 1000,'
                    '"num_attention_heads": 8, "intermediate_size": 1024}')  # fmt: skip
    assert planned(call, path, "--dp", "2") == planned(call, "--config", path, "--dp", "2")
