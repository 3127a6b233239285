"""Folders that are not what they should be: one sentence each."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers

from tests.command import trc2
from trc2 import RunConfig
from trc2.artifact import load_model
from trc2.config import model_config
from trc2.errors import UserError
from trc2.runs.target import find_target
from trc2.training.start import start_run

Folder = Callable[[str], Path]


@pytest.fixture
def llama(model_folder: Folder, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model_folder("llama"), tmp_path / "llama"))


def refused(folder: Path, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence) as caught:
        load_model(folder)
    assert "\n" not in str(caught.value)


def rewrite(folder: Path, **changes: object) -> None:
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, **changes}))


def test_what_is_no_causal_language_model_is_told_so(llama: Path) -> None:
    rewrite(llama, model_type="vit", architectures=["ViTForImageClassification"])
    refused(llama, r"is no causal language model \(ViTForImageClassification\): use one whose class ends in")
    rewrite(llama, model_type="bert", architectures=["BertForMaskedLM"])
    refused(llama, r"is no causal language model \(BertForMaskedLM\)")
    rewrite(llama, model_type="t5", architectures=None)
    refused(llama, r"is no causal language model \(t5\)")
    rewrite(llama, model_type="mine", architectures=["MineForCausalLM"], auto_map={"AutoModel": "mine.Mine"})
    refused(llama, r"brings its own code, which is never run \(model_type mine\)")
    rewrite(llama, auto_map=None, model_type="moon")
    refused(llama, "brings its own code|is of an unknown kind")


def test_an_encoder_that_calls_itself_causal_is_caught_by_looking(tmp_path: Path) -> None:
    sizes = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(**sizes, intermediate_size=16)
    transformers.BertLMHeadModel(config).save_pretrained(tmp_path / "bert")
    rewrite(tmp_path / "bert", architectures=["BertLMHeadModel"])
    refused(tmp_path / "bert", "BertLMHeadModel")


def test_weights_that_are_missing_damaged_pickled_or_of_another_model_are_told(llama: Path) -> None:
    weights = llama / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-100])
    refused(llama, "The weights in .* cannot be read")
    rewrite(llama, intermediate_size=40)
    weights.write_bytes(whole)
    refused(llama, "cannot be read|do not fit their config.json")
    rewrite(llama, intermediate_size=48, num_hidden_layers=3)
    refused(llama, "do not fit their config.json: model.layers.2.* is one of 9 missing keys")
    weights.unlink()
    refused(llama, "There is no .*model.safetensors")
    (llama / "pytorch_model.bin").write_bytes(b"pickle")
    refused(llama, "has its weights as pickles, which are never opened: convert them")


def test_shards_are_read_and_a_lost_one_is_told(model_folder: Folder, tmp_path: Path) -> None:
    whole = transformers.AutoModelForCausalLM.from_pretrained(model_folder("llama"))
    whole.save_pretrained(tmp_path / "sharded", max_shard_size="60KB")
    assert not (tmp_path / "sharded" / "model.safetensors").exists()
    net, x = load_model(tmp_path / "sharded").eval(), torch.arange(9)[None]
    assert torch.equal(net(x)[0], whole(x).logits)
    next(iter(sorted((tmp_path / "sharded").glob("*.safetensors")))).unlink()
    refused(tmp_path / "sharded", "The weights in .* cannot be read")


def test_damaged_settings_adapters_alone_and_no_folder_are_told(llama: Path, tmp_path: Path) -> None:
    for content, sentence in (("{", "is not valid JSON"), ("[1]", "does not describe a model")):
        (llama / "config.json").write_text(content)
        with pytest.raises(UserError, match=sentence):
            model_config({"name": "hf", "pretrained": str(llama)})
    (llama / "config.json").unlink()
    with pytest.raises(UserError, match=r"There is no .*config.json: give the folder of a Hugging Face model"):
        model_config({"name": "hf", "pretrained": str(llama)})
    (llama / "adapter_config.json").write_text("{}")
    with pytest.raises(UserError, match="holds adapters without their model: merge them first"):
        model_config({"name": "hf", "pretrained": str(llama)})
    with pytest.raises(UserError, match="The setting 'pretrained' is missing"):
        model_config({"name": "hf"})


def test_a_name_that_nobody_has_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match="There is no model 'nobody/nothing': no folder has this name, and the hub"):
        model_config({"name": "hf", "pretrained": "nobody/nothing"})


def test_a_folder_without_a_tokenizer_or_with_another_models_is_told(
    llama: Path, hf_run: Callable[..., RunConfig], model_folder: Folder, tokenizer_json: str
) -> None:
    from rich.console import Console

    rewrite(llama, vocab_size=280)
    transformers.LlamaForCausalLM(transformers.LlamaConfig.from_pretrained(llama)).save_pretrained(llama)
    with pytest.raises(UserError, match=r"The tokenizer has \d+ tokens, but the model only 280"):
        start_run(hf_run(llama), Console(quiet=True))
    (llama / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"There is no tokenizer '.*llama'"):
        start_run(hf_run(llama), Console(quiet=True))
    with pytest.raises(UserError, match=r"There is no .*tokenizer.json: put the model's tokenizer there"):
        find_target(str(llama)).trained_model(print)


def test_the_command_says_one_sentence(llama: Path) -> None:
    rewrite(llama, model_type="bert", architectures=["BertForMaskedLM"])
    done = trc2("train", "demo", "model=hf", f"model.pretrained={llama}")
    assert done.code == 2
    assert "is no causal language model (BertForMaskedLM)" in " ".join(done.err.split())
    assert "Traceback" not in done.err
