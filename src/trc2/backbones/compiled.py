"""Decoding with one call per token: the trunk's step over one token of every row, compiled by AOTInductor.

A graph belongs to a config, not to weights, and is kept in the cache of the user. There is one graph for one row and
one for several. The plain path of `Backbone.decode` is the reference: logits differ by rounding only.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.func import functional_call

from trc2.config import BackboneConfig, model_config
from trc2.nn.decoding import Decoding, KeyValues, RunningSum, State
from trc2.nn.experts import RoutedExperts
from trc2.nn.segments import Packed, Segment, Step
from trc2.nn.trunk import Trunk
from trc2.ops.modes import with_gradient
from trc2.system.machine import end_with_parent

if TYPE_CHECKING:
    from trc2.backbones.shell import Backbone

PAYS_AFTER = 20_000  # tokens: a graph saves 3 ms or more of each, and compiling takes about a minute
MAX_ROWS = 64  # of a dense network; fewer with experts, see `most_rows`
MAX_WASTE = 150e6  # FLOPs of a step in experts that no token selected: a graph won at 100e6 and not at 230e6
SMALL = 8  # numbers of a tensor that AOTInductor makes part of the code
CACHE = Path("~/.cache/trc2/compiled")
KEPT_DAYS = 60  # since a graph was last loaded
SOURCES = ("backbones", "config", "model", "nn", "ops")
Policy = Literal["auto", "now", "off"]


class TokenStep(nn.Module):
    """The trunk as a function of tensors: token, caches and states in, normalised state and changed states out."""

    def __init__(self, trunk: Trunk, names: list[tuple[int, str]]) -> None:
        super().__init__()
        self.trunk, self.names = trunk, names

    def forward(
        self,
        tokens: Int[Tensor, " B"],
        seen: Bool[Tensor, "B S"],
        slot: Int[Tensor, " 1"],
        states: list[Tensor],
        small: dict[str, Tensor],
    ) -> tuple[Float[Tensor, "B D"], list[Tensor]]:
        decoding = Decoding(self.trunk.new_states())
        for (index, name), tensor in zip(self.names, states, strict=True):
            decoding.states[index].tensors[name] = tensor
        for state in decoding.states:
            if isinstance(state, KeyValues):
                state.slot = slot
        step = Step(0, tokens.shape[0], 1, seen=seen, slot=slot)
        options = {"with_losses": False, "decoding": decoding}
        out = functional_call(self.trunk, small, (Packed(tokens, (step,)),), options)
        return out.hidden, [decoding.states[index].tensors[name] for index, name in replaced(decoding)]


def small_tensors(trunk: Trunk) -> dict[str, Tensor]:
    """Parameters and buffers of a few numbers, which are arguments of a step: AOTInductor copies them into the code."""
    named = (*trunk.named_parameters(), *trunk.named_buffers())
    return {name: tensor.detach() for name, tensor in named if tensor.numel() <= SMALL}


def state_names(decoding: Decoding) -> list[tuple[int, str]]:
    """The number of a part's state, and the name of a tensor in it."""
    return [(index, name) for index, state in enumerate(decoding.states) for name in state.tensors]


def replaced(decoding: Decoding) -> list[tuple[int, str]]:
    """The states that a step returns. Keys and values are written in place."""
    return [key for key in state_names(decoding) if not isinstance(decoding.states[key[0]], KeyValues)]


class ColumnLinear(nn.Module):
    """x Wᵀ, with Wᵀ stored row by row: products with a few rows read it faster."""

    def __init__(self, weight: Float[Tensor, "O I"]) -> None:
        super().__init__()
        self.columns = nn.Parameter(weight.T.contiguous(), requires_grad=False)

    @property
    def weight(self) -> Float[Tensor, "O I"]:
        return self.columns.T

    def forward(self, x: Float[Tensor, "*P I"]) -> Float[Tensor, "*P O"]:
        return x @ self.columns


def decoding_copy(trunk: Trunk, *, one_row: bool) -> Trunk:
    """A copy with stacked experts and, for several rows, matrices by columns."""
    own = copy.deepcopy(trunk).eval().requires_grad_(False)
    for module in list(own.modules()):
        if isinstance(module, RoutedExperts):
            module.stack()
    for module in list(own.modules()) if not one_row else ():
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear) and child._parameters["bias"] is None:
                setattr(module, name, ColumnLinear(child.weight))
    for parameter in own.parameters():
        parameter.data = parameter.data.contiguous()
    return own


class Weights(NamedTuple):
    """The tensors of a network for a graph, which has only addresses of the large ones, and their state when copied."""

    state: list[tuple[int, int]]
    large: dict[str, Tensor]
    small: dict[str, Tensor]


