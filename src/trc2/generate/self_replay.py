"""Text that a model samples from itself, for replay if the old text is gone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from trc2.backbones.shell import Backbone
from trc2.errors import UserError
from trc2.generate.sampling import check_top_p, sample_rows
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


def dream(
    net: Backbone,
    tokenizer: Tokenizer,
    *,
    tokens: int,
    seed: int = 0,
    temperature: float = 1.0,
    top_p: float = 1.0,
    length: int = 256,
) -> Iterator[Dream]:
    """Sampled documents with about `tokens` tokens in total. Of equal documents only the first is returned.

    A model that repeats itself stops early.
    """
    if not 0 < temperature < float("inf"):
        raise UserError(f"temperature={temperature} is not above 0 and finite: at 0 every dream is the same.")
    check_top_p(top_p)
    length = min(length, net.config.max_positions - 1)
    made = idle = number = 0
    seen: set[bytes] = set()
    while made < tokens and idle < MAX_IDLE_ROUNDS:
        is_new = False
        for row, ids in enumerate(_round(net, tokenizer, number, seed, temperature, top_p, length)):
            text = tokenizer.decode(ids).strip()
            text_hash = hashlib.blake2b(" ".join(text.split()).encode(), digest_size=16).digest()
            if not text or text_hash in seen or made >= tokens:
                continue
            seen.add(text_hash)
            is_new, made = True, made + len(ids)
            yield Dream(text, len(ids), number, row)
        idle = 0 if is_new else idle + 1
        number += 1


def _round(
    net: Backbone, tokenizer: Tokenizer, number: int, seed: int, temperature: float, top_p: float, length: int
) -> list[list[int]]:
    """ROWS documents at once, each up to its end or `length` tokens."""
    first = (tokenizer.begin_of_text or [tokenizer.end_of_text])[0]
    rows: list[list[int]] = [[] for _ in range(ROWS)]
    is_over = [False] * ROWS
    rng = keyed_generator("dream", seed, number)
    for drawn in sample_rows(net, torch.full((ROWS, 1), first), length, temperature, top_p, rng):
        for row, token in enumerate(drawn):
            is_over[row] = is_over[row] or token == tokenizer.end_of_text
            if not is_over[row]:
                rows[row].append(token)
        if all(is_over):
            break
    return rows
