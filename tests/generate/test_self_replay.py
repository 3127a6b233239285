"""Dreams: sampled text with its origin, and stores that are filled before the first step."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rich.console import Console

from tests.command import trc2
from tests.conftest import tiny_config
from trc2 import RunConfig, UserError
from trc2.backbones.registry import build_model
from trc2.generate.sampling import Sampling
from trc2.generate.self_replay import dream
from trc2.runs.folder import RunFolder
from trc2.stream.tokenizer import train_bpe
from trc2.training.loop import Trainer
from trc2.training.resume import resume_run
from trc2.training.setup import start_run
from trc2.verify.kill_tests import compare_runs

QUIET = Console(quiet=True)


def test_the_same_seed_dreams_the_same_and_no_dream_comes_twice() -> None:
    tokenizer = train_bpe(["apple pear plum"], 280)
    net = build_model(tiny_config(vocab_size=280, replay=False), torch.Generator().manual_seed(0))

    def texts(seed: int) -> list[str]:
        return [found.text for found in dream(net, tokenizer, Sampling(20, seed=seed), tokens=300)]

    assert texts(1) == texts(1) != texts(2)
    assert len(set(texts(1))) == len(texts(1))
    assert 300 <= sum(found.tokens for found in dream(net, tokenizer, Sampling(20), tokens=300)) < 320
    few = list(dream(net, tokenizer, Sampling(2, temperature=1e-6), tokens=300))
    assert len(few) <= 1  # it repeats itself, and stops
    with pytest.raises(UserError, match="temperature=0 is not above 0"):
        list(dream(net, tokenizer, Sampling(temperature=0), tokens=1))


def test_a_model_with_an_infinite_weight_is_told_not_sampled() -> None:
    tokenizer = train_bpe(["apple pear plum"], 280)
    net = build_model(tiny_config(vocab_size=280, replay=False), torch.Generator().manual_seed(0))
    with torch.no_grad():
        net.get_input_embeddings().weight[7] = torch.inf
    with pytest.raises(UserError, match="not finite: it is broken"):
        list(dream(net, tokenizer, Sampling(20), tokens=50))


def test_a_run_dreams_into_a_file_that_fills_the_stores_of_the_next_one(
    tiny_run: Callable[..., RunConfig], trained: Path, tmp_path: Path
) -> None:
    path = tmp_path / "dreams.jsonl"
    done = trc2("dream", str(trained), "--tokens", "200", "--seed", "3", "--length", "30", "--out", str(path))
    assert done.code == 0, done.err
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert all(row["dream"]["seed"] == 3 and row["dream"]["model"] == str(trained) for row in rows)
    assert trc2("dream", str(trained), "--out", str(path)).code == 2  # it exists

    stream = {**tiny_run().stream.model_dump(), "replay_prefill_files": [str(path)]}  # type: ignore[union-attr]
    seen = []

    class Stop(Exception):
        pass

    def first_step(self: Trainer) -> None:
        assert self.state.model.replay is not None
        seen.append(self.state.model.replay.num_seen)
        raise Stop

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "train_step", first_step)
        with pytest.raises(Stop):
            start_run(tiny_run(stream=stream, output={"folder": tmp_path / "parted"}), QUIET)
    assert seen[0] > 20
    resume_run(tmp_path / "parted", [], QUIET)
    start_run(tiny_run(stream=stream, output={"folder": tmp_path / "whole"}), QUIET)
    assert compare_runs(tmp_path / "whole", tmp_path / "parted")[0] == []
    first = next(record for record in RunFolder(tmp_path / "whole").records() if record.kind == "train")
    assert first.metrics["train/loss_replay"] > 0
    described = RunFolder(tmp_path / "whole").data()
    assert described["seeds"][0]["documents"] == len(rows)
    assert described["fingerprint"] != RunFolder(trained).data()["fingerprint"]
    path.write_text(json.dumps({"text": "other words"}) + "\n")
    with pytest.raises(UserError, match="has changed since the run began"):
        resume_run(tmp_path / "whole", [], QUIET)


def test_seeds_without_stores_are_refused(tiny_run: Callable[..., RunConfig]) -> None:
    stream = {**tiny_run().stream.model_dump(), "replay_prefill_files": ["x.jsonl"]}  # type: ignore[union-attr]
    hard = {**tiny_run().model.model_dump(), "replay_keep": "loss"}
    with pytest.raises(UserError, match=r"stream.replay_prefill_files were never learned: choose uniform or balanced"):
        tiny_run(stream=stream, model=hard)
    with pytest.raises(UserError, match=r"stream.replay_prefill_files fills replay stores, but model.replay is false"):
        tiny_run(stream=stream, model={**tiny_run().model.model_dump(), "replay": False})
    with pytest.raises(UserError, match=r"There is no file x.jsonl"):
        start_run(tiny_run(stream=stream), QUIET)
