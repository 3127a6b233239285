"""Text that a saved model generates itself: replayed and judged where its old text is gone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from trc2.backbones.saved import load_model, trained_length
from trc2.config import RunConfig, TaskConfig
from trc2.continuing.request import MIN_DIVIDED
from trc2.errors import UserError
from trc2.generate.sampling import Sampling, lay_out_for_decoding
from trc2.generate.self_replay import dream
from trc2.runs.environment import weight_checksums
from trc2.runs.folder import RunFolder
from trc2.runs.lineage import DREAM
from trc2.stream.cache import digest, expanded, remembered
from trc2.stream.texts import keep_texts
from trc2.stream.tokenizer import load_tokenizer
from trc2.system.precision import choose_device

MAX_LENGTH = 256  # tokens of one text
SCHEMA = 1


def dream_task(
    parent: Path, config: RunConfig, tokens: int, watch: Callable[[str], None] = lambda _: None
) -> TaskConfig:
    """A text of --keep that the saved model generates, about `tokens` long. The same seed gives the same text.

    It is generated once and kept in the cache, also for other processes. `config` is that of the child.
    """
    assert config.stream is not None
    if RunFolder(parent).is_run:
        raise UserError(
            f"{parent} is a run, whose replay stores hold its old text: leave --dream out, or go on from its export."
        )
    cache, length = expanded(config.stream.cache), min(MAX_LENGTH, trained_length(parent))
    key = digest({
        "schema": SCHEMA, "weights": weight_checksums(str(parent), config.stream.cache), "tokens": tokens,
        "seed": config.train.seed, "length": length,
    })  # fmt: skip
    texts = remembered(
        cache / "dreams" / f"{key[:16]}.json",
        make=lambda: json.dumps(_generate(parent, config, tokens, length, watch)),
        read=lambda text: [str(one) for one in json.loads(text)],
        waiting=lambda: watch("dreaming: waiting for another process"),
    )
    if len(texts) < MIN_DIVIDED:
        raise UserError(
            f"--dream {tokens} gave {len(texts)} texts of {parent}, but {MIN_DIVIDED} are needed to replay some and "
            f"judge others: ask for at least {max(2 * tokens, MIN_DIVIDED * length)} tokens."
        )
    return TaskConfig(name=DREAM, folder=str(keep_texts(DREAM, texts, cache)))


def _generate(parent: Path, config: RunConfig, tokens: int, length: int, watch: Callable[[str], None]) -> list[str]:
    assert config.stream is not None
    net = load_model(parent).to(choose_device(config.output.device))
    lay_out_for_decoding(net)
    settings = config.stream.tokenizer
    tokenizer = load_tokenizer(settings, None).with_settings(settings.special_in_text, settings.begin_of_text)
    texts, made = [], 0
    for sample in dream(net, tokenizer, Sampling(length, seed=config.train.seed), tokens=tokens):
        texts.append(sample.text)
        made += sample.tokens
        watch(f"dreaming: {len(texts):,} texts, {made:,} tokens")
    return texts
