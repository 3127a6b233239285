"""Text that a model samples from itself, for replay if the old text is gone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from trc2.backbones.shell import Backbone
from trc2.errors import UserError
from trc2.generate.sampling import Sampling, check_top_p, sample_rows
from trc2.stream.tokenizer import Tokenizer
from trc2.system.rng import keyed_generator

ROWS = 8
MAX_IDLE_ROUNDS = 8


@dataclass(frozen=True)
class Dream:
    """One sampled document: row `row` of round `round` under the seed."""

    text: str
    tokens: int
    round: int
    row: int


def dream(net: Backbone, tokenizer: Tokenizer, sampling: Sampling, *, tokens: int) -> Iterator[Dream]:
    """Sampled documents with about `tokens` tokens in total. Of equal documents only the first is returned.

    `sampling.max_tokens` is the limit of one document. A model that repeats itself stops early.
    """
    if not 0 < sampling.temperature < float("inf"):
        raise UserError(f"temperature={sampling.temperature} is not above 0 and finite: at 0 every dream is the same.")
    check_top_p(sampling.top_p)
    sampling = replace(sampling, max_tokens=min(sampling.max_tokens, net.config.max_positions - 1))
    made = idle = number = 0
    seen: set[bytes] = set()
    while made < tokens and idle < MAX_IDLE_ROUNDS:
        is_new = False
        for row, ids in enumerate(_round(net, tokenizer, number, sampling)):
            text = tokenizer.decode(ids).strip()
            text_hash = hashlib.blake2b(" ".join(text.split()).encode(), digest_size=16).digest()
            if not text or text_hash in seen or made >= tokens:
                continue
            seen.add(text_hash)
            is_new, made = True, made + len(ids)
            yield Dream(text, len(ids), number, row)
        idle = 0 if is_new else idle + 1
        number += 1


def _round(net: Backbone, tokenizer: Tokenizer, number: int, sampling: Sampling) -> list[list[int]]:
    """ROWS documents at once, each up to its end or the limit."""
    first = (tokenizer.begin_of_text or [tokenizer.end_of_text])[0]
    rows: list[list[int]] = [[] for _ in range(ROWS)]
    is_over = [False] * ROWS
    rng = keyed_generator("dream", sampling.seed, number)
    for drawn in sample_rows(net, torch.full((ROWS, 1), first), sampling, rng):
        for row, token in enumerate(drawn):
            is_over[row] = is_over[row] or token == tokenizer.end_of_text
            if not is_over[row]:
                rows[row].append(token)
        if all(is_over):
            break
    return rows
