"""Routed SwiGLU experts: a token runs through its selected experts only, and no token is dropped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from trc2.nn.init import ResidualBranch
from trc2.ops.gates import gated_product
from trc2.ops.modes import at_least_float32, with_gradient
from trc2.ops.selection import top_k

FEW_TOKENS = 64  # with so few, calls cost more than arithmetic


class SwiGLU(ResidualBranch):
    """W_2 (SiLU(W_1 u) ⊙ W_3 u). W_1 and W_3 are the two halves of `gate_up`, so that both cost one product."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.gate_up = nn.Linear(d_model, 2 * d_ff, bias=False)
        self.down = nn.Linear(d_ff, d_model, bias=False)

    def forward(self, u: Float[Tensor, "*P D"]) -> Float[Tensor, "*P D"]:
        return self.down(gated_product(self.gate_up(u)))

    def residual_outputs(self) -> tuple[nn.Linear]:
        return (self.down,)


@dataclass(frozen=True)
class Routing:
    """Gate probabilities, the selected experts of every token, and the weights of their outputs."""

    probabilities: Float[Tensor, "P E"]
    experts: Int[Tensor, "P k"]
    weights: Float[Tensor, "P k"]


class RoutedExperts(nn.Module):
    """MoE(u) = Σ_{e ∈ top-k} p̃_e E_e(u) + E_shared(u), with p = softmax(W_G u) and p̃ = p / Σ_{top-k} p.

    Without `renormalise` the weights are the probabilities themselves: p̃ = p.
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        num_experts: int,
        num_active: int,
        *,
        has_shared: bool,
        renormalise: bool = True,
    ) -> None:
        super().__init__()
        self.num_active = num_active
        self.renormalise = renormalise
        self.gate = nn.Linear(d_model, num_experts, bias=False)
        self.experts = nn.ModuleList(SwiGLU(d_model, d_ff) for _ in range(num_experts))
        self.shared = SwiGLU(d_model, d_ff) if has_shared else None
        self.stacked: SwiGLU | None = None

    def forward(self, u: Float[Tensor, "P D"]) -> tuple[Float[Tensor, "P D"], Routing]:
        routing = route(self.gate(u), self.num_active, renormalise=self.renormalise)
        mixed = self.dispatch(u, routing)
        if self.shared is not None:
            mixed = mixed + self.shared(u)
        return mixed, routing

    def dispatch(self, u: Float[Tensor, "P D"], routing: Routing) -> Float[Tensor, "P D"]:
        """Σ_{e ∈ top-k} p̃_e E_e(u)"""
        if self.stacked is not None:
            return self._by_stack(self.stacked, u, routing)
        if torch.compiler.is_compiling():
            return self._by_weight(u, routing)
        # One token needs no sorting. With gradients all experts run, so that idle ones get a zero gradient.
        without_gradient = self._by_token if u.shape[0] == 1 else self._by_expert
        return with_gradient(self._by_expert, without_gradient, u, routing)

    def _by_weight(self, u: Float[Tensor, "P D"], routing: Routing) -> Float[Tensor, "P D"]:
        """All experts on all tokens, unselected ones with weight 0: no shape depends on data, E/k times the work."""
        weights = torch.zeros_like(routing.probabilities).scatter(1, routing.experts, routing.weights)
        outputs = [expert(u) for expert in self.experts]
        return sum(out * weights[:, e : e + 1].to(out.dtype) for e, out in enumerate(outputs))

    def stack(self) -> None:
        """Make one SwiGLU of all experts, end to end, for a copy of the network that decodes in a compiled graph."""
        gate_up, down = ([getattr(e, name).weight.detach() for e in self.experts] for name in ("gate_up", "down"))
        with torch.device("meta"):
            self.stacked = SwiGLU(down[0].shape[0], sum(weight.shape[1] for weight in down))
        self.stacked.gate_up.weight = nn.Parameter(torch.cat(gate_up), requires_grad=False)
        self.stacked.down.weight = nn.Parameter(torch.cat(down, dim=1), requires_grad=False)
        self.experts = nn.ModuleList()

    def _by_stack(self, stacked: SwiGLU, u: Float[Tensor, "P D"], routing: Routing) -> Float[Tensor, "P D"]:
        """One token reads the matrices of its own experts. Several read all, with weight 0 where not selected."""
        num_experts = routing.probabilities.shape[1]
        if u.shape[0] == 1:
            chosen, weights = routing.experts[0], routing.weights.T
            gate_up = (stacked.gate_up.weight.unflatten(0, (num_experts, -1))[chosen] * u).sum(dim=-1)
            inner = gated_product(gate_up) * weights.to(u.dtype)
            return (stacked.down.weight.unflatten(1, (num_experts, -1))[:, chosen] * inner).sum(dim=(1, 2)).unsqueeze(0)
        weights = torch.zeros_like(routing.probabilities).scatter(1, routing.experts, routing.weights)
        inner = gated_product(stacked.gate_up(u).unflatten(1, (num_experts, -1))) * weights.unsqueeze(2).to(u.dtype)
        return stacked.down(inner.flatten(1))

    def _by_expert(self, u: Float[Tensor, "P D"], routing: Routing) -> Float[Tensor, "P D"]:
        """Sort (token, expert) pairs by expert, run each expert once on its own tokens, add the results back."""
        pair_expert = routing.experts.flatten()
        order = pair_expert.argsort(stable=True)
        tokens = order // self.num_active
        counts = torch.bincount(pair_expert, minlength=len(self.experts)).tolist()
        groups = u.index_select(0, tokens).split(counts)
        outputs = with_gradient(self._run_all, self._run_busy, groups)
        weighted = outputs * routing.weights.flatten()[order].unsqueeze(1).to(outputs.dtype)
        return torch.zeros_like(u, dtype=outputs.dtype).index_add(0, tokens, weighted)

    def _by_token(self, u: Float[Tensor, "1 D"], routing: Routing) -> Float[Tensor, "1 D"]:
        """The outputs of one token's experts, times their weights."""
        chosen = routing.experts[0].tolist()
        outputs = _run_together([self.experts[e] for e in chosen], [u] * len(chosen))
        return routing.weights.to(outputs.dtype) @ outputs

    def _run_all(self, groups: Sequence[Tensor]) -> Float[Tensor, "N D"]:
        """With gradients, an expert without tokens runs on zero rows, which gives its weights a zero gradient."""
        return torch.cat([expert(group) for expert, group in zip(self.experts, groups, strict=True)])

    def _run_busy(self, groups: Sequence[Tensor]) -> Float[Tensor, "N D"]:
        """Without gradients, experts without tokens do not run."""
        busy = [(expert, group) for expert, group in zip(self.experts, groups, strict=True) if len(group)]
        if sum(len(group) for group in groups) > FEW_TOKENS * self.num_active:
            return torch.cat([expert(group) for expert, group in busy])
        return _run_together([expert for expert, _ in busy], [group for _, group in busy])


