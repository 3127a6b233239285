"""Compiled parts and steps give the numbers of the plain ones."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import excited, fill_memory, tiny_config, tokens
from tests.nn.test_decoding import NETS, check_rows_that_join_and_leave
from trc2 import CortexNet
from trc2.backbones import compiled
from trc2.backbones.compiled import (
    CompiledSteps,
    TokenStep,
    Weights,
    decoding_copy,
    most_rows,
    small_tensors,
    state_names,
)
from trc2.backbones.shell import Backbone
from trc2.nn.decoding import Decoding

# In a process of its own, because shape checks stop the compiler.
PROGRAM = """
import copy, torch
from trc2 import CortexNet, TRC2Config
from trc2.backbones.registry import compile_parts

config = TRC2Config(vocab_size=61, d_model=32, num_columns=3, num_heads=4, num_kv_heads=2, num_experts=4, d_ff=24,
                    memory_slots=32, memory_key_dim=8, max_positions=64, replay_chunk_length=8)
plain = CortexNet(config, torch.Generator().manual_seed(0)).train()
with torch.no_grad():
    for parameter in plain.parameters():
        parameter.mul_(5)
plain.cortex.hippocampus.write(torch.randn(20, 32, generator=torch.Generator().manual_seed(1)))
fast = copy.deepcopy(plain)
assert compile_parts(fast) > 5
assert fast.state_dict().keys() == plain.state_dict().keys()
x = torch.randint(61, (2, 17), generator=torch.Generator().manual_seed(2))
for net in (plain, fast):
    net(x[:, :-1], x[:, 1:])[1]["loss"].backward()
gaps = [
    float((a.grad - b.grad).abs().max() / (a.grad.abs().max() + 1e-6))
    for a, b in zip(plain.parameters(), fast.parameters()) if a.grad is not None
]
print(len(gaps), max(gaps))
"""


@pytest.mark.slow
def test_gradients_are_equal() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    count, gap = done.stdout.split()
    assert int(count) > 50
    assert float(gap) < 1e-4


class EagerSteps(CompiledSteps):
    """The step that would be compiled, run by torch."""

    num_steps = 0

    def _graph(self, decoding: Decoding) -> Any:
        trunk = decoding_copy(self.net.trunk, one_row=decoding.rows == 1)
        self.weights[decoding.rows == 1] = Weights([], {}, small_tensors(trunk))
        self.num_steps += 1
        return TokenStep(trunk, state_names(decoding))


@pytest.mark.parametrize("name", NETS)
def test_a_step_of_fixed_shapes_is_the_step_of_the_plain_path(name: str) -> None:
    net = NETS[name]()
    net.steps = steps = EagerSteps(net)
    steps.is_possible = True  # the steps that are compiled are in float32
    check_rows_that_join_and_leave(net, atol=1e-9)
    assert steps.num_steps == 5


def small_net() -> Backbone:
    net = excited(CortexNet(tiny_config())).eval()
    fill_memory(net, 7)
    return net


def test_only_single_real_tokens_of_an_unwatched_network_are_run_by_a_graph() -> None:
    net, ids = small_net(), tokens(tiny_config(), 2, 9)
    net.steps = steps = EagerSteps(net)
    with torch.no_grad():
        decoding = net.start_decoding()
        net.decode(ids[:, :4], decoding)
        net.decode(ids[:, 4:5], decoding, read_memory=False)
        net.decode(ids[:, 4:5], decoding, valid=torch.tensor([[True], [False]]))
        handle = net.trunk.register_forward_hook(lambda *_: None)
        net.decode(ids[:, 4:5], decoding)
        handle.remove()
        assert steps.num_steps == 0
        net.decode(ids[:, 4:5], decoding)
    net.decode(ids[:, 4:5], decoding)
    assert steps.num_steps == 1


def test_graphs_run_fewer_rows_the_more_arithmetic_unselected_experts_waste(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(num_experts: int) -> int:
        return most_rows(CortexNet(tiny_config(num_experts=num_experts)).trunk)

    assert rows(8) == compiled.MAX_ROWS  # tiny experts waste little
    monkeypatch.setattr(compiled, "MAX_WASTE", 3e5)
    few = rows(8)
    assert 1 < few < rows(4) < compiled.MAX_ROWS
    monkeypatch.setattr(compiled, "MAX_WASTE", 1.0)
    assert rows(8) == 1  # a single row runs its own experts only, however large they are
    monkeypatch.setattr(compiled, "MAX_WASTE", 3e5)
    net, ids = CortexNet(tiny_config(num_experts=8)).eval(), tokens(tiny_config(), few + 1, 5)
    net.steps = steps = EagerSteps(net)
    with torch.no_grad():
        for count in (few + 1, few):
            decoding = net.start_decoding()
            net.decode(ids[:count, :4], decoding)
            net.decode(ids[:count, 4:], decoding)
    assert steps.num_steps == 1


def test_copies_of_a_network_have_no_graphs() -> None:
    net = small_net()
    net.steps = CompiledSteps(net)
    assert copy.deepcopy(net).steps is None
    assert pickle.loads(pickle.dumps(net.steps)) is None


COMPILED = """
import sys, torch
from pathlib import Path
from tests.backbones.test_compiled import small_net
from tests.conftest import tokens
from trc2.backbones import compiled
from trc2.backbones.compiled import CompiledSteps
compiled.CACHE = Path(sys.argv[1])
plain, fast = small_net(), small_net()
fast.steps = CompiledSteps(fast, "now")
ids = tokens(plain.config, 3, 12, seed=4)
def decode(net, ids, valid=None):
    with torch.inference_mode():
        decoding, out, logits = net.start_decoding(), [], []
        ahead = ids
        for _ in range(10):
            logits.append(net.decode(ahead, decoding, valid=valid, last=1)[:, -1])
            ahead, valid = logits[-1].argmax(dim=1, keepdim=True), None
            out.append(ahead)
    return torch.cat(out, dim=1), torch.stack(logits)
