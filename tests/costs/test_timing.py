"""`trc2 bench`: turns are taken, ratios are ratios, and every number a report shows was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tests.conftest import tiny_config
from trc2 import UserError, load_recipe
from trc2.backbones.mamba import MambaConfig
from trc2.backbones.moe import MoEConfig
from trc2.backbones.registry import build_model
from trc2.backbones.transformer import TransformerConfig
from trc2.cli import app
from trc2.config import RunConfig, TrainConfig
from trc2.costs.benchmarks import prepared_model, rival
from trc2.costs.breakdown import subsystem_runs
from trc2.costs.comparison import bench_scaling, pass_flops, peak_memory
from trc2.costs.timing import Timing, ratio, take_turns

TINY = RunConfig(model=tiny_config(), train=TrainConfig(sequence_length=8, batch_size=2))


def test_alternatives_take_turns_after_a_warm_up() -> None:
    order: list[str] = []
    times = take_turns({name: lambda name=name: order.append(name) for name in "abc"}, repeats=5, warmup=1)
    rounds = ["".join(order[start : start + 3]) for start in range(0, 18, 3)]
    assert [sorted(turn) for turn in rounds] == [["a", "b", "c"]] * 6
    assert len(set(rounds)) > 1, "no candidate always comes after the same one"
    assert all(len(timing.seconds) == 5 for timing in times.values())


def test_a_ratio_says_how_many_times_faster() -> None:
    slow, fast = Timing((4.0, 9.0, 50.0)), Timing((2.0, 3.0, 40.0))
    assert ratio(slow, fast) == 2.0, "the median of 2, 3 and 1.25"


def test_memory_and_stores_are_full() -> None:
    net = prepared_model(tiny_config())
    assert net.num_events == net.config.memory_slots
    assert net.replay is not None
    assert net.replay.num_recent == net.config.replay_recent_chunks
    assert net.replay.sample(0, 0) is not None


def test_the_command_writes_a_picture_and_a_complete_and_consistent_report(tmp_path: Path) -> None:
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text(json.dumps(TINY.model_dump(mode="json")))
    against = ["--against", "mixtral", "--repeats", "1", "--out", str(tmp_path / "b")]
    done = CliRunner().invoke(app, ["bench", str(recipe), *against])
    assert done.exit_code == 0, done.exception
    assert "full over ablated per flop" in done.stdout
    assert (tmp_path / "b" / "bench.png").stat().st_size > 5000
    report = json.loads((tmp_path / "b" / "bench.json").read_text())
    assert report["backbone"] == "trc2"
    results, seconds = report["results"], report["seconds"]
    assert results["full_over_mixtral"] == pytest.approx(
        seconds["learning pass, mixtral"]["minimum"] / seconds["learning pass"]["minimum"]
    )
    ablated = tiny_config(thalamus=False, memory=False, replay=False)
    expected = pass_flops(ablated, 2, 8) / pass_flops(TINY.model, 2, 8)
    assert results["flops_ablated_over_full"] == pytest.approx(expected)
    assert {"part: attention", "part: experts", "part: thalamus", "part: memory read", "part: head and loss"} <= set(
        seconds
    )
    assert all(value > 0 for value in results.values())


@pytest.mark.parametrize("name", ["transformer", "mamba"])
def test_every_backbone_has_parts(name: str) -> None:
    config = load_recipe(f"lab_{name}", ["model.d_model=16", "model.num_layers=1", "model.vocab_size=64"]).model
    runs = subsystem_runs(build_model(config), 2, 8)
    assert list(runs) == ["mixers", "feed-forward", "head and loss", "flush", "slow heads"]
    for run in runs.values():
        run()


def test_parts_leave_the_network_alone() -> None:
    net = prepared_model(tiny_config())
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    for name, run in subsystem_runs(net, 2, 8).items():
        if name not in ("flush", "slow heads"):
            run()
    after = {name: tensor for name, tensor in net.state_dict().items() if name != "clock.micro_step"}
    assert all(torch.equal(before[name], tensor) for name, tensor in after.items())


@pytest.mark.parametrize("axis", ["tokens", "batch", "slots", "experts", "columns"])
def test_scaling_follows_its_axis(axis: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from trc2.costs import comparison as measure

    field, _ = measure.SCALING[axis]
    monkeypatch.setitem(measure.SCALING, axis, (field, (4, 8)))
    run = RunConfig(
        model=tiny_config(replay=False, num_active_experts=2), train=TrainConfig(sequence_length=8, batch_size=2)
    )
    points = bench_scaling(run, axis, repeats=1)["points"]
    assert [point[axis] for point in points] == [4, 8]
    assert points[0]["flops"] < points[1]["flops"]


def test_unknown_names_get_a_hint() -> None:
    with pytest.raises(UserError, match="no scaling 'slot': did you mean 'slots'"):
        bench_scaling(TINY, "slot")
    with pytest.raises(UserError, match="no rival 'mixtrall': did you mean 'mixtral'"):
        rival("mixtrall", TINY.model)
    with pytest.raises(UserError, match="transformer has no memory_slots"):
        bench_scaling(load_recipe("lab_transformer"), "slots")


def test_the_rival_has_our_shape() -> None:
    theirs = rival("mixtral", tiny_config())
    assert theirs.config.num_experts_per_tok == 3  # two routed and the shared one
    assert (theirs.config.hidden_size, theirs.config.num_hidden_layers, theirs.config.vocab_size) == (16, 3, 29)
    assert theirs.config.intermediate_size == 12


def test_the_rival_mamba_takes_sizes_from_our_mamba_only() -> None:
    """A TRC² network has a thalamic rank, which is not the rank of Mamba's steps."""
    small = {"vocab_size": 29, "d_model": 32, "num_layers": 1, "max_positions": 16}
    ours = rival("mamba", MambaConfig(**small, state_dim=8, dt_rank=3, conv_width=5)).config
    assert (ours.state_size, ours.time_step_rank, ours.conv_kernel) == (8, 3, 5)
    other = rival("mamba", tiny_config(d_model=32, thalamic_rank=8)).config
    assert (other.state_size, other.time_step_rank, other.conv_kernel) == (16, 2, 4)


def test_a_rival_of_a_network_without_experts_has_mixtrals_own_number_of_them() -> None:
    small = {"vocab_size": 29, "d_model": 32, "num_layers": 1, "d_ff": 8}
    dense = rival("mixtral", TransformerConfig(**small)).config
    routed = rival("mixtral", MoEConfig(**small, num_experts=4, num_active_experts=1)).config
    assert (dense.num_local_experts, dense.num_experts_per_tok) == (8, 2)
    assert (routed.num_local_experts, routed.num_experts_per_tok) == (4, 1)


def test_peak_memory_sees_the_logits_of_a_pass() -> None:
    """A pass over many more tokens needs more. Both are measured in processes of their own."""
    config = tiny_config(max_positions=2048, replay=False)
    assert peak_memory(config, 4, 2048)["learning_pass"] > peak_memory(config, 1, 8)["learning_pass"] + 1
