"""`python -m trc2.harness` is the `lm_eval` of the lm-evaluation-harness that also knows `--model trc2`.

    python -m trc2.harness --model trc2 --model_args pretrained=FOLDER --tasks hellaswag

FOLDER is a run, an export, or any causal language model of transformers. The harness finds models only among its own
and asks no package for more, so something has to import this file before it looks: that is all the difference to the
plain `lm_eval`. Your own program imports it and then calls `lm_eval.simple_evaluate(model="trc2", ...)`.
"""

from __future__ import annotations

from typing import Any

import torch

from trc2.lm_tasks import ROWS, NetworkLM
from trc2.runs.target import find_target
from trc2.training.precision import choose_device

# After lm_tasks, which says in a sentence if the harness is missing.
from lm_eval.api.registry import register_model  # isort: skip


@register_model("trc2")
class HarnessModel(NetworkLM):
    """A trained network by the name of its folder; `memory=off` leaves an episodic memory unread."""

    def __init__(
        self,
        pretrained: str,
        batch_size: int | str | None = None,
        device: str | None = None,
        memory: str = "read",
        **_: Any,
    ) -> None:
        net, tokenizer = find_target(str(pretrained)).trained_model(print)
        is_named = device and (torch.cuda.is_available() or not device.startswith("cuda"))  # its default is cuda:0
        net = net.to(choose_device(str(device) if is_named else "auto")).eval()
        rows = int(str(batch_size)) if str(batch_size or "").isdigit() else ROWS
        super().__init__(net, tokenizer, rows, reads_memory=memory != "off")


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
