"""Tiny models of transformers, saved with random weights and a tokenizer, and runs that begin with them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.utils import logging

from tests.conftest import TINY_TASKS
from trc2 import RunConfig
from trc2.stream.tokenizer import train_bpe

VOCAB = 300
SIZES = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2}
HEADS = {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": None,
}
ENDS = {"bos_token_id": 0, "eos_token_id": 0}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {**SIZES, **HEADS, "tie_word_embeddings": False}),
    "qwen2": ("Qwen2", {**SIZES, **HEADS, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {**SIZES, **HEADS, "tie_word_embeddings": True, "head_dim": 8}),
    "gpt2": ("GPT2", {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, **ENDS}),
    "mixtral": ("Mixtral", {**SIZES, **HEADS, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "mamba": ("Mamba", {**SIZES, "state_size": 4, "time_step_rank": 4, **ENDS}),
    "gemma2": ("Gemma2", {**SIZES, **HEADS, "head_dim": 8}),  # capped logits
    "granite": ("Granite", {**SIZES, **HEADS, "logits_scaling": 8.0}),  # divided logits
    "phi": ("Phi", {**SIZES, **HEADS, "num_key_value_heads": 4}),  # a head with a bias
}


@pytest.fixture(autouse=True)
def _quiet_transformers() -> None:
    logging.set_verbosity_error()
    logging.disable_progress_bar()


def build(kind: str) -> Any:
    name, settings = KINDS[kind]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**settings)
    model = getattr(transformers, f"{name}{'LMHeadModel' if kind == 'gpt2' else 'ForCausalLM'}")(config)
    with torch.no_grad():
        for parameter in model.parameters():  # fresh weights of 0.02 hide most mistakes
            if parameter.ndim >= 2:
                parameter.mul_(3.0)
    return model


@pytest.fixture(scope="session")
def tokenizer_json() -> str:
    words = " ".join(word for words in TINY_TASKS.values() for word in words)
    return train_bpe([f"{words} train validation test 0123456789:."] * 3, VOCAB - 6).to_json()


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory, tokenizer_json: str) -> Callable[[str], Path]:
    """The folder of a model of this kind, as transformers saves it."""
    root = tmp_path_factory.mktemp("models")

    def folder(kind: str) -> Path:
        path = root / kind
        if not path.exists():
            build(kind).save_pretrained(path)
            (path / "tokenizer.json").write_text(tokenizer_json)
            settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
            (path / "tokenizer_config.json").write_text(json.dumps(settings))
        return path

    return folder


@pytest.fixture
def hf_run(tiny_run: Callable[..., RunConfig]) -> Callable[..., RunConfig]:
    """Makes runs of two tasks of six steps that begin with a folder."""

    def make(folder: Path, model: dict[str, object] | None = None, **sections: dict[str, object]) -> RunConfig:
        whole = tiny_run().model_dump()
        replay = {"replay_recent_chunks": 16, "replay_long_chunks": 16, "replay_chunk_length": 8, "replay_share": 0.3}
        whole["model"] = {"name": "hf", "pretrained": str(folder), **replay, **(model or {})}
        whole["stream"]["tokenizer"] = {}
        for name, changes in sections.items():
            whole[name] = {**whole[name], **changes}
        return RunConfig(**whole)

    return make
