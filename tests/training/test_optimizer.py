from __future__ import annotations

from tests.conftest import tiny_config
from trc2 import CortexNet
from trc2.config import TrainConfig
from trc2.training.optimizer import build_optimizer


def test_matrices_decay_vectors_do_not_and_tensors_without_a_reader_are_left_out() -> None:
    net = CortexNet(tiny_config())
    optimizer = build_optimizer(net, TrainConfig(weight_decay=0.3))
    decayed, plain = (set(map(id, group["params"])) for group in optimizer.param_groups)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.3, 0.0]
    for name, parameter in net.named_parameters():
        trained = parameter.requires_grad and name not in net.unused_parameters()
        assert (id(parameter) in decayed) == (trained and parameter.ndim >= 2), name
        assert (id(parameter) in plain) == (trained and parameter.ndim < 2), name
    assert id(net.cortex.embedding.weight) in decayed
