"""Folders that are not what they should be: one sentence each."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers

from tests.command import trc2
from trc2 import RunConfig
from trc2.backbones.saved import load_model
from trc2.config import model_config
from trc2.config.pretrained import HFConfig, copy_model_files
from trc2.errors import UserError
from trc2.generate.sampling import Sampling, generate_ids
from trc2.runs.environment import weight_checksums
from trc2.runs.target import find_target
from trc2.training.setup import start_run

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


def test_damaged_settings_adapters_alone_and_no_folder_are_told(llama: Path) -> None:
    def refused_config(sentence: str) -> None:
        with pytest.raises(UserError, match=sentence):
            model_config({"name": "hf", "pretrained": str(llama)})

    settings = llama / "config.json"
    for content, sentence in (("{", "is not valid JSON"), ("[1]", "does not describe a model")):
        settings.write_text(content)
        refused_config(sentence)
    with settings.open("r+b") as file:
        file.truncate(2**25)
    refused_config("has 33,554,432 bytes")
    settings.unlink()
    refused_config(r"There is no .*config.json: give the folder of a Hugging Face model")
    (llama / "adapter_config.json").write_text("{}")
    refused_config("holds adapters of the kind None: only LORA can be continued")
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
    with pytest.raises(UserError, match=r"There is no .*llama.tokenizer\.json: put the tokenizer there"):
        start_run(hf_run(llama), Console(quiet=True))
    with pytest.raises(UserError, match=r"There is no .*tokenizer.json: put the model's tokenizer there"):
        find_target(str(llama)).trained_model(print)


def test_the_command_says_one_sentence(llama: Path) -> None:
    rewrite(llama, model_type="bert", architectures=["BertForMaskedLM"])
    done = trc2("train", "demo", "model=hf", f"model.pretrained={llama}")
    assert done.code == 2
    assert "is not a causal language model (BertForMaskedLM)" in " ".join(done.err.split())
    assert "Traceback" not in done.err


OWN_CODE = {"model_type": "mine", "architectures": ["MineForCausalLM"], "auto_map": {"AutoModel": "mine.Mine"}}
BAD_VALUES: list[tuple[dict[str, object], str]] = [
    (
        {"model_type": "vit", "architectures": ["ViTForImageClassification"]},
        r"\(ViT\w+\): use one whose class ends in",
    ),
    ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, r"not a causal language model \(BertForMaskedLM\)"),
    ({"model_type": "t5", "architectures": None}, r"is not a causal language model \(t5\)"),
    (OWN_CODE, r"brings its own code, which is never run \(model_type mine\)"),
    ({"model_type": "moon"}, "is of an unknown kind"),
    ({"num_hidden_layers": 100_000}, "num_hidden_layers=100000, more than 1000"),
    ({"num_labels": 10**9}, "num_labels=1000000000, more than 8192"),
    ({"text_config": {"n_layer": 10**9}}, "n_layer=1000000000"),
    ({"dtype": "int8"}, "dtype=int8, which cannot be trained"),
    ({"torch_dtype": "complex64"}, "torch_dtype=complex64"),
    ({"attn_implementation": "kernels-community/x"}, "native code may be fetched"),
    ({"attn_implementation": {"": "somebody/x:f"}}, "native code may be fetched"),
    ({"transformers_weights": "other.safetensors"}, "transformers_weights=other.safetensors: remove it"),
]


@pytest.mark.parametrize(("changes", "sentence"), BAD_VALUES)
def test_settings_are_looked_at_before_anything_is_built(
    llama: Path, changes: dict[str, object], sentence: str
) -> None:
    rewrite(llama, **changes)
    refused(llama, sentence)


@pytest.mark.parametrize(
    "changes",
    [
        {"architectures": 3.5},
        {"num_experts": {}},
        {"sliding_window": "nul"},
        {"sliding_window": [-8e183, []]},
        {"architectures": {"a": 1}},
    ],
)
def test_values_of_a_wrong_type_are_a_sentence_or_harmless(llama: Path, changes: dict[str, object]) -> None:
    rewrite(llama, **changes)
    with contextlib.suppress(UserError):
        net = load_model(llama).eval()
        next(generate_ids(net, [1, 2], Sampling(max_tokens=1, temperature=0.0)))


@pytest.mark.parametrize("name", ["../elsewhere/w.safetensors", "w.bin", "/w.safetensors", ".."])
def test_weights_from_elsewhere_and_pickles_in_an_index_are_refused(llama: Path, name: str) -> None:
    (llama / "model.safetensors").rename(llama / "w.safetensors")
    (llama / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"lm_head.weight": name}}))
    refused(llama, "are not a .safetensors file in the same folder")
    with pytest.raises(UserError, match=r"are not a \.safetensors file"):
        weight_checksums(str(llama), llama.parent / "cache")


def test_adapters_beside_a_model_are_refused(llama: Path) -> None:
    """Transformers would load the model that adapter_config.json names, from anywhere."""
    (llama / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "elsewhere"}))
    refused(llama, "holds adapters beside a model")


def test_only_known_files_go_into_a_run_and_nothing_of_somebodys_machine(llama: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    for name in ("api_keys.json", ".hidden.json", "my notes.txt"):
        (llama / name).write_text("{}")
    (llama / "merges.txt").symlink_to(tmp_path / "secret.txt")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "auto_map": {"AutoTokenizer": "evil.py"}}
    (llama / "tokenizer_config.json").write_text(json.dumps(settings))
    rewrite(llama, auto_map={"AutoModel": "evil.Model"}, _name_or_path="/home/somebody/llama")
    copy_model_files(str(llama), tmp_path / "kept")
    kept = {path.name: path.read_text() for path in (tmp_path / "kept").iterdir()}
    assert sorted(kept) == ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]
    assert not any(word in text for text in kept.values() for word in ("auto_map", "somebody", "secret"))
    assert "auto_map" not in model_config({"name": "hf", "pretrained": str(llama)}).model_dump()["architecture"]
    blobs = tmp_path / "hub" / "blobs"
    shutil.copytree(llama, tmp_path / "hub" / "snapshots" / "1")
    blobs.mkdir()
    (tmp_path / "hub" / "snapshots" / "1" / "tokenizer.json").rename(blobs / "a1b2")
    (tmp_path / "hub" / "snapshots" / "1" / "tokenizer.json").symlink_to("../../blobs/a1b2")
    copy_model_files(str(tmp_path / "hub" / "snapshots" / "1"), tmp_path / "from_hub")
    assert (tmp_path / "from_hub" / "tokenizer.json").is_file()


def test_a_models_name_in_files_for_others_is_no_path(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(llama.parent)
    for place in (str(llama), "llama", "./llama", "../" + llama.parent.name + "/llama"):
        config = model_config({"name": "hf", "pretrained": place})
        assert isinstance(config, HFConfig)
        assert config.shown_name == "llama"
    shutil.rmtree(llama)
    assert config.shown_name == "llama"
    assert config.replace(pretrained="org/model").shown_name == "org/model"


def test_what_transformers_logs_of_a_refused_folder_is_not_shown(
    llama: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rewrite(llama, use_return_dict="\x1b[2J\x1b]0;pwned\x07", num_attention_heads=0)
    transformers.utils.logging.set_verbosity_warning()
    done = trc2("budget", "demo", "model=hf", f"model.pretrained={llama}")
    shown = capfd.readouterr()
    assert done.code == 2
    assert (shown.out + shown.err, done.out, done.err.count("error: ")) == ("", "", 1)
