"""Text from a model, token by token."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from trc2.backbones.compiled import CompiledSteps, Policy
from trc2.backbones.shell import Backbone
from trc2.errors import UserError
from trc2.nn.linear import PlainLinear
from trc2.stream.tokenizer import Tokenizer
from trc2.system.rng import keyed_generator


@dataclass(frozen=True)
class Sampling:
    """How text is drawn. Temperature 0 takes the likeliest token."""

    max_tokens: int = 100
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0


def stream_text(
    net: Backbone, tokenizer: Tokenizer, prompt: str, sampling: Sampling, *, read_memory: bool = True
) -> Iterator[str]:
    """Pieces of text as they are ready. A character whose bytes are spread over tokens waits for its last token."""
    ids = [*tokenizer.begin_of_text, *tokenizer.encode_batch([prompt])[0]] or [tokenizer.end_of_text]
    made: list[int] = []
    shown = 0  # characters yielded so far
    for token in generate_ids(net, ids, sampling, read_memory=read_memory, end=tokenizer.end_of_text):
        made.append(token)
        text = tokenizer.decode(made)
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):
            yield text[shown:]
            shown = len(text)
    rest = tokenizer.decode(made)[shown:]
    if rest:
        yield rest


def lay_out_for_decoding(net: Backbone, policy: Policy = "auto") -> None:
    """Store the matrices of a network column by column, which a CPU reads up to twice as fast for a few rows.

    For inference only: fused optimizers expect one layout of gradients, state and weights. `policy` says when single
    tokens are run by a compiled graph, see `CompiledSteps`.
    """
    net.steps = CompiledSteps(net, policy)
    for module in net.modules():
        if isinstance(module, nn.Linear | PlainLinear | nn.Embedding) and module.weight.device.type == "cpu":
            module.weight.data = module.weight.data.T.contiguous().T


def generate_ids(
    net: Backbone, prompt: list[int], sampling: Sampling, *, read_memory: bool = True, end: int | None = None
) -> Iterator[int]:
    """Sample until the end token, the limit, or the model's last position."""
    if not 0 <= sampling.temperature < math.inf:
        raise UserError(
            f"temperature={sampling.temperature} is not a number from 0 up: use 0 for the likeliest token, 1 for a "
            "usual draw."
        )
    check_top_p(sampling.top_p)
    room = net.config.max_positions - len(prompt)
    if room < 0:
        raise UserError(
            f"The prompt has {len(prompt)} tokens, but the model has {net.config.max_positions} positions: shorten it."
        )
    sampling = replace(sampling, max_tokens=min(sampling.max_tokens, room))
    rng = keyed_generator("generate", sampling.seed)
    for (token,) in sample_rows(net, torch.tensor([prompt]), sampling, rng, read_memory=read_memory):
        if token == end:
            return
        yield token


@torch.inference_mode()
def sample_rows(
    net: Backbone, prompts: Int[Tensor, "B T"], sampling: Sampling, rng: torch.Generator, *, read_memory: bool = True
) -> Iterator[list[int]]:
    """The next token of every row, `max_tokens` times. No row ends early."""
    net.eval()
    device = net.get_input_embeddings().weight.device
    decoding, ahead = net.start_decoding(), prompts.to(device)
    for _ in range(sampling.max_tokens):
        logits = net.decode(ahead, decoding, read_memory=read_memory, last=1)[:, -1].float().cpu()
        check_finite(logits)
        tokens = [sample(scores, sampling, rng) for scores in logits]
        yield tokens
        ahead = torch.tensor(tokens, device=device).unsqueeze(1)


def check_finite(logits: Tensor) -> None:
    if not bool(logits.amax(dim=-1).isfinite().all()):  # the maximum of numbers and a NaN is NaN
        raise UserError("The model's scores of the next token are not finite: it is broken, use another checkpoint.")


def check_top_p(top_p: float) -> None:
    if not 0 < top_p <= 1:
        raise UserError(f"top_p={top_p} is not a share: give a number above 0 and up to 1.")


def sample(logits: Float[Tensor, " V"], sampling: Sampling, rng: torch.Generator) -> int:
    """One token: the likeliest at temperature 0, else a draw from the smallest set with probability `top_p`."""
    if sampling.temperature < 1e-20:  # float32 cannot divide by much less
        return int(logits.argmax())
    probabilities, order = (logits / sampling.temperature).softmax(dim=-1).sort(descending=True, stable=True)
    kept = max(1, int((probabilities.cumsum(0) - probabilities < sampling.top_p).sum()))  # float32 may round top_p to 0
    drawn = torch.multinomial(probabilities[:kept], 1, generator=rng)
    return int(order[drawn])
