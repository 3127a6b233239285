"""Large models of transformers: what they need on paper, and FSDP, which learns what one process learns."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from tests.backbones.hf_models.conftest import KINDS
from tests.command import trc2
from tests.conftest import QUIET
from tests.distributed.several import alone, together
from tests.distributed.test_training import distance, stop_at, train_each
from tests.nn.test_recompute import kept_bytes
from trc2 import RunConfig
from trc2.backbones.hf import build
from trc2.backbones.registry import activations_of
from trc2.backbones.saved import load_model
from trc2.config import model_config
from trc2.hf.export import export_run
from trc2.nn.head import Head
from trc2.system.rng import keyed_generator
from trc2.training.resume import resume_run
from trc2.training.setup import start_run
from trc2.verify.kill_tests import compare_runs

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
Folder = Callable[[str], Path]
MakeRun = Callable[..., RunConfig]
FSDP = {"parallel": "fsdp", "check_ranks": True}
FEW = {"text_sequences": 0, "max_batches": 1, "every_steps": 6}
# An untied head, recomputed blocks. A tied and capped head. Adapters and frozen weights. Transposed matrices.
CASES: dict[str, tuple[dict[str, Any], bool]] = {
    "llama": ({}, True),
    "gemma2": ({}, False),
    "qwen2": ({"lora": {"rank": 2}}, False),
    "gpt2": ({"freeze": ["*wpe*"]}, True),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_units_are_the_blocks_and_the_tables_embedding_and_head(kind: str, model_folder: Folder) -> None:
    config = model_config({"name": "hf", "pretrained": str(model_folder(kind)), "replay": False})
    net = build(config)  # type: ignore[arg-type]
    assert len(net.units()) == config.depth
    held = {id(p) for unit in net.units() for p in unit.parameters()} | {id(table) for table in net.tables()}
    left = sum(p.numel() for p in net.parameters() if id(p) not in held)
    assert left < 0.25 * sum(p.numel() for p in net.parameters())  # norms, and positions of GPT-2


@pytest.mark.parametrize("kind", KINDS)
def test_activations_are_counted_without_weights(kind: str, model_folder: Folder) -> None:
    config = model_config({"name": "hf", "pretrained": str(model_folder(kind)), "replay": False})
    net = build(config, keyed_generator("weights", 0)).train()  # type: ignore[arg-type]
    x, y = torch.randint(300, (2, 2, 24), generator=torch.Generator().manual_seed(0))
    _, size = kept_bytes(net, x, y)
    kept = activations_of(config, 24, on_cpu=True)
    head = 4 * config.vocab_size * config.d_model if type(net.trunk.head) is Head else 0
    predicted = (kept.unit * kept.num_units + kept.once).bytes(4) * x.numel() + head
    assert 0.95 * size < predicted < 1.15 * size  # keys and values are counted for every head


@pytest.mark.slow
def test_a_folder_is_planned_for_all_weights_adapters_and_four_bits(model_folder: Folder, tmp_path: Path) -> None:
    folder = tmp_path / "eight billion"
    folder.mkdir()
    sizes = {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192, "tie_word_embeddings": False,
    }  # fmt: skip
    settings = {**json.loads((model_folder("llama") / "config.json").read_text()), **sizes, "head_dim": 128}
    (folder / "config.json").write_text(json.dumps(settings))  # and no weights
    told = json.loads(trc2("plan", str(folder), "--devices", "8", "--memory", "80", "--json").out)
    whole, lora, packed = ([row["bytes"] for row in told["ways"][name]["rows"]] for name in told["ways"])
    count = 8.03e9
    assert whole[0]["parameters"] == pytest.approx(4 * count, rel=0.01)
    assert whole[0]["optimizer"] == pytest.approx(8 * count, rel=0.01)
    assert [row["parallel"] for row in told["rows"]] == ["none", "fsdp", "fsdp", "fsdp"]
    assert [row["fits"] for row in told["rows"]] == [False, False, True, True]
    assert whole[3]["optimizer"] == pytest.approx(count, rel=0.01)  # an eighth of it
    assert lora[0]["optimizer"] < 0.01 * whole[0]["optimizer"]
    assert lora[0]["parameters"] == pytest.approx(4 * count, rel=0.02)
    assert packed[0]["parameters"] == pytest.approx(4 * 1.05e9 + 0.516 * 6.98e9, rel=0.03)  # embedding and head stay
    eight = ["train.optimizer=adamw_8bit", "model.dtype=bfloat16"]
    small = json.loads(trc2("plan", str(folder), *eight, "--devices", "1", "--json").out)["rows"][0]["bytes"]
    assert small["parameters"] == pytest.approx(2 * count, rel=0.01)
    assert small["optimizer"] == pytest.approx(2 * 1.016 * count, rel=0.01)


def test_a_model_in_half_precision_is_built_alike_with_and_without_weights(model_folder: Folder) -> None:
    """Else a resumed run would have other rotary angles than its beginning."""
    config = model_config({"name": "hf", "pretrained": str(model_folder("llama")), "dtype": "bfloat16"})
    first, later = (build(config, generator) for generator in (torch.Generator(), None))  # type: ignore[arg-type]
    assert {p.dtype for p in (*first.parameters(), *later.parameters())} == {torch.bfloat16}
    pairs = list(zip(first.trunk.named_buffers(), later.trunk.named_buffers(), strict=True))
    assert pairs
    assert all(name == other and torch.equal(a, b) and a.dtype == b.dtype for (name, a), (other, b) in pairs)


@pytest.mark.slow
def test_divided_models_learn_what_one_process_learns(model_folder: Folder, hf_run: MakeRun, tmp_path: Path) -> None:
    def configs(name: str, output: dict[str, Any]) -> list[RunConfig]:
        return [
            hf_run(
                model_folder(kind), model, eval=FEW,
                output={"folder": tmp_path / f"{kind} {name}", "recompute": recompute, **output},
            )
            for kind, (model, recompute) in CASES.items()
        ]  # fmt: skip

    together(2, train_each, configs("two", FSDP))
    alone(train_each, configs("one", {}))
    for kind in CASES:
        assert distance(tmp_path / f"{kind} one", tmp_path / f"{kind} two") < 1e-3, kind


@pytest.mark.slow
def test_a_divided_model_is_resumed_to_the_bit_and_exported_whole(
    model_folder: Folder, hf_run: MakeRun, tmp_path: Path
) -> None:
    def config(name: str) -> RunConfig:
        return hf_run(
            model_folder("llama"), eval=FEW, output={"folder": tmp_path / name, "keep_checkpoints": 9, **FSDP}
        )

    together(2, stop_at, 7, config("parted"))
    saved = tmp_path / "parted" / "checkpoints" / "step-00000007"
    rows, whole = (
        safetensors.torch.load_file(saved / name) for name in ("rows-00002-of-00002.safetensors", "tensors.safetensors")
    )
    divided = {
        f"model.trunk.lm.{name}.weight" for name in ("model.embed_tokens", "lm_head", "model.layers.1.mlp.up_proj")
    }
    assert divided <= rows.keys()
    assert "model.trunk.lm.model.norm.weight" in whole
    assert not divided & whole.keys()
    together(2, resume_run, tmp_path / "parted", [], QUIET)
    together(2, start_run, config("whole"), QUIET)
    assert compare_runs(tmp_path / "whole", tmp_path / "parted")[0] in ([], ["state.rng"])
    export_run(tmp_path / "parted", tmp_path / "exported", "0")
    trained, first = (load_model(path).state_dict() for path in (tmp_path / "exported", model_folder("llama")))
    assert trained.keys() == first.keys()
    assert all(tensor.shape == first[name].shape for name, tensor in trained.items())
    assert any(not torch.equal(tensor, first[name]) for name, tensor in trained.items())
