"""What transformers' common tests ask of a causal language model. docs/hf-compatibility.md names what cannot apply."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

from tests.conftest import excited, fill_memory, tiny_config, tokens
from tests.hf.test_callback import Rows
from trc2 import CortexNet, MemoryCallback, TRC2ForCausalLM, UserError
from trc2.backbones.registry import build_model
from trc2.backbones.saved import load_model, save_model
from trc2.config import MODELS, model_config
from trc2.hf.configuration import TRC2PretrainedConfig
from trc2.hf.modeling import TRC2Output

NAMES = sorted(MODELS.keys() - {"hf"})
SIZES = {"vocab_size": 31, "d_model": 16, "num_heads": 4, "max_positions": 40}
EXTRA: dict[str, dict[str, object]] = {
    "trc2": {"num_columns": 2, "num_kv_heads": 2, "memory_slots": 8, "d_ff": 12, "num_experts": 4, "replay": False},
    "mamba": {"state_dim": 4, "dt_rank": 3},
    "deepseek_moe": {"num_experts": 4, "num_active_experts": 2},
    "moe": {"num_experts": 4},
    "blk_attn_res": {"num_residual_blocks": 2},
}


def settings_of(name: str) -> dict[str, object]:
    shape = {} if name == "trc2" else {"num_layers": 2, "d_ff": 16}
    return {"name": name, **SIZES, **shape, **EXTRA.get(name, {})}


def face_of(name: str) -> TRC2ForCausalLM:
    net = build_model(model_config(settings_of(name)), torch.Generator().manual_seed(0))
    return TRC2ForCausalLM.wrap(net).eval()


def remembering(**changes: object) -> TRC2ForCausalLM:
    net = excited(CortexNet(tiny_config(memory_slots=64, **{"replay": False, **changes})))
    fill_memory(net, 50)
    return TRC2ForCausalLM.wrap(net).eval()


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


# ------------------------------------------------------------------------------------------------- saving and loading


@pytest.mark.parametrize("name", NAMES)
def test_every_backbone_is_loaded_by_the_auto_classes_and_generates_with_its_own_state(
    name: str, tmp_path: Path
) -> None:
    net = face_of(name).net
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(8)  # at its initial size every network predicts the token just read
    if name == "lora_drs":
        net.begin_task(1, [torch.randint(31, (2, 8))])
    save_model(net, tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    x = tokens(net.config, 2, 7, seed=1)
    close(model(x).logits, net(x)[0])
    close(model(x, use_cache=True).logits, net(x)[0])
    settings: dict[str, Any] = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    cached = model.generate(x, num_beams=2, **settings)
    assert torch.equal(cached, model.generate(x, num_beams=2, use_cache=False, **settings))
    model.save_pretrained(tmp_path / "again")
    close(load_model(tmp_path / "again").eval()(x)[0], net(x)[0])


# ------------------------------------------------------------------------------------------------------ hidden states


@pytest.mark.parametrize("name", NAMES)
def test_hidden_states_are_what_enters_every_layer_and_what_the_head_gets(name: str) -> None:
    face = face_of(name)
    x = tokens(face.net.config, 2, 7)
    out = face(x, output_hidden_states=True)
    assert [tuple(state.shape) for state in out.hidden_states] == [(2, 7, 16)] * (face.config.num_hidden_layers + 1)
    close(face.lm_head(out.hidden_states[-1]), out.logits)
    first = face.get_input_embeddings()(x)
    if name != "trc2":
        first = first + face.net.trunk.positions.weight[:7]
    close(out.hidden_states[0], first)
    close(out.logits, face(x).logits)
    assert face(x).hidden_states is None
    for state in out.hidden_states:
        state.retain_grad()
    out.logits.square().sum().backward()
    assert all(state.grad is not None and state.grad.any() for state in out.hidden_states)


def test_hidden_states_come_with_training_replay_and_every_way_to_ask() -> None:
    face = TRC2ForCausalLM.wrap(CortexNet(tiny_config(replay_batch_size=2))).train()
    x = tokens(face.net.config, 2, 12)
    for _ in range(2):  # the second step replays the first
        out = face(x, labels=x, output_hidden_states=True)
        out.loss.backward()
        face.net.flush_pending_write()
    assert float(out.losses["replay"].detach()) > 0
    assert {tuple(state.shape) for state in out.hidden_states} == {(2, 12, 16)}
    face.config.output_hidden_states = True
    generated = face.eval().generate(
        x, max_new_tokens=2, return_dict_in_generate=True, output_hidden_states=True, eos_token_id=None
    )
    assert [step[0].shape[1] for step in generated.hidden_states] == [12, 1]
    as_tuple = face(x, return_dict=False)
    assert [type(part) for part in as_tuple] == [Tensor, type(face(x).past_key_values), tuple]


# ------------------------------------------------------------------------------------------------------ inputs_embeds


@pytest.mark.parametrize("name", ["trc2", "transformer", "mamba"])
def test_embeddings_in_place_of_ids_give_the_same(name: str) -> None:
    face = face_of(name)
    x = tokens(face.net.config, 2, 7)
    embeddings = face.get_input_embeddings()(x)
    close(face(inputs_embeds=embeddings).logits, face(x).logits)
    close(face(inputs_embeds=embeddings, labels=x).loss, face(x, labels=x).loss)
    made = face.generate(inputs_embeds=embeddings, max_new_tokens=4, do_sample=False, eos_token_id=None)
    assert torch.equal(made, face.generate(x, max_new_tokens=4, do_sample=False, eos_token_id=None)[:, 7:])
    other = face(inputs_embeds=embeddings + 1).logits
    assert float((other - face(x).logits).detach().abs().max()) > 1e-3
    with pytest.raises(UserError, match=r"inputs_embeds has shape \(2, 7, 15\): give \(rows, tokens, 16\)"):
        face(inputs_embeds=embeddings[..., :15])
    with pytest.raises(UserError, match="both given"):
        face(x, inputs_embeds=embeddings)


def test_embeddings_are_learned_from_unless_replay_would_have_to_store_them() -> None:
    face = remembering().train()
    x = tokens(face.net.config, 2, 9)
    embeddings = face.get_input_embeddings()(x).detach().requires_grad_()
    face(inputs_embeds=embeddings, labels=x).loss.backward()
    assert embeddings.grad is not None
    assert embeddings.grad.any()
    replaying = TRC2ForCausalLM.wrap(CortexNet(tiny_config())).train()
    with pytest.raises(UserError, match="inputs_embeds cannot be learned from where tokens are stored"):
        replaying(inputs_embeds=embeddings.detach(), labels=x)


# --------------------------------------------------------------------------------------------------------------- loss


def test_the_loss_of_evaluation_is_the_cross_entropy_with_the_parts_beside_it() -> None:
    face = remembering()
    x = tokens(face.net.config, 2, 9)
    out = face(x, labels=x)
    assert isinstance(out, TRC2Output)
    expected = torch.nn.functional.cross_entropy(out.logits[:, :-1].flatten(0, 1), x[:, 1:].flatten())
    close(out.loss, expected)
    assert out.losses.keys() == {"lm", "load_balance", "td", "predictor", "replay", "objective"}
    _, aux = face.net(x, torch.nn.functional.pad(x[:, 1:], (0, 1), value=-100))
    close(out.losses["objective"], aux["loss"])
    assert float(out.losses["objective"].detach()) > float(out.loss.detach())
    learning = face.train()(x, labels=x)
    close(learning.loss, learning.losses["objective"])
    face.net.discard_pending_write()


# ----------------------------------------------------------------------------------------------- gradient checkpointing


@pytest.mark.parametrize("name", NAMES)
def test_gradient_checkpointing_runs_layers_again_and_changes_no_gradient(name: str) -> None:
    face = face_of(name).train()
    x = tokens(face.net.config, 2, 7)
    unit, calls = face.net.trunk.units()[0 if name != "trc2" else -1], []
    unit.register_forward_pre_hook(lambda *_: calls.append(1))
    gradients = []
    for wanted in (False, True):
        if wanted:
            face.gradient_checkpointing_enable({"use_reentrant": False})
        assert face.is_gradient_checkpointing is wanted
        face.zero_grad()
        calls.clear()
        face(x, labels=x).loss.backward()
        assert len(calls) == (2 if wanted else 1)
        gradients.append({n: p.grad for n, p in face.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for parameter, gradient in gradients[0].items():
        close(gradients[1][parameter], gradient)
    face.gradient_checkpointing_disable()
    assert not face.net.trunk.recompute
    with pytest.raises(UserError, match="every_n_layers is not supported"):
        face.gradient_checkpointing_enable(every_n_layers=2)


# ---------------------------------------------------------------------------------------------------------- new weights


@pytest.mark.parametrize("name", NAMES)
def test_a_model_without_numbers_gets_those_of_a_new_network(name: str) -> None:
    config = TRC2PretrainedConfig(backbone=face_of(name).config.backbone)
    with torch.device("meta"):
        face = TRC2ForCausalLM(copy.deepcopy(config))
    assert face.get_input_embeddings().weight.is_meta
    face.to_empty(device="cpu")
    torch.manual_seed(3)
    face.init_weights()
    torch.manual_seed(3)
    expected = build_model(config.settings)
    assert all(torch.equal(expected.state_dict()[key], tensor) for key, tensor in face.net.state_dict().items())
    assert face.lm_head.weight is face.get_input_embeddings().weight
    x = tokens(expected.config, 2, 7)
    close(face.eval()(x).logits, expected.eval()(x)[0])


def test_weights_that_a_file_lacks_are_named_and_those_of_a_new_network(tmp_path: Path) -> None:
    saved = remembering()
    save_model(saved.net, tmp_path)
    tensors = safetensors.torch.load_file(tmp_path / "model.safetensors")
    lacking = {"net.cortex.hippocampus.write_key.weight", "net.cortex.hippocampus.cursor.count",
               "net.cortex.columns.0.attention.output.weight", "net.cortex.embedding.weight"}  # fmt: skip
    for name in lacking:
        tensors.pop(name)
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match="is one of 5 missing keys"):
        AutoModelForCausalLM.from_pretrained(tmp_path)
    face, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert set(info["missing_keys"]) - {"lm_head.weight"} == lacking
    assert face.lm_head.weight is face.get_input_embeddings().weight
    own = face.net.state_dict()
    for name, tensor in saved.net.state_dict().items():
        assert torch.equal(own[name], tensor) is (f"net.{name}" not in lacking), name
    assert face.net.num_events == 0
    assert 0.2 < float(own["cortex.hippocampus.write_key.weight"].std()) < 0.3  # 1/√16, a rule of its own
    assert 0.015 < float(own["cortex.embedding.weight"].std()) < 0.025


def test_a_wrapped_network_keeps_its_numbers_and_an_added_token_is_small() -> None:
    net = CortexNet(tiny_config(replay=False))
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    face = TRC2ForCausalLM.wrap(net)
    assert all(torch.equal(before[name], tensor) for name, tensor in face.net.state_dict().items())
    face.resize_token_embeddings(40, mean_resizing=False)
    assert float(face.get_input_embeddings().weight[29:].detach().abs().max()) < 0.1


# ----------------------------------------------------------------------------------------------------------- generation


def test_generation_stops_at_the_last_position() -> None:
    face = remembering(max_positions=12)
    x = tokens(face.net.config, 2, 9)
    settings: dict[str, Any] = {"do_sample": False, "eos_token_id": None}
    assert face.generate(x, max_new_tokens=256, **settings).shape == (2, 12)
    assert face.generate(x, max_length=99, num_beams=2, **settings).shape == (2, 12)
    assert face.generate(x, max_new_tokens=2, **settings).shape == (2, 11)
    embeddings = face.get_input_embeddings()(x)
    assert face.generate(inputs_embeds=embeddings, max_new_tokens=256, **settings).shape == (2, 3)
    with pytest.raises(UserError, match="The prompt has 12 tokens and the model 12 positions"):
        face.generate(tokens(face.net.config, 1, 12), max_new_tokens=1)


def test_generation_continues_from_its_own_cache_and_a_forward_returns_one() -> None:
    face = remembering()
    x = tokens(face.net.config, 2, 5)
    settings: dict[str, Any] = {"do_sample": False, "eos_token_id": None, "return_dict_in_generate": True}
    whole = face.generate(x, max_new_tokens=4, **settings)
    first = face.generate(x, max_new_tokens=3, **settings)
    rest = face.generate(first.sequences, past_key_values=first.past_key_values, max_new_tokens=1, **settings)
    assert torch.equal(rest.sequences, whole.sequences)
    assert face(x).past_key_values.get_seq_length() == 5
    assert face(x, use_cache=False).past_key_values is None
    assert face.train()(x).past_key_values is None
    with pytest.raises(ValueError, match="assisted generation is not supported"):
        face.eval().generate(x, assistant_model=face)


# ----------------------------------------------------------------------------------------------------------------- peft


def test_peft_adapts_all_linear_maps_and_the_memory_is_written(tmp_path: Path) -> None:
    face = remembering()
    base = {name: tensor.clone() for name, tensor in face.net.state_dict().items()}
    settings = LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)
    model = get_peft_model(face, settings)
    adapted = {name.split(".lora_A")[0] for name, _ in model.named_parameters() if "lora_A" in name}
    # Maps that must stay as they are, or that slow copies follow, are not adapted.
    assert not any("critic" in name or "write_" in name or "lm_head" in name for name in adapted)
    assert any("hippocampus.query" in name for name in adapted)
    arguments = TrainingArguments(
        str(tmp_path), per_device_train_batch_size=2, max_steps=2, report_to=[], save_strategy="no", use_cpu=True,
        disable_tqdm=True, dataloader_pin_memory=False, logging_strategy="no", learning_rate=1e-2,
    )  # fmt: skip
    rows = tokens(face.net.config, 4, 12)
    before = face.net.cortex.hippocampus.origins.clone()
    Trainer(model, arguments, train_dataset=Rows(rows), callbacks=[MemoryCallback()]).train()
    assert not torch.equal(face.net.cortex.hippocampus.origins, before)
    assert int(face.net.clock.step) == 2
    model.eval()
    expected = model(input_ids=rows).logits
    merged = model.merge_and_unload()
    assert isinstance(merged, TRC2ForCausalLM)
    close(merged(rows).logits, expected)
    assert not torch.equal(
        merged.net.cortex.columns[0].attention.qkv.weight, base["cortex.columns.0.attention.qkv.weight"]
    )
    merged.save_pretrained(tmp_path / "merged")
    close(AutoModelForCausalLM.from_pretrained(tmp_path / "merged")(rows).logits, expected)


# -------------------------------------------------------------------------------------------------------------- compile

ONE_GRAPH = """
import torch
from trc2 import TRC2ForCausalLM
from trc2.backbones.registry import build_model
from trc2.config import model_config

net = build_model(model_config({}), torch.Generator().manual_seed(0))
with torch.no_grad():
    for parameter in net.parameters():
        parameter.mul_(6) if parameter.ndim > 1 else parameter.fill_(1.0)
face = TRC2ForCausalLM.wrap(net).eval()
compiled = torch.compile(face, fullgraph=True, backend="aot_eager")
x = torch.arange(24).view(2, 12) % 31
for events in (0, 20, 30) if net.has_memory else (0,):
    if events:
        net.cortex.hippocampus.write(torch.randn(events, 16))
    with torch.no_grad():
        gap = (compiled(x).logits.log_softmax(-1) - face(x).logits.log_softmax(-1)).abs().max()
    assert gap < 1e-5, (events, float(gap))
    if events:
        assert (face(x).logits - face(x, memory="off").logits).abs().max() > 1e-3
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_an_evaluation_compiles_to_one_graph_that_reads_the_memory_as_it_is(name: str) -> None:
    """In a process of its own: the annotations that tests check at run time cannot be compiled."""
    settings = settings_of(name)
    if name == "trc2":
        settings |= {"memory_slots": 40, "memory_read_window": 25}
    program = ONE_GRAPH.replace("{}", repr(settings))
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
