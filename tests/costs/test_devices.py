"""What a run needs on paper, beside what torch really keeps and holds, and beside the paper's own speeds."""

from __future__ import annotations

import json

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from tests.command import trc2
from tests.nn.test_recompute import kept_bytes
from trc2.backbones.registry import activations_of
from trc2.config import RunConfig, load_recipe
from trc2.costs.benchmarks import prepared_model, tokens_of
from trc2.costs.devices import Device, all_needs, need, need_of, needs_json, remembered_bytes, usual_utilisation
from trc2.training.optimizer import build_optimizer

CPU = Device(memory=1e12, flops=1e12, utilisation=0.3, bandwidth=1e10, is_cpu=True)
V100 = Device(memory=32e9, flops=125e12, utilisation=0.2, bandwidth=25e9)
LAB = ["trc2", "plain", "transformer", "moe", "deepseek_moe", "blk_attn_res", "lora_drs", "mamba", "falcon"]
# Tokens per second of the paper's table of boundary scores, on 4 V100.
PAPER_SPEEDS = {
    "paper_d256_l24": 29_000,
    "paper_d512_l10": 61_000,
    "paper_d768_l4": 103_000,
    "paper_d768_l8": 59_000,
    "paper_d1024_l6": 60_000,
}


@pytest.mark.parametrize("name", LAB)
@pytest.mark.parametrize("length", [64, 128])
def test_what_a_pass_keeps_is_what_the_formulas_say(name: str, length: int) -> None:
    run = load_recipe(f"lab_{name}")
    model = prepared_model(run.model)
    if model.replay is not None:
        model.replay.set_strength(0.0, 4, 0.5)
    x, y = tokens_of(run.model, 2, length)
    _, size = kept_bytes(model, x, y)
    kept = activations_of(run.model, length, on_cpu=True)
    head = 4 * run.model.vocab_size * run.model.d_model
    predicted = (kept.unit * kept.num_units + kept.once).bytes(4) * x.numel() + head
    assert predicted == pytest.approx(size, rel=0.06)


def live_peak(run: RunConfig) -> int:
    """The most bytes of tensors ever held during a training step, by torch's own account of every allocation."""
    model, train = prepared_model(run.model), run.train
    model.trunk.recompute = run.output.recompute
    optimizer = build_optimizer(model, train)
    x, y = tokens_of(run.model, train.batch_size, train.sequence_length)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        for _ in range(train.micro_batches):
            _, aux = model(x, y, return_logits=False)
            aux["loss"].backward()
        model.commit()
        optimizer.step()
        model.after_step()

    step()
    optimizer.zero_grad(set_to_none=True)
    moments = [value for values in optimizer.state.values() for value in values.values()]
    static = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers(), *moments))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        step()
    assert watched.profiler is not None
    assert watched.profiler.kineto_results is not None
    events = [event for event in watched.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = torch.tensor([event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]).cumsum(0)
    return static + int(held.max())


@pytest.mark.parametrize(
    ("recipe", "overrides"),
    [
        ("lab_trc2", ["train.batch_size=8"]),
        ("lab_trc2", ["train.batch_size=8", "train.micro_batches=2"]),
        ("lab_trc2", ["train.batch_size=8", "output.recompute=true"]),
        ("lab_transformer", ["train.batch_size=8"]),
    ],
)
def test_the_memory_of_one_process_is_foretold_within_fifteen_percent(recipe: str, overrides: list[str]) -> None:
    run = load_recipe(recipe, overrides)
    found = need_of(run, CPU, 1, "ddp", run.output.recompute)
    assert found.total + found.host_bytes == pytest.approx(live_peak(run), rel=0.15)


@pytest.mark.parametrize(("recipe", "speed"), PAPER_SPEEDS.items())
def test_the_papers_speeds_lie_within_what_is_foretold_for_its_machine(recipe: str, speed: float) -> None:
    run = load_recipe(recipe)
    device = Device(32e9, 125e12, usual_utilisation(run.model), 25e9)
    row = needs_json(recipe, run, device, [need(run, device, 4)], is_guess=True)["rows"][0]
    low, high = row["tokens_per_second_range"]
    assert low < speed < high
    assert row["fits"]


def test_the_simplest_way_that_fits_is_chosen() -> None:
    run = load_recipe("paper_d1024_l6")
    ways = {gigabytes: need(run, Device(gigabytes * 1e9, 125e12, 0.2, 25e9), 16) for gigabytes in (40, 11, 6, 1)}
    assert [(found.parallel, found.recompute, found.fits) for found in ways.values()] == [
        ("ddp", False, True), ("ddp", True, True), ("fsdp", True, True), ("fsdp", True, False),
    ]  # fmt: skip
    alone = need(run, Device(1e9, 125e12, 0.2, 25e9), 1)
    assert (alone.parallel, alone.recompute, alone.fits) == ("none", True, False)


def test_more_devices_hold_less_and_a_step_that_is_too_small_for_them_is_marked() -> None:
    run = load_recipe("paper_d768_l4")
    rows = all_needs(run, V100)
    assert [row.devices for row in rows] == [2**power for power in range(11)]
    assert [row.with_more_micro_batches for row in rows] == [row.devices > 16 for row in rows]
    assert [row.devices for row in all_needs(run, V100, 6)] == [1, 2, 4, 6]
    divided = [need_of(run, V100, count, "fsdp", False) for count in (2, 4, 8)]
    assert divided[0].parts["optimizer"] > 1.8 * divided[1].parts["optimizer"]
    whole = need_of(run, V100, 4, "ddp", False)
    assert whole.bytes_sent_per_step == pytest.approx(2 * 0.75 * whole.parts["gradients"], rel=0.01)
    assert remembered_bytes(run, 4) < 0.001 * whole.bytes_sent_per_step


def test_the_command_prints_a_table_json_and_a_sentence() -> None:
    table = trc2("plan", "demo", "--devices", "4", "--memory", "0.1")
    assert table.code == 0
    assert all(word in table.out for word in ("recompute", "fsdp"))
    assert "communication that does not overlap" in " ".join(table.out.split())
    told = json.loads(trc2("plan", "demo", "--devices", "2", "--utilisation", "0.5", "--json").out)
    assert [row["devices"] for row in told["rows"]] == [1, 2]
    assert "tokens_per_second_range" not in told["rows"][0]
    model_only = json.loads(trc2("plan", "paper_compact", "--devices", "1", "--json").out)
    assert model_only["rows"][0]["hours"] == 0
    wrong = trc2("plan", "demo", "--utilisation", "nan")
    assert (wrong.code, "is not a share" in " ".join(wrong.err.split())) == (2, True)
