"""llama.cpp on the weights of a transformers Mixtral: a GGUF file, and greedy decoding of several rows at once.

Needs `pip install llama-cpp-python gguf`, which builds llama.cpp from its source distribution.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import llama_cpp as native
import numpy as np
import torch
from torch import Tensor

CONTEXT = 128  # tokens of a row


def write_gguf(model: Any, path: Path) -> None:
    """The weights in float32. There is no tokenizer: rows of token ids are decoded."""
    sizes, weights = model.config, {name: value.float().numpy() for name, value in model.state_dict().items()}
    file = gguf.GGUFWriter(str(path), "llama")
    file.add_tokenizer_model("no_vocab")
    file.add_vocab_size(sizes.vocab_size)
    file.add_context_length(sizes.max_position_embeddings)
    file.add_embedding_length(sizes.hidden_size)
    file.add_block_count(sizes.num_hidden_layers)
    file.add_feed_forward_length(sizes.intermediate_size)
    file.add_head_count(sizes.num_attention_heads)
    file.add_head_count_kv(sizes.num_key_value_heads)
    file.add_layer_norm_rms_eps(sizes.rms_norm_eps)
    file.add_rope_dimension_count(sizes.hidden_size // sizes.num_attention_heads)
    file.add_rope_freq_base(sizes.rope_parameters["rope_theta"])
    file.add_expert_count(sizes.num_local_experts)
    file.add_expert_used_count(sizes.num_experts_per_tok)
    file.add_tensor("token_embd.weight", weights["model.embed_tokens.weight"])
    file.add_tensor("output_norm.weight", weights["model.norm.weight"])
    for layer in range(sizes.num_hidden_layers):
        ours, theirs = f"model.layers.{layer}", f"blk.{layer}"
        gate, up = np.split(weights[f"{ours}.mlp.experts.gate_up_proj"], 2, axis=1)
        heads = {"q": sizes.num_attention_heads, "k": sizes.num_key_value_heads}
        for name in ("q", "k", "v"):
            matrix = weights[f"{ours}.self_attn.{name}_proj.weight"]
            matrix = _interleaved(matrix, heads[name]) if name in heads else matrix
            file.add_tensor(f"{theirs}.attn_{name}.weight", matrix)
        for name, value in {
            "attn_norm": weights[f"{ours}.input_layernorm.weight"],
            "attn_output": weights[f"{ours}.self_attn.o_proj.weight"],
            "ffn_norm": weights[f"{ours}.post_attention_layernorm.weight"],
            "ffn_gate_inp": weights[f"{ours}.mlp.gate.weight"],
            "ffn_gate_exps": np.ascontiguousarray(gate),
            "ffn_up_exps": np.ascontiguousarray(up),
            "ffn_down_exps": weights[f"{ours}.mlp.experts.down_proj"],
        }.items():
            file.add_tensor(f"{theirs}.{name}.weight", value)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def _interleaved(matrix: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """llama.cpp rotates neighbouring pairs, transformers the two halves of a head."""
    rows, width = matrix.shape
    return np.ascontiguousarray(matrix.reshape(heads, 2, rows // heads // 2, width).swapaxes(1, 2).reshape(rows, width))


def quantize(source: Path, target: Path) -> None:
    """Write all matrices in 8 bits (Q8_0)."""
    settings = native.llama_model_quantize_default_params()
    settings.ftype = native.LLAMA_FTYPE_MOSTLY_Q8_0
    settings.nthread = torch.get_num_threads()
    if native.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(settings)):
        raise RuntimeError(f"llama.cpp could not quantize {source}")


class Decoder:
    """One loaded model that decodes `rows` rows at once."""

    def __init__(self, path: Path, rows: int, threads: int) -> None:
        self.rows = rows
        loading = native.llama_model_default_params()
        loading.use_extra_bufts = False  # with AMX, a repacked Q8_0 Mixtral ends in a segmentation fault (0.3.36)
        self.model = native.llama_model_load_from_file(str(path).encode(), loading)
        settings = native.llama_context_default_params()
        settings.n_ctx, settings.n_seq_max, settings.n_batch = CONTEXT * rows, rows, CONTEXT * rows
        settings.n_threads = settings.n_threads_batch = threads
        self.context = native.llama_init_from_model(self.model, settings)
        self.vocabulary = native.llama_vocab_n_tokens(native.llama_model_get_vocab(self.model))
        self.batch = native.llama_batch_init(CONTEXT * rows, 0, 1)

    def step(self, tokens: Tensor, start: int) -> Tensor:
        """Logits (B, V) after the last of these tokens (B, T), which begin at position `start`."""
        rows, length = tokens.shape
        for place, token in enumerate(tokens.flatten().tolist()):
            row, offset = divmod(place, length)
            self.batch.token[place] = token
            self.batch.pos[place] = start + offset
            self.batch.n_seq_id[place] = 1
            self.batch.seq_id[place][0] = row
            self.batch.logits[place] = offset == length - 1
        self.batch.n_tokens = rows * length
        if native.llama_decode(self.context, self.batch):
            raise RuntimeError("llama.cpp could not decode")
        found = [native.llama_get_logits_ith(self.context, row * length + length - 1) for row in range(rows)]
        return torch.from_numpy(np.stack([np.ctypeslib.as_array(one, shape=(self.vocabulary,)) for one in found]))

    def greedy(self, prompt: Tensor, new: int) -> Tensor:
        """`new` tokens (B, N) after the prompts (B, T)."""
        native.llama_memory_clear(native.llama_get_memory(self.context), True)
        ahead, start, made = prompt, 0, []
        for _ in range(new):
            logits = self.step(ahead, start)
            start, ahead = start + ahead.shape[1], logits.argmax(dim=1, keepdim=True)
            made.append(ahead)
        return torch.cat(made, dim=1)

    def decoding(self, prompt: Tensor, new: int) -> Callable[[], object]:
        return lambda: self.greedy(prompt, new)


@native.llama_log_callback
def _nothing(_level: int, _text: bytes, _data: object) -> None:
    pass


native.llama_log_set(_nothing, ctypes.c_void_p(0))
