"""Tasks of the lm-evaluation-harness as part of a run: scored at its boundaries, and at its gate."""

from __future__ import annotations

from pathlib import Path

from trc2.backbones.shell import Backbone
from trc2.config import EvalConfig
from trc2.metrics.exam import Score
from trc2.stream.tokenizer import Tokenizer
from trc2.training.evaluate import evaluation_mode


def examine(model: Backbone, tokenizer: Tokenizer, config: EvalConfig) -> list[Score]:
    """Every metric of `eval.lm_tasks`; nothing without them."""
    if not config.lm_tasks:
        return []
    from trc2.lm_tasks import score_tasks  # the harness is an extra

    include = None if config.lm_include is None else Path(config.lm_include)
    with evaluation_mode(model):
        return score_tasks(
            model, tokenizer, config.lm_tasks, include=include, limit=config.lm_limit, rows=config.batch_size,
            quiet=True,
        )  # fmt: skip
