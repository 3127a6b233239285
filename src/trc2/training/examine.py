"""Tasks of the lm-evaluation-harness as part of a run: scored at its boundaries, and at its gate."""

from __future__ import annotations

import os
from pathlib import Path

from trc2.backbones.shell import Backbone
from trc2.config import EvalConfig
from trc2.errors import UserError
from trc2.metrics.exam import Score
from trc2.stream.tokenizer import Tokenizer
from trc2.training.evaluate import evaluation_mode

TRUST = "TRC2_TRUST_TASKS"


def check_trusted(config: EvalConfig) -> None:
    """Refuse a folder of tasks that a recipe or a run names: files of the harness run code, also in their templates.

    Only the person at the machine can allow it, so no setting does.
    """
    if config.lm_tasks and config.lm_include is not None and os.environ.get(TRUST) != "1":
        raise UserError(
            f"eval.lm_include={config.lm_include} names tasks of the lm-evaluation-harness, whose files can run any "
            f"code: read them, then set {TRUST}=1 in the environment, or leave the setting out."
        )


def examine(model: Backbone, tokenizer: Tokenizer, config: EvalConfig) -> list[Score]:
    """Every metric of `eval.lm_tasks`; nothing without them."""
    if not config.lm_tasks:
        return []
    check_trusted(config)
    from trc2.lm_tasks import score_tasks  # the harness is an extra

    include = None if config.lm_include is None else Path(config.lm_include)
    with evaluation_mode(model):
        return score_tasks(
            model, tokenizer, config.lm_tasks, include=include, limit=config.lm_limit, rows=config.batch_size,
            quiet=True,
        )  # fmt: skip
