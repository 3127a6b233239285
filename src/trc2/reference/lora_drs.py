"""LoRA subtraction for drift-resistant space, for a language model: full matrices, one loop per sum."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trc2.backbones.lora_drs import LoraDRSConfig
from trc2.reference import Weights, baselines
from trc2.reference.column import swiglu


@dataclass
class Pass:
    """Logits (B, T, V), and the input of every attention, (B, T, D) each."""

    logits: Tensor
    inputs: list[Tensor]


def adapted(weights: Weights, num_pairs: int, sign: float) -> Weights:
    """The weights of an attention with W_K + s Σ_j B_K,j A_K,j and W_V + s Σ_j B_V,j A_V,j."""
    w_q, w_k, w_v = weights["qkv.weight"].chunk(3)
    for j in range(num_pairs):
        w_k = w_k + sign * weights[f"qkv.pairs.{j}.up"][0] @ weights[f"qkv.pairs.{j}.down"][0]
        w_v = w_v + sign * weights[f"qkv.pairs.{j}.up"][1] @ weights[f"qkv.pairs.{j}.down"][1]
    return {"qkv.weight": torch.cat((w_q, w_k, w_v)), "output.weight": weights["output.weight"]}


def forward(x: Tensor, weights: Weights, config: LoraDRSConfig, num_pairs: int, sign: float = 1.0) -> Pass:
    """The network of x (B, T) with the first pairs added (s = 1) or subtracted (s = −1) in every layer."""
    inputs: list[Tensor] = []

    def mixer(u: Tensor, weights: Weights) -> Tensor:
        inputs.append(u)
        return baselines.attention(config)(u, adapted(weights, num_pairs, sign))

    feed_forward = baselines.each_token(swiglu)
    return Pass(baselines.residual_stream(x, weights, config, mixer, feed_forward).logits, inputs)


def spaces(batches: list[Tensor], weights: Weights, config: LoraDRSConfig, task: int) -> list[Tensor]:
    """T of every layer for a task ≥ 1: the pairs of the tasks between 0 and it are subtracted."""
    moments = [torch.zeros(config.d_model, config.d_model, dtype=torch.float64) for _ in range(config.num_layers)]
    count = 0
    for x in batches[: config.drs_batches]:
        count += x.numel()
        for layer, u in enumerate(forward(x, weights, config, task - 1, sign=-1.0).inputs):
            for token in u.flatten(0, 1):
                moments[layer] = moments[layer] + torch.outer(token, token).double()
    return [space(moment / count, config.drs_threshold, config.normalize_projector) for moment in moments]


def space(moment: Tensor, threshold: float, normalize: bool) -> Tensor:
    """P Pᵀ of the first singular vectors that hold the threshold's share of all singular values."""
    vectors, values, _ = torch.linalg.svd(moment)
    kept, held = 1, values[0]
    while held < threshold * values.sum() and kept < len(values):
        held = held + values[kept]
        kept += 1
    projector = sum((torch.outer(vectors[:, i], vectors[:, i]) for i in range(kept)), torch.zeros_like(moment))
    return projector / torch.sqrt((projector * projector).sum()) if normalize else projector


@dataclass
class Adam:
    """Adam's moments of one tensor. `step` gives the finished update, which the caller projects and adds."""

    first: Tensor
    second: Tensor
    steps: int = 0

    def step(self, gradient: Tensor, rate: float, betas: tuple[float, float], eps: float = 1e-8) -> Tensor:
        """−rate · m̂ / (√v̂ + ε)"""
        self.steps += 1
        self.first = betas[0] * self.first + (1 - betas[0]) * gradient
        self.second = betas[1] * self.second + (1 - betas[1]) * gradient * gradient
        mean = self.first / (1 - betas[0] ** self.steps)
        square = self.second / (1 - betas[1] ** self.steps)
        return -rate * mean / (torch.sqrt(square) + eps)
