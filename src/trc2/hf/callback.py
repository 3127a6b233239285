"""The two calls per optimizer step that the Hugging Face Trainer does not know about."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers.modeling_utils import unwrap_model
from transformers.trainer_callback import TrainerCallback

from trc2.errors import UserError
from trc2.hf.modeling import TRC2ForCausalLM


class MemoryCallback(TrainerCallback):
    """Flush queued writes before the optimizer step, move the slow heads after it.

        Trainer(model, args, train_dataset=data, callbacks=[MemoryCallback()])

    Without it the memory is never written. The network warns once when its queue is full.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        _face(kwargs["model"])

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        net = _face(kwargs["model"]).net
        gradients = [p.grad for p in net.parameters() if p.grad is not None]
        # Under float16 the scaler skips steps whose gradients overflowed: those must leave nothing behind either.
        if args.fp16 and not all(bool(gradient.isfinite().all()) for gradient in gradients):
            net.discard_pending_write()
        else:
            net.flush_pending_write()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        _face(kwargs["model"]).net.update_slow_targets()


def _face(model: nn.Module) -> TRC2ForCausalLM:
    """Our model, also out of a wrapper for several devices (DistributedDataParallel and its like) or of peft."""
    inner = unwrap_model(model)
    if hasattr(inner, "get_base_model"):
        inner = inner.get_base_model()
    if not isinstance(inner, TRC2ForCausalLM):
        raise UserError(f"MemoryCallback was given a {type(inner).__name__}: it serves TRC2ForCausalLM only.")
    return inner