class CompiledSteps:
    """Runs single tokens of a network by a compiled graph where there is one, and has it made when it pays.

    `auto`: after `PAYS_AFTER` tokens of the plain path another process compiles while this one goes on. `now`: before
    the first token. Graphs in the cache are used from the first token on.
    """

    def __init__(self, net: Backbone, policy: Policy = "auto") -> None:
        self.net, self.policy = net, policy
        self.graphs: dict[bool, Any] = {}  # by whether there is one row, as all of these
        self.weights: dict[bool, Weights] = {}
        self.makers: dict[bool, subprocess.Popen[bytes]] = {}
        self.num_plain = 0  # tokens of the plain path
        self.max_rows = most_rows(net.trunk)
        self.is_possible = policy != "off" and can_compile() and is_ours(net)

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        """Copies of a network, in memory or in a file, begin without."""
        return type(None), ()

    def suit(self, segment: Segment) -> bool:
        """Whether a graph can run these tokens: one real token of every row, after others, and nobody looks inside."""
        trunk = self.net.trunk
        is_watched = any((trunk._forward_hooks, trunk._forward_pre_hooks, trunk.embedding._forward_hooks))
        is_step = segment.length == 1 and segment.rows <= self.max_rows and segment.earlier is not None
        is_inference = not self.net.training and with_gradient(lambda: False, lambda: True)
        is_real = segment.valid is None or bool(segment.valid.all())
        return self.is_possible and is_inference and is_step and is_real and not is_watched

    def __call__(self, x: Int[Tensor, "B 1"], decoding: Decoding) -> Float[Tensor, "B D"] | None:
        """The states of the next token of every row, or None where the plain path has to run."""
        graph, one_row = self._graph(decoding), decoding.rows == 1
        if graph is None:
            self.num_plain += 1
            return None
        step, names = decoding.next_step(), state_names(decoding)
        states = [decoding.states[index].tensors[name].contiguous() for index, name in names]
        hidden, changed = graph(x.flatten().contiguous(), step.seen, step.slot, states, self.weights[one_row].small)
        for (index, name), tensor in zip(replaced(decoding), changed, strict=True):
            decoding.states[index].tensors[name] = tensor
        for state in decoding.states:
            if isinstance(state, KeyValues):
                state.length += 1
        return hidden

    def _graph(self, decoding: Decoding) -> Any:
        """The graph for as many rows, with this network's weights. None if there is none."""
        one_row = decoding.rows == 1
        if one_row not in self.graphs:
            path = graph_path(self.net.config, one_row)
            if not is_own(path) and not self._make(path, one_row):
                return None
            self.graphs[one_row] = torch._inductor.aoti_load_package(str(path))
            with suppress(OSError):  # of another machine's cache, for example
                os.utime(path)  # in use: see `remove_unused`
        if decoding.seen is None or one_row not in self.weights:  # weights do not change within a text
            self._load_weights(one_row)
        return self.graphs[one_row] if self.is_possible else None

    def _make(self, path: Path, one_row: bool) -> bool:
        """Have the graph compiled when it pays. Returns whether it is there."""
        maker = self.makers.get(one_row)
        if maker is None and (self.policy == "now" or self.num_plain > PAYS_AFTER):
            words = [json.dumps(self.net.config.model_dump(mode="json")), str(path), str(int(one_row))]
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with path.with_suffix(".log").open("wb") as log:
                maker = self.makers[one_row] = subprocess.Popen(
                    [sys.executable, "-W", "ignore", "-m", "trc2.backbones.compiled", *words],
                    env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())},
                    stdout=log, stderr=log,
                )  # fmt: skip
        if maker is not None and self.policy == "now":
            maker.wait()
        if maker is None or maker.poll() is None:
            return False
        if not is_own(path):
            self.is_possible = False
            told = path.with_suffix(".log")
            warnings.warn(f"Decoding could not be compiled and stays as slow as it is. {told} says why.", stacklevel=5)
        return self.is_possible

    def _load_weights(self, one_row: bool) -> None:
        """Give the graph this network's weights, again if they changed."""
        tensors = [*self.net.trunk.parameters(), *self.net.trunk.buffers()]
        state = [(tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version) for tensor in tensors]
        if one_row in self.weights and self.weights[one_row].state == state:
            return
        own = TokenStep(decoding_copy(self.net.trunk, one_row=one_row), [])
        named = {name: tensor.data for name, tensor in (*own.named_parameters(), *own.named_buffers())}
        graph = self.graphs[one_row]
        self.is_possible = is_ours(self.net) and named.keys() >= set(graph.get_constant_fqns())
        if self.is_possible:  # else the network is another than its config says, for example with adapters
            large = {name: named[name] for name in graph.get_constant_fqns()}
            self.weights[one_row] = Weights(state, large, small_tensors(own.trunk))
            graph.load_constants(large, check_full_update=True, user_managed=True)


