"""The Hugging Face Trainer: with the callback it trains like our own loop, without it it warns once."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from tests.conftest import tiny_config, tokens
from trc2 import CortexNet, MemoryCallback, TRC2ForCausalLM, UserError


class Rows(Dataset[dict[str, torch.Tensor]]):
    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def trainer(folder: Path, net: CortexNet, **changes: Any) -> Trainer:
    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "max_steps": 4,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "weight_decay": 0.0,
        "report_to": [],
        "save_strategy": "no",
        "use_cpu": True,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "logging_strategy": "no",
        **changes.pop("arguments", {}),
    }
    rows = Rows(tokens(net.config, 16, 12))
    return Trainer(TRC2ForCausalLM.wrap(net), TrainingArguments(**settings), train_dataset=rows, **changes)


def build() -> CortexNet:
    return CortexNet(tiny_config(memory_slots=64), torch.Generator().manual_seed(1))


def test_it_finds_the_model_inside_a_wrapper_and_refuses_another() -> None:
    face, callback = TRC2ForCausalLM.wrap(build()), MemoryCallback()
    for model in (face, torch.nn.DataParallel(face)):
        callback.on_train_begin(None, None, None, model=model)
    linear = torch.nn.Linear(1, 1)
    for model in (linear, torch.nn.DataParallel(linear)):
        with pytest.raises(UserError, match="given a Linear: it serves TRC2ForCausalLM only"):
            callback.on_train_begin(None, None, None, model=model)


def test_the_callback_keeps_the_order_of_a_step(tmp_path: Path) -> None:
    """Replayed by hand: the same batches, flush, optimizer, slow targets."""
    by_trainer, by_hand = build(), build()
    seen: list[torch.Tensor] = []
    by_trainer.register_forward_pre_hook(lambda _m, args: seen.append(args[0].clone()))
    trainer(tmp_path, by_trainer, callbacks=[MemoryCallback()]).train()
    optimizer = torch.optim.AdamW(by_hand.parameters(), lr=1e-2, weight_decay=0.0)
    by_hand.train()
    for step in range(4):
        optimizer.zero_grad()
        for x in seen[2 * step : 2 * step + 2]:
            _, aux = by_hand(x, torch.nn.functional.pad(x[:, 1:], (0, 1), value=-100))
            (aux["loss"] / 2).backward()
        by_hand.flush_pending_write()
        optimizer.step()
        by_hand.update_slow_targets()
    assert by_trainer.num_events == by_hand.num_events > 0
    assert int(by_trainer.clock.step) == 4
    for name, tensor in by_hand.state_dict().items():
        torch.testing.assert_close(by_trainer.state_dict()[name], tensor, atol=1e-5, rtol=1e-4, msg=name)


def test_without_the_callback_the_queue_is_bounded_and_one_warning_tells(tmp_path: Path) -> None:
    net = CortexNet(tiny_config(max_unflushed_batches=3))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer(tmp_path, net).train()
    told = [str(w.message) for w in caught if "never flushed" in str(w.message)]
    assert len(told) == 1
    assert "trc2.MemoryCallback()" in told[0]
    assert len(net.pending) == 3
    assert net.num_events == 0
    net.discard_pending_write()


def test_overflowed_float16_gradients_leave_nothing_behind() -> None:
    net = build().train()
    model = TRC2ForCausalLM.wrap(net)
    x = tokens(net.config, 2, 12)
    model(x, labels=x).loss.backward()
    net.cortex.embedding.weight.grad = torch.full_like(net.cortex.embedding.weight, float("inf"))
    arguments = type("Arguments", (), {"fp16": True})()
    MemoryCallback().on_pre_optimizer_step(arguments, None, None, model=model)
    assert (net.num_events, len(net.pending)) == (0, 0)


def test_the_trainer_evaluates(tmp_path: Path) -> None:
    net = build()
    rows = Rows(tokens(net.config, 6, 12, seed=2))
    found = trainer(tmp_path, net, eval_dataset=rows, arguments={"per_device_eval_batch_size": 6}).evaluate()
    net.eval()
    _, aux = net(rows.rows, torch.nn.functional.pad(rows.rows[:, 1:], (0, 1), value=-100))
    assert found["eval_loss"] == pytest.approx(aux["loss_lm"].item(), rel=1e-5)
    assert net.num_events == 0


def test_a_trainer_checkpoint_holds_the_memory(tmp_path: Path) -> None:
    net = build()
    trainer(tmp_path, net, callbacks=[MemoryCallback()], arguments={"save_strategy": "steps", "save_steps": 4}).train()
    again = TRC2ForCausalLM.from_pretrained(tmp_path / "checkpoint-4")
    assert again.net.num_events == net.num_events > 0
    assert torch.equal(again.net.cortex.hippocampus.origins, net.cortex.hippocampus.origins)
