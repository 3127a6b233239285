"""The Hugging Face face: loading, logits, caches, padding, beams, losses, refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from tests.conftest import excited, fill_memory, tiny_config, tokens
from trc2 import CortexNet, TRC2ForCausalLM, UserError
from trc2.backbones.saved import load_model, save_model
from trc2.hf.configuration import TRC2PretrainedConfig

PAD = 0


def remembering(**changes: object) -> CortexNet:
    """A network whose memory and router change the logits visibly."""
    net = excited(CortexNet(tiny_config(memory_slots=64, memory_read_window=40, replay=False, **changes)))
    fill_memory(net, 50)
    return net.eval()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_model(remembering(), tmp_path / "model")
    return tmp_path / "model"


def same(a: Tensor, b: Tensor) -> None:
    """Equal up to the last digits: a file's tensors may lie at addresses that other kernels serve."""
    torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-6)


def left_padded(rows: list[Tensor]) -> tuple[Tensor, Tensor]:
    width = max(len(row) for row in rows)
    x = torch.stack([torch.cat((torch.full((width - len(row),), PAD), row)) for row in rows])
    mask = torch.stack([torch.arange(width) >= width - len(row) for row in rows]).long()
    return x, mask


@pytest.mark.parametrize(
    "imports",
    ["import sys, trc2; assert 'transformers' not in sys.modules; import trc2.hf", "import transformers, trc2.hf"],
)
def test_importing_trc2_hf_makes_the_auto_classes_work(folder: Path, imports: str) -> None:
    program = f"""
{imports}
from transformers import AutoConfig, AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained({str(folder)!r})
print(type(model).__name__, AutoConfig.from_pretrained({str(folder)!r}).backbone["name"], model.net.num_events)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["TRC2ForCausalLM", "trc2", "50"]


def test_a_loaded_model_has_the_weights_the_memory_and_its_provenance(folder: Path) -> None:
    net, model = load_model(folder).eval(), AutoModelForCausalLM.from_pretrained(folder)
    assert model.net.state_dict().keys() == net.state_dict().keys()
    assert all(torch.equal(net.state_dict()[name], tensor) for name, tensor in model.net.state_dict().items())
    x = tokens(net.config, 3, 12)
    same(model(x).logits, net(x)[0])


def test_a_model_saved_by_transformers_is_ours_again_without_code_and_with_one_tensor_for_embedding_and_head(
    folder: Path, tmp_path: Path
) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    model.save_pretrained(tmp_path / "again")
    x = tokens(model.net.config, 2, 9)
    same(load_model(tmp_path / "again").eval()(x)[0], model(x).logits)
    same(AutoModelForCausalLM.from_pretrained(tmp_path / "again")(x).logits, model(x).logits)
    names = safetensors.torch.load_file(tmp_path / "again" / "model.safetensors").keys()
    assert "net.cortex.embedding.weight" in names
    assert "lm_head.weight" not in names
    assert {path.suffix for path in (tmp_path / "again").iterdir()} <= {".json", ".safetensors"}
    assert "auto_map" not in json.loads((tmp_path / "again" / "config.json").read_text())  # asks for remote code


def test_a_resized_vocabulary_survives_saving(folder: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.resize_token_embeddings(40)
    model.save_pretrained(tmp_path / "larger")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "larger")
    x = torch.tensor([[1, 39, 5]])
    assert again.config.vocab_size == again.net.config.vocab_size == 40
    same(again(x).logits, model(x).logits)
    assert again.lm_head.weight is again.get_input_embeddings().weight


# ------------------------------------------------------------------------------------------------------------- caches


@pytest.mark.parametrize("pieces", [[1] * 12, [5, 1, 1, 5]])
def test_pieces_give_the_logits_of_the_whole(pieces: list[int]) -> None:
    model = TRC2ForCausalLM.wrap(remembering())
    x = tokens(model.net.config, 3, 12)
    whole = model(x).logits
    cache, parts = None, []
    for piece in x.split(pieces, dim=1):
        out = model(piece, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        parts.append(out.logits)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, atol=1e-5, rtol=1e-5)
    assert cache.get_seq_length() == 12


def test_the_router_mean_is_what_a_cache_without_it_would_miss() -> None:
    net = remembering()
    x = tokens(net.config, 1, 12)
    decoding = net.start_decoding()
    net.decode(x[:, :11], decoding)
    for state in decoding.states[len(net.cortex.columns) :]:
        state.tensors.clear()
    forgetful = net.decode(x[:, 11:], decoding)
    assert float((forgetful - net(x)[0][:, 11:]).detach().abs().max()) > 1e-3


def test_left_padded_rows_equal_the_rows_alone() -> None:
    model = TRC2ForCausalLM.wrap(remembering())
    rows = [tokens(model.net.config, 1, length, seed=length)[0] for length in (3, 8, 11)]
    x, mask = left_padded(rows)
    cached = model(x[:, :6], attention_mask=mask[:, :6], use_cache=True)
    rest = model(x[:, 6:], attention_mask=mask, past_key_values=cached.past_key_values).logits
    whole = model(x, attention_mask=mask).logits
    for index, row in enumerate(rows):
        alone = model(row[None]).logits[0]
        torch.testing.assert_close(whole[index, -len(row) :], alone, atol=1e-5, rtol=1e-5)
        seen = min(5, len(row))
        torch.testing.assert_close(rest[index, -seen:], alone[-seen:], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("options", [{"do_sample": False}, {"num_beams": 3, "do_sample": False}])
def test_generate_with_and_without_cache_gives_the_same_text(options: dict[str, object]) -> None:
    model = TRC2ForCausalLM.wrap(remembering())
    rows = [tokens(model.net.config, 1, length, seed=length)[0] for length in (3, 8)]
    x, mask = left_padded(rows)
    settings = {"attention_mask": mask, "max_new_tokens": 6, "pad_token_id": PAD, "eos_token_id": None, **options}
    cached = model.generate(x, **settings)
    assert torch.equal(cached, model.generate(x, use_cache=False, **settings))
    for index, row in enumerate(rows):
        alone = model.generate(row[None], max_new_tokens=6, pad_token_id=PAD, eos_token_id=None, **options)
        assert torch.equal(cached[index, x.shape[1] :], alone[0, len(row) :])


def test_memory_is_read_or_left_alone_and_never_written() -> None:
    model = TRC2ForCausalLM.wrap(remembering())
    x = tokens(model.net.config, 2, 8)
    before = {name: tensor.clone() for name, tensor in model.net.state_dict().items()}
    read, off = (model(x, memory=memory, use_cache=False).logits for memory in ("read", "off"))
    assert float((read - off).detach().abs().max()) > 1e-3
    forgetful = remembering()
    assert forgetful.cortex.hippocampus is not None
    forgetful.cortex.hippocampus.forget()
    assert torch.equal(off, forgetful(x)[0])
    cached = model(x, memory="off", use_cache=True).logits
    torch.testing.assert_close(cached, off, atol=1e-5, rtol=1e-5)
    model.generate(x, max_new_tokens=5, memory="off", do_sample=False)
    model.train().generate(x, max_new_tokens=5, do_sample=False)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.net.state_dict().items())
    assert not model.net.pending
    with pytest.raises(UserError, match="memory='write' is not known"):
        model(x, memory="write")


def test_decoding_leaves_what_a_step_has_queued_and_evaluation_does_not() -> None:
    net = remembering().train()
    x = tokens(net.config, 2, 9)
    net(x[:, :-1], targets=x[:, 1:].contiguous())[1]["loss"].backward()
    queued = list(net.pending)
    assert queued
    net.eval()
    net.decode(x[:, :5], net.start_decoding())
    TRC2ForCausalLM.wrap(net).generate(x, max_new_tokens=3, do_sample=False)
    assert list(net.pending) == queued
    net(x)
    assert not net.pending


# ------------------------------------------------------------------------------------------------------------- losses


def test_labels_are_shifted_and_padding_is_not_scored() -> None:
    model = TRC2ForCausalLM.wrap(remembering())
    x = tokens(model.net.config, 2, 9)
    mask = torch.ones_like(x)
    mask[0, 6:] = 0
    out = model(x, attention_mask=mask, labels=x.masked_fill(mask == 0, -100))
    logits = out.logits
    scores = logits.log_softmax(-1)[:, :-1].gather(-1, x[:, 1:, None])[..., 0]
    targets = torch.nn.functional.pad(x.masked_fill(mask == 0, -100)[:, 1:], (0, 1), value=-100)
    _, aux = model.net(x, targets, valid=mask)
    torch.testing.assert_close(aux["loss_lm"], -scores[mask[:, 1:] == 1].mean(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(out.loss, aux["loss_lm"])
    assert model(x, labels=x, return_logits=False).logits is None


def test_num_items_in_batch_makes_micro_batches_add_up() -> None:
    model = TRC2ForCausalLM.wrap(remembering())
    x = tokens(model.net.config, 4, 9)
    labels = x.clone()
    labels[0, 3:] = -100
    counts = [int((part[:, 1:] != -100).sum()) for part in (labels[:2], labels[2:])]
    shares = [
        model(x[i : i + 2], labels=labels[i : i + 2], num_items_in_batch=torch.tensor(sum(counts))).loss for i in (0, 2)
    ]
    means = [model(x[i : i + 2], labels=labels[i : i + 2]).loss for i in (0, 2)]
    expected = (means[0] * counts[0] + means[1] * counts[1]) / sum(counts)
    torch.testing.assert_close(shares[0] + shares[1], expected)


@pytest.mark.parametrize("name", ["position_ids", "output_attentions", "cache_position"])
def test_what_cannot_be_heeded_is_refused(name: str) -> None:
    model = TRC2ForCausalLM.wrap(remembering())
    with pytest.raises(UserError, match=name):
        model(tokens(model.net.config, 1, 4), **{name: torch.ones(1) if name != "output_attentions" else True})
    with pytest.raises(UserError, match="input_ids is missing"):
        model()


def test_an_untied_head_is_refused() -> None:
    with pytest.raises(UserError, match="tie_word_embeddings=False"):
        TRC2PretrainedConfig(backbone=tiny_config(), tie_word_embeddings=False)


def test_the_config_round_trips(tmp_path: Path) -> None:
    TRC2PretrainedConfig(backbone=tiny_config(num_experts=2)).save_pretrained(tmp_path)
    again = AutoConfig.from_pretrained(tmp_path)
    assert again.settings == tiny_config(num_experts=2)
    sizes = (again.vocab_size, again.hidden_size, again.num_hidden_layers, again.num_attention_heads)
    assert sizes == (29, 16, 3, 4)
    with pytest.raises(UserError, match="no backbone 'trc3': did you mean 'trc2'"):
        TRC2PretrainedConfig(backbone={"name": "trc3"})