def _run_together(experts: Sequence[nn.Module], groups: Sequence[Tensor]) -> Float[Tensor, "N D"]:
    """The experts' outputs, end to end, with one element-wise call for all experts."""
    gate_up = torch.cat([expert.gate_up(group) for expert, group in zip(experts, groups, strict=True)])  # type: ignore[operator]
    parts = gated_product(gate_up).split([len(group) for group in groups])
    return torch.cat([expert.down(part) for expert, part in zip(experts, parts, strict=True)])  # type: ignore[operator]


def route(gate: Float[Tensor, "P E"], num_active: int, *, renormalise: bool = True) -> Routing:
    """Softmax over all experts in float32, then the top-k with their probabilities, renormalised to sum to 1."""
    probabilities = at_least_float32(gate).softmax(dim=-1)
    experts = top_k(probabilities.detach(), num_active)
    chosen = probabilities.gather(-1, experts)
    return Routing(probabilities, experts, chosen / chosen.sum(dim=-1, keepdim=True) if renormalise else chosen)


def load_balance(routing: Routing, counted: Bool[Tensor, " P"] | slice) -> Float[Tensor, ""]:
    """A_lb = E Σ_e load_e · imp_e over the counted tokens: top-1 share times mean probability.

    The share is a count, hence without gradient. A equals 1 under perfect balance.
    """
    probabilities = routing.probabilities[counted]
    num_experts = probabilities.shape[-1]
    first = routing.experts[counted, 0]
    load = torch.bincount(first, minlength=num_experts).to(probabilities.dtype) / max(1, first.numel())
    importance = probabilities.sum(dim=0) / max(1, first.numel())
    return num_experts * (load * importance).sum()
