"""The same face for every backbone: saved, loaded by the Auto classes, and decoded with the state its mixers keep."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import trc2.hf  # noqa: F401  # registers the Auto classes
from trc2.backbones.registry import build_model
from trc2.backbones.saved import load_model, save_model
from trc2.config import MODELS, model_config

SIZES = {"vocab_size": 31, "d_model": 16, "num_heads": 4, "max_positions": 40}
EXTRA: dict[str, dict[str, object]] = {
    "trc2": {"num_columns": 2, "num_kv_heads": 2, "memory_slots": 8, "d_ff": 12, "num_experts": 4, "replay": False},
    "mamba": {"state_dim": 4, "dt_rank": 3},
    "deepseek_moe": {"num_experts": 4, "num_active_experts": 2},
    "moe": {"num_experts": 4},
    "blk_attn_res": {"num_residual_blocks": 2},
}


@pytest.mark.parametrize("name", sorted(MODELS.keys() - {"hf"}))
def test_it_loads_and_generates_with_its_own_state(name: str, tmp_path: Path) -> None:
    shape = {} if name == "trc2" else {"num_layers": 2, "d_ff": 16}
    config = model_config({"name": name, **SIZES, **shape, **EXTRA.get(name, {})})
    net = build_model(config, torch.Generator().manual_seed(0)).eval()
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(8)  # at their initial size everybody predicts the token just read
    if name == "lora_drs":
        net.begin_task(1, [torch.randint(31, (2, 8))])
    save_model(net, tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    x = torch.randint(31, (2, 7), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(model(x).logits, net(x)[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model(x, use_cache=True).logits, net(x)[0], atol=1e-5, rtol=1e-5)
    settings = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    cached = model.generate(x, num_beams=2, **settings)
    assert torch.equal(cached, model.generate(x, num_beams=2, use_cache=False, **settings))
    model.save_pretrained(tmp_path / "again")
    torch.testing.assert_close(load_model(tmp_path / "again").eval()(x)[0], net(x)[0], atol=1e-5, rtol=1e-5)
