"""Rows that are decoded together although they began at different times, compared with each row alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.backbones.test_all import CASES, VARIANTS, excited_net
from tests.conftest import excited, fill_memory, tiny_config, tokens
from tests.test_commands import make_llama
from trc2 import CortexNet
from trc2.backbones.saved import load_model
from trc2.backbones.shell import Backbone
from trc2.nn.decoding import Decoding


def cortex() -> Backbone:
    net = excited(CortexNet(tiny_config())).double().eval()
    fill_memory(net, 7)
    return net


NETS: dict[str, Callable[[], Backbone]] = {"trc2": cortex}
NETS |= {case.name: lambda name=case.name: excited_net(name, torch.float64) for case in (*CASES, *VARIANTS)}


def begin(net: Backbone, row: Tensor) -> Decoding:
    decoding = net.start_decoding()
    net.decode(row, decoding)
    return decoding


@torch.no_grad()
def check_rows_that_join_and_leave(net: Backbone, atol: float) -> None:
    """Rows of 3, 9 and 5 tokens join one after the other. The longest leaves. Each must see only its own tokens."""
    ids = tokens(net.config, 3, 30, seed=4)  # type: ignore[arg-type]
    whole = net(ids)[0]
    lengths = [3, 9, 5]
    together = begin(net, ids[:1, : lengths[0]])
    rows, used = [0], lengths.copy()

    def step() -> None:
        ahead = torch.stack([ids[row, used[row]] for row in rows]).unsqueeze(1)
        logits = net.decode(ahead, together)[:, -1]
        for place, row in enumerate(rows):
            torch.testing.assert_close(logits[place], whole[row, used[row]], atol=atol, rtol=1e-6)
            used[row] += 1

    step()
    for new in (1, 2):
        assert together.can_join
        together.join(begin(net, ids[new : new + 1, : lengths[new]]))
        rows.append(new)
        step()
    together.reorder(torch.tensor([2, 0]))
    rows = [2, 0]
    before = together.length
    together.drop_padding()
    assert together.length == max(used[0], used[2]) < before
    step()
    together.reorder(torch.tensor([1]))
    rows = [0]
    together.drop_padding()
    assert together.length == used[0]
    assert together.valid is None
    step()


@pytest.mark.parametrize("name", NETS)
def test_a_row_is_decoded_as_if_it_were_alone(name: str) -> None:
    check_rows_that_join_and_leave(NETS[name](), atol=1e-9)


def test_a_row_of_a_hugging_face_model_is_decoded_as_if_it_were_alone(tmp_path: Path) -> None:
    make_llama(tmp_path)
    check_rows_that_join_and_leave(load_model(tmp_path).eval(), atol=1e-4)


def test_a_cache_that_forgets_tokens_cannot_be_joined(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 300, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "sliding_window": 4}
    transformers.MistralForCausalLM(transformers.MistralConfig(**sizes, **heads)).save_pretrained(tmp_path)
    net = load_model(tmp_path).eval()
    with torch.no_grad():
        assert not begin(net, torch.ones(1, 3, dtype=torch.int64)).can_join