def most_rows(trunk: Trunk) -> int:
    """Up to this many rows a graph is faster: it runs all experts for all rows, the plain path only the selected.

    One row wastes nothing, because its graph reads the selected experts only.
    """
    layers = [m for m in trunk.modules() if isinstance(m, RoutedExperts)]
    unselected = sum(sum(p.numel() for e in m.experts[m.num_active :] for p in e.parameters()) for m in layers)
    return max(1, min(MAX_ROWS, int(MAX_WASTE / (2 * unselected)))) if unselected else MAX_ROWS


def can_compile() -> bool:
    """AOTInductor calls the C++ compiler. Other systems than Linux were not tried."""
    return shutil.which(os.environ.get("CXX", "g++")) is not None and sys.platform == "linux"


def is_ours(net: Backbone) -> bool:
    """Whether all states of decoding are tensors, in float32 on a CPU."""
    known = all(type(state) in (State, KeyValues, RunningSum) for state in net.trunk.new_states())
    return known and all(p.dtype == torch.float32 and p.device.type == "cpu" for p in net.trunk.parameters())


# ------------------------------------------------------------------------------------------------------ the cache


def graph_path(config: BackboneConfig, one_row: bool) -> Path:
    """Where the graph of a config is kept. Its name depends on all that the graph depends on."""
    facts = [
        config.model_dump(mode="json"), one_row, torch.get_num_threads(), torch.__version__,
        torch.backends.cpu.get_cpu_capability(), _source_hash(),
    ]  # fmt: skip
    return CACHE.expanduser() / f"{hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]}.pt2"


def is_own(path: Path) -> bool:
    """Whether there is a graph that only this user can have written: loading one runs its code."""
    try:
        facts = [file.lstat() for file in (path, path.parent)]
    except OSError:
        return False
    return all(fact.st_uid == os.getuid() and not fact.st_mode & 0o022 for fact in facts)


def remove_unused(folder: Path) -> None:
    """Remove graphs that were not loaded for a long time: each version of the package and of torch needs its own."""
    for file in folder.iterdir():
        with suppress(OSError):
            if time.time() - file.lstat().st_mtime > KEPT_DAYS * 86_400:
                file.unlink()


@functools.lru_cache
def _source_hash() -> str:
    root = Path(__file__).parents[1]
    sources = sorted(path for package in SOURCES for path in (root / package).glob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()


# ------------------------------------------------------------------------------------------------------ compiling


@torch.no_grad()
def make_graph(config: BackboneConfig, path: Path, *, one_row: bool) -> None:
    """Compile the step of a config. The file appears whole or not at all."""
    from trc2.backbones.registry import build_model

    net = build_model(config).eval()
    rows = 1 if one_row else 3
    decoding = net.start_decoding()
    net.decode(torch.zeros(rows, 5, dtype=torch.int64), decoding)
    trunk = decoding_copy(net.trunk, one_row=one_row)
    step, names = decoding.next_step(), state_names(decoding)
    states = [decoding.states[index].tensors[name].contiguous() for index, name in names]
    grows = torch.export.Dim("S", min=2, max=2**24)
    several = {} if one_row else {0: torch.export.Dim("B", min=2, max=MAX_ROWS)}
    small = small_tensors(trunk)
    is_cache = [isinstance(decoding.states[index], KeyValues) for index, _ in names]
    shapes = {
        "tokens": several,
        "seen": {**several, 1: grows},
        "slot": {},
        "states": [{**several, **({2: grows} if cache else {})} for cache in is_cache],
        "small": {name: {} for name in small},
    }
    arguments = (torch.zeros(rows, dtype=torch.int64), step.seen, step.slot, states, small)
    program = torch.export.export(TokenStep(trunk, names), arguments, dynamic_shapes=shapes, strict=False)
    if one_row:  # products of one row become loops, which are joined with what is before and after them
        table = torch.export.default_decompositions()
        table[torch.ops.aten.linear.default] = _linear_of_one_row
        program = program.run_decompositions(table)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    remove_unused(path.parent)
    partial = path.with_name(f".{path.stem}.{os.getpid()}.pt2")
    torch._inductor.aoti_compile_and_package(
        program, package_path=str(partial), inductor_configs={"aot_inductor.package_constants_in_so": False}
    )
    partial.chmod(0o600)
    partial.replace(path)
    path.with_suffix(".log").unlink(missing_ok=True)


def _linear_of_one_row(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    product = (x.reshape(1, -1) * weight).sum(dim=-1).view(*x.shape[:-1], weight.shape[0])
    return product if bias is None else product + bias


if __name__ == "__main__":
    end_with_parent()
    make_graph(model_config(json.loads(sys.argv[1])), Path(sys.argv[2]), one_row=sys.argv[3] == "1")
