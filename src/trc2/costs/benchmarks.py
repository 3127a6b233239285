"""What is timed: one recipe's training step, forward pass and decoding, and Hugging Face models of the same shape."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from trc2.backbones.compiled import Policy
from trc2.backbones.registry import build_model
from trc2.backbones.shell import Backbone
from trc2.config import BackboneConfig, RunConfig
from trc2.errors import UserError, did_you_mean
from trc2.generate.sampling import lay_out_for_decoding
from trc2.system.rng import keyed_generator
from trc2.training.optimizer import build_optimizer

Run = Callable[[], object]


def prepared_model(config: BackboneConfig, seed: int = 0) -> Backbone:
    """A fresh network whose memory and replay stores are full: the cost of a run's later part."""
    net = build_model(config, keyed_generator("bench", seed))
    rng = keyed_generator("bench fill", seed)
    memory = getattr(net.trunk, "hippocampus", None)
    if memory is not None:
        memory.write(torch.randn(memory.num_slots, config.d_model, generator=rng))
    if net.replay is not None:
        chunks = torch.randint(
            config.vocab_size, (net.replay.recent.shape[0], config.replay_chunk_length), generator=rng
        )
        net.replay.commit(chunks.to(torch.int32))
    return net.train()


def tokens_of(config: BackboneConfig, rows: int, length: int) -> tuple[Tensor, Tensor]:
    x = torch.randint(config.vocab_size, (rows, length + 1), generator=keyed_generator("bench tokens", rows, length))
    return x[:, :-1].contiguous(), x[:, 1:].contiguous()


def learning_pass(net: Backbone, rows: int, length: int) -> Run:
    """Forward, loss and backward of one micro-batch, with replay if the network has any. Nothing is kept."""
    x, y = tokens_of(net.config, rows, length)

    def run() -> None:
        net.zero_grad(set_to_none=True)
        _, aux = net(x, y, return_logits=False)
        aux["loss"].backward()
        net.discard_pending_write()

    return run


def training_step(net: Backbone, run_config: RunConfig) -> Run:
    """A whole optimizer step as the trainer makes it: gradients, clipping, flush, optimizer, slow heads."""
    train = run_config.train
    x, y = tokens_of(net.config, train.batch_size, train.sequence_length)
    optimizer = build_optimizer(net, train)

    def run() -> None:
        optimizer.zero_grad(set_to_none=True)
        _, aux = net(x, y, return_logits=False)
        aux["loss"].backward()
        nn.utils.clip_grad_norm_(net.parameters(), train.clip_norm)
        net.flush_pending_write()
        optimizer.step()
        net.update_slow_targets()

    return run


def scoring_pass(net: Backbone, rows: int, length: int) -> Run:
    """What an evaluation does with a batch."""
    x, y = tokens_of(net.config, rows, length)

    def run() -> None:
        net.eval()
        net.predict(x, y)
        net.train()

    return run


def decoding(net: Backbone, rows: int, prompt: int, new: int, policy: Policy = "off") -> Run:
    """Greedy decoding of `new` tokens after a prompt, with state, as `trc2 generate --compile POLICY` does it."""
    x, _ = tokens_of(net.config, rows, prompt)
    own = copy.deepcopy(net).eval()
    lay_out_for_decoding(own, policy)

    @torch.inference_mode()
    def run() -> None:
        state, ahead = own.start_decoding(), x
        for _ in range(new):
            ahead = own.decode(ahead, state, last=1).argmax(dim=-1)

    return run


# ------------------------------------------------------------------------------------------------------ Hugging Face


RIVALS = ("mixtral", "llama", "mamba")


def rival(kind: str, config: BackboneConfig) -> nn.Module:
    """The transformers model of the same width, depth, vocabulary and, for mixtral, experts: built, not downloaded.

    Mixtral has no shared expert. It gets as many *active* experts as ours has with its shared one.
    """
    if kind not in RIVALS:
        raise UserError(f"There is no rival '{kind}': {did_you_mean(kind, RIVALS)}")
    try:
        import transformers
    except ModuleNotFoundError:
        raise UserError(
            "--against needs transformers: install it with `pip install '.[hf]'` in the checkout."
        ) from None
    torch.manual_seed(0)
    sizes = config.model_dump()
    common: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "num_hidden_layers": config.depth,
        "tie_word_embeddings": True,
    }
    if kind == "mamba":
        common |= {
            "state_size": sizes.get("state_dim", 16),
            "time_step_rank": getattr(config, "rank", "auto") if "state_dim" in sizes else "auto",
            "expand": sizes.get("expand", 2),
            "conv_kernel": sizes.get("conv_width", 4),
        }
        return transformers.MambaForCausalLM(transformers.MambaConfig(**common)).train()
    common |= {
        "num_attention_heads": sizes["num_heads"],
        "num_key_value_heads": sizes.get("num_kv_heads", sizes["num_heads"]),
        "max_position_embeddings": config.max_positions,
        "intermediate_size": getattr(config, "ff_dim", getattr(config, "expert_dim", None)),
        "attn_implementation": "sdpa",
    }
    experts, active = 8, 2  # Mixtral's own, where ours has none
    if "num_experts" in sizes:
        experts, active = sizes["num_experts"], sizes["num_active_experts"] + sizes.get("num_shared_experts", 0)
    if kind == "llama":
        common["intermediate_size"] *= active if "num_experts" in sizes else 1  # as many active parameters
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**common)).train()
    common |= {"num_local_experts": max(active, experts), "num_experts_per_tok": active}
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**common)).train()


def rival_pass(model: nn.Module, config: BackboneConfig, rows: int, length: int) -> Run:
    """Forward, loss and backward of the rival on the same tokens."""
    x, y = tokens_of(config, rows, length)
    labels = torch.cat((x[:, :1], y[:, :-1]), dim=1)

    def run() -> None:
        model.zero_grad(set_to_none=True)
        model(input_ids=x, labels=labels, use_cache=False).loss.backward()

    return run


def rival_decoding(
    model: Any, config: BackboneConfig, rows: int, prompt: int, new: int, *, compiled: bool = False
) -> Run:
    """The rival's own `generate`, greedy, with its cache. `compiled`: with a static cache and a compiled forward."""
    x, _ = tokens_of(config, rows, prompt)
    how: dict[str, Any] = {}
    if compiled:
        from transformers.generation.configuration_utils import CompileConfig

        how = {"cache_implementation": "static", "compile_config": CompileConfig(fullgraph=False, mode="default")}
        how["compile_config"]._compile_all_devices = True  # transformers compiles by itself on GPUs only

    @torch.no_grad()
    def run() -> None:
        model.eval()
        length = {"max_new_tokens": new, "min_new_tokens": new, "eos_token_id": None, "pad_token_id": 0}
        model.generate(x, attention_mask=torch.ones_like(x), do_sample=False, **length, **how)
        model.train()

    return run
