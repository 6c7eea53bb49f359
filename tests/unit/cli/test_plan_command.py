"""``zprof plan``: the paper's figures, and every option reaches the job."""

import json
from pathlib import Path
from typing import Any

from tests.support.command_calls import Call

SHAPED = ("--layers", "4", "--hidden", "256", "--heads", "4", "--vocabulary", "512", "--context", "64")
PAPER = ("plan", "--params", "7.5e9", "--dp", "64")


def planned(call: Call, *options: str | Path) -> Any:
    code, out, _ = call("plan", *options, "-f", "json")
    assert code == 0
    return json.loads(out)


def test_the_paper_figures_are_in_the_first_paragraph(call: Call) -> None:
    code, out, err = call(*PAPER)
    assert (code, err) == (0, "")
    assert "120 / 31.4 / 16.6 / 1.9 GB" in " ".join(out.split("\n\n")[0].split())
    rows = {row["scheme"]: row for row in planned(call, *PAPER[1:])["rows"]}
    assert len(rows) == 7
    states = {"zero_1": 31_406_250_000, "zero_2": 16_640_625_000, "zero_3": 1_875_000_000}
    assert {scheme: rows[scheme]["state_bytes"] for scheme in states} == states


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


def test_one_stage_is_one_row(call: Call) -> None:
    rows = planned(call, "--params", "7.5e9", "--dp", "64", "--stage", "3", "--keep-last")["rows"]
    assert [(row["scheme"], row["state_bytes"]) for row in rows] == [("zero_3", 1_875_000_000)]


def test_a_preset_grows_to_the_sequence(call: Call) -> None:
    short, long = (planned(call, "--preset", "7.5b", "--sequence", n)["job"] for n in ("1024", "4096"))
    assert (short["name"], short["shape"]["layers"], short["shape"]["context"]) == ("7.5b", 36, 1024)
    assert (long["shape"]["context"], long["name"] == short["name"]) == (4096, False)
    assert long["parameters"] - short["parameters"] == 3072 * 4096, "a row of positions for each"
    shape = planned(call, "--layers", "4", "--hidden", "256", "--sequence", "128")["job"]["shape"]
    assert shape["context"] == 128


def test_hardware_from_a_file(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "ours.toml"
    file.write_text('base = "h100"\nname = "ours"\nmemory_gb = 90\n')
    found = planned(call, "--params", "1B", "--hardware", file)["job"]["hardware"]
    assert (found["name"], found["memory_bytes"], found["devices_per_node"]) == ("ours", 90 * 10**9, 8)


def test_assumptions_in_full_have_their_source(call: Call) -> None:
    short, full = (call(*PAPER, *more)[1] for more in ((), ("--assumptions",)))
    assert "    source: " not in short
    assert "    source: " in full
    assert "1910.02054" in full


def test_parameters_alone_are_answered_and_what_is_assumed_is_marked(call: Call) -> None:
    stated = ("--params", "13e9", "--dp", "64")
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


def test_experts_are_planned_data_parallel_and_a_gap_says_so(call: Call) -> None:
    stated = ("--micro-batch", "1", "--sequence", "512", "--hardware", "h100", "--stage", "3")
    dense, mixture = (planned(call, "--preset", name, *stated) for name in ("mistral-7b", "mixtral-8x7b"))
    assert [gap["what"] for gap in mixture["gaps"]] == ["expert parallelism"]
    assert not dense["gaps"]
    dense_ns, mixture_ns = (plan["rows"][0]["step"]["compute_ns"] for plan in (dense, mixture))
    assert 1.6 < mixture_ns / dense_ns < 2, "2 of 8 experts compute"


def test_the_list_of_presets(call: Call) -> None:
    code, out, _ = call("plan", "--preset", "list")
    assert code == 0
    assert "llama-3-8b" in out
    assert "46,702,792,704" in out