padded = torch.ones(3, 12, dtype=torch.bool)
padded[0, :7] = False
def check():
    gap = 0.0
    for rows, valid in ((ids[:1], None), (ids, None), (ids[:2], None), (ids, padded)):
        (a, x), (b, y) = decode(plain, rows, valid), decode(fast, rows, valid)
        assert torch.equal(a, b)
        gap = max(gap, float((x - y).abs().max()))
    return gap
first = check()
with torch.no_grad():
    for net in (plain, fast):
        net.trunk.columns[0].attention.qkv.weight.mul_(-1.5)
        net.trunk.thalamus.state_bias.add_(1.0)
        net.trunk.hippocampus.write(torch.ones(2, net.config.d_model))
print(fast.steps.is_possible, len(fast.steps.graphs), fast.steps.num_plain, max(first, check()))
"""


@pytest.mark.slow
def test_compiled_tokens_are_those_of_the_plain_path_also_after_weights_and_memory_changed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", COMPILED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    is_possible, graphs, num_plain, gap = done.stdout.split()
    assert (is_possible, graphs, num_plain) == ("True", "2", "0")
    assert float(gap) < 1e-4
    assert len(list(tmp_path.glob("*.pt2"))) == 2


def test_a_graph_belongs_to_settings_rows_and_threads() -> None:
    paths = {compiled.graph_path(tiny_config(d_model=width), one) for width in (16, 32) for one in (True, False)}
    assert len(paths) == 4


def test_a_failed_compilation_is_told_and_the_plain_path_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "CACHE", tmp_path)
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no compiler >&2\nexit 1\n")
    broken.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(broken))
    net, ids = small_net(), tokens(tiny_config(), 1, 9)
    net.steps = CompiledSteps(net, "now")
    with torch.no_grad():
        decoding = net.start_decoding()
        net.decode(ids[:, :8], decoding)
        with pytest.warns(UserWarning, match="could not be compiled"):
            logits = net.decode(ids[:, 8:], decoding)
        assert not net.steps.is_possible
        assert [path.read_text() for path in tmp_path.glob("*.log")] == ["no compiler\n"]
        torch.testing.assert_close(logits[:, 0], net(ids)[0][:, 8], atol=1e-5, rtol=1e-5)


def test_a_graph_that_others_can_write_is_not_loaded(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    graph = cache / "graph.pt2"
    assert not compiled.is_own(graph)
    graph.touch(0o600)
    assert compiled.is_own(graph)
    for path, others in ((graph, 0o620), (cache, 0o777)):
        mode = path.stat().st_mode
        path.chmod(others)
        assert not compiled.is_own(graph)
        path.chmod(mode)
    link = cache / "link.pt2"
    link.symlink_to(graph)
    assert not compiled.is_own(link), "what a link leads to may be replaced"


def test_graphs_that_nobody_loads_any_more_are_removed(tmp_path: Path) -> None:
    for name, days in (("old", compiled.KEPT_DAYS + 1), ("new", compiled.KEPT_DAYS - 1)):
        (tmp_path / name).touch()
        at = time.time() - days * 86_400
        os.utime(tmp_path / name, (at, at))
    compiled.remove_unused(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
