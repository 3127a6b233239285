"""A model of transformers in our shell computes what it computes in transformers: loss, gradients, decoding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor, nn

from tests.backbones.hf_models.conftest import KINDS, VOCAB
from trc2.backbones.hf import cost
from trc2.backbones.registry import build_model
from trc2.backbones.saved import load_model
from trc2.backbones.shell import Backbone
from trc2.config import model_config
from trc2.errors import UserError

Folder = Callable[[str], Path]
KNOWN = ["llama", "qwen2", "qwen3", "gpt2", "mixtral", "mamba"]
ODD_HEADS = ["gemma2", "granite", "phi"]


def net_of(folder: Path, **settings: object) -> Backbone:
    config = model_config({"name": "hf", "pretrained": str(folder), "replay": False, **settings})
    return build_model(config, torch.Generator().manual_seed(0)).double()


def tokens(rows: int = 3, length: int = 17) -> Tensor:
    return torch.randint(VOCAB, (rows, length))


@pytest.mark.parametrize("kind", [*KNOWN, *ODD_HEADS])
def test_loss_and_gradients_are_those_of_transformers(kind: str, model_folder: Folder) -> None:
    net = net_of(model_folder(kind)).train()
    theirs = transformers.AutoModelForCausalLM.from_pretrained(model_folder(kind)).double().train()
    theirs.config._experts_implementation = "eager"  # the other one knows no float64
    for module in theirs.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    x = tokens()
    targets = torch.cat((x[:, 1:], torch.full((3, 1), -100)), dim=1)
    expected = theirs(input_ids=x, labels=x, **({"output_router_logits": True} if kind == "mixtral" else {}))
    expected.loss.backward()
    for return_logits in (False, True):
        net.zero_grad()
        logits, aux = net(x, targets, return_logits=return_logits)
        aux["loss"].backward()
        torch.testing.assert_close(aux["loss"].float(), expected.loss.float(), atol=2e-6, rtol=0)
        gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
        ours = {name.removeprefix("trunk.lm."): parameter.grad for name, parameter in net.named_parameters()}
        assert ours.keys() == gradients.keys()
        for name, gradient in gradients.items():
            torch.testing.assert_close(ours[name], gradient, atol=1e-6, rtol=1e-5, msg=name)
    torch.testing.assert_close(logits, expected.logits.double(), atol=1e-5, rtol=1e-5)
    assert ("loss_load_balance" in aux) == (kind == "mixtral")


@pytest.mark.parametrize("kind", [*KNOWN, "gemma2"])  # the last one's softmax is eager: padding must not become NaN
def test_pieces_padding_and_predictions_agree_with_the_whole(kind: str, model_folder: Folder) -> None:
    net, x = net_of(model_folder(kind)).eval(), tokens()
    with torch.no_grad():
        whole, _ = net(x)
        decoding = net.start_decoding()
        pieces = [net.decode(part, decoding) for part in x.split([5, 1, 3, 8], dim=1)]
        torch.testing.assert_close(torch.cat(pieces, dim=1), whole, atol=1e-5, rtol=1e-3)
        decoding.reorder(torch.tensor([2, 0, 0]))
        again = net.decode(x[[2, 0, 0], :1], decoding)
        longer, _ = net(torch.cat((x, x[:, :1]), dim=1))
        torch.testing.assert_close(again[:, 0], longer[[2, 0, 0], -1], atol=1e-5, rtol=1e-3)
        valid = torch.ones_like(x, dtype=torch.bool)
        valid[1, :4] = False
        torch.testing.assert_close(net(x, valid=valid)[0][1, 4:], net(x[1:2, 4:])[0][0], atol=1e-6, rtol=1e-6)
    found = net.predict(x, x.roll(-1, 1))
    assert torch.equal(found.tokens, whole.argmax(dim=-1))
    expected = nn.functional.cross_entropy(whole.flatten(0, 1), x.roll(-1, 1).flatten(), reduction="none")
    torch.testing.assert_close(found.nll.flatten(), expected)


@pytest.mark.parametrize("kind", ["llama", "qwen3", "phi"])
def test_a_state_holds_every_tensor_once_and_fits_a_model_built_without_weights(
    kind: str, model_folder: Folder
) -> None:
    net, x = net_of(model_folder(kind)).eval(), tokens()
    state = net.state_dict()
    places = [tensor.data_ptr() for name, tensor in state.items() if name.startswith("trunk.")]
    assert len(places) == len(set(places))
    assert ("trunk.lm.lm_head.weight" in state) == (kind != "qwen3")
    empty = build_model(net.config).double().eval()
    empty.load_state_dict({name: tensor.clone() for name, tensor in state.items()})
    assert torch.equal(empty(x)[0], net(x)[0])
    assert empty.trunk.head.weight is (empty.trunk.embedding.weight if kind == "qwen3" else empty.trunk.head.weight)


def test_sizes_come_from_the_folder_and_cost_is_six_n(model_folder: Folder) -> None:
    config = net_of(model_folder("llama")).config
    assert (config.vocab_size, config.d_model, config.max_positions, config.depth) == (VOCAB, 32, 64, 2)
    assert config.num_parameters == sum(p.numel() for p in load_model(model_folder("llama")).parameters())
    matrices = config.num_parameters - 5 * 32 - VOCAB * 32  # five norms. The embedding is a table
    assert config.num_active == matrices
    (found,) = cost(config, 2, 16).values()
    assert found.training == 6 * matrices * 32 + 3 * 4 * 2 * 2 * 16**2 * 32
    with_adapters = config.replace(lora={"rank": 2})
    assert cost(with_adapters, 2, 16)["model"].training == pytest.approx(found.training * 2 / 3)
    mixtral = net_of(model_folder("mixtral")).config
    assert mixtral.num_active < mixtral.num_parameters - 2 * 4 * 2 * 32 * 48


def test_freezing_is_by_name_and_adapters_leave_the_rest_alone(model_folder: Folder) -> None:
    frozen = net_of(model_folder("llama"), freeze=["*embed*", "model.layers.0.*"])
    learning = [name for name, p in frozen.named_parameters() if p.requires_grad]
    assert learning
    assert not any("embed" in name or "layers.0." in name for name in learning)
    adapted = net_of(model_folder("gpt2"), lora={"rank": 2, "targets": ["c_attn"]})
    learning = [name for name, p in adapted.named_parameters() if p.requires_grad]
    assert len(learning) == 4
    assert all("lora_" in name for name in learning)
    for settings, sentence in (
        ({"freeze": ["nothing"]}, "'nothing' matches no tensor"),
        ({"freeze": ["*"]}, "leaves nothing to learn"),
        ({"lora": {"targets": ["nothing"]}}, "model.lora.targets fits no module"),
        ({"lora": {}, "freeze": ["*"]}, "freeze and lora are both set"),
        ({"d_model": 7}, "d_model=7 is not the 32 of"),
        ({"max_positions": 65}, "max_positions=65 is not the 64 of"),
    ):
        with pytest.raises(UserError, match=sentence.replace("*", r"\*")):
            net_of(model_folder("llama"), **settings)
    assert net_of(model_folder("llama"), max_positions=32).config.max_positions == 32


def test_dropout_is_ours_to_set(model_folder: Folder) -> None:
    probabilities = {m.p for m in net_of(model_folder("gpt2")).modules() if isinstance(m, nn.Dropout)}
    assert probabilities == {0.0}
    probabilities = {m.p for m in net_of(model_folder("gpt2"), dropout=0.2).modules() if isinstance(m, nn.Dropout)}
    assert probabilities == {0.2}


def test_every_kind_is_tested() -> None:
    assert {*KNOWN, *ODD_HEADS} == KINDS.keys()
