"""Which documents a model recalls: for every token of a text, the share of its probability that the store gave."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from trc2.errors import UserError, plain
from trc2.generate.sampling import Sampling, generate_ids
from trc2.recall.gate import gate_features
from trc2.recall.reader import Recall
from trc2.recall.store import Store, read_store
from trc2.runs.folder import Warn
from trc2.runs.target import find_target
from trc2.system.precision import choose_device
from trc2.teaching.fit import network_scores

MAX_NAMED = 3


@dataclass(frozen=True)
class Origin:
    """A document that holds a token after its context, and its part of what the store gave: parts add up to 1."""

    document: str
    source: str
    part: float


@dataclass(frozen=True)
class RecalledToken:
    """One token of a text: its probability, and how much of it came from the store.

    p = (1 − g) p_model + g p_store, and `from_store` is g p_store / p. `context` is the length of the longest context
    after which a document holds the token, and `origins` are the documents that hold both, by the number of times.
    """

    text: str
    is_prompt: bool
    probability: float
    from_store: float
    context: int
    origins: tuple[Origin, ...]

    def describe(self) -> dict[str, Any]:
        return {
            "text": self.text,
            "is_prompt": self.is_prompt,
            "probability": self.probability,
            "from_store": self.from_store,
            "context": self.context,
            "documents": [{"id": o.document, "source": o.source, "part": o.part} for o in self.origins],
        }


def explain(folder: str, prompt: str, warn: Warn, *, max_new_tokens: int = 0) -> list[RecalledToken]:
    """The tokens of a prompt and of its likeliest continuation. The first token has no context, so it is left out."""
    target = find_target(folder)
    net, tokenizer = target.trained_model(warn, with_recall=False)
    store = read_store(target.weights_folder, net.config.vocab_size, tokenizer.fingerprint())
    recall = None if store is None else Recall.of(store)
    if store is None or recall is None:
        raise UserError(f"{folder} was taught no documents: use `trc2 teach {folder} FILES` first.")
    net.to(choose_device("auto"))
    net.recall = recall
    ids = [*tokenizer.begin_of_text, *tokenizer.encode_batch([prompt])[0]]
    if not ids:
        raise UserError("The prompt is empty: give the beginning of a text.")
    num_prompt = len(ids)
    ids += generate_ids(net, ids, Sampling(max_new_tokens, temperature=0), end=tokenizer.end_of_text)
    if len(ids) < 2:
        raise UserError("The prompt has one token, which has no context: give a longer one.")
    if len(ids) - 1 > net.config.max_positions:
        raise UserError(
            f"The prompt has {len(ids)} tokens, but the model has {net.config.max_positions} positions: shorten it."
        )
    pieces = [tokenizer.decode(ids[:end]) for end in range(len(ids) + 1)]
    x, y = np.asarray(ids[:-1]), np.asarray(ids[1:])
    network = network_scores(net, x)
    nodes = recall.counts.follow(x[None])[0]
    match = recall.counts.match(nodes)
    open_share = recall.gate.log_odds(gate_features(match, network)).sigmoid().double().numpy() * (match.length > 0)
    of_network = network.gather(1, torch.from_numpy(y).unsqueeze(1)).squeeze(1).double().exp().numpy()
    stored = open_share * recall.counts.probabilities(nodes, y)
    probability = (1 - open_share) * of_network + stored
    tokens = []
    for place in range(len(y)):
        # Half a character shows as a replacement character, which the next token may take back.
        text = pieces[place + 2].removeprefix(pieces[place + 1].rstrip("\N{REPLACEMENT CHARACTER}"))
        share = float(stored[place] / probability[place])
        context, origins = _origins(store, ids[: place + 2], int(match.length[place])) if share else (0, ())
        tokens.append(
            RecalledToken(text, place + 1 < num_prompt, float(probability[place]), share, context, origins)
        )  # fmt: skip
    return tokens


def _origins(store: Store, ids: Sequence[int], longest: int) -> tuple[int, tuple[Origin, ...]]:
    """The longest context after which the last token is stored, and the documents that hold both."""
    named = {document.number: document for document in store.documents}
    for length in range(longest, -1, -1):
        holders = store.holders(ids[len(ids) - 1 - length :])
        if holders:
            total = sum(holders.values())
            ranked = sorted(holders.items(), key=lambda item: (-item[1], item[0]))
            origins = (Origin(named[n].name, named[n].source, times / total) for n, times in ranked)
            return length, tuple(origins)
    return 0, ()


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark }}
body {{ font: 16px/1.7 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }}
pre {{ white-space: pre-wrap; font: inherit }}
pre span {{ border-radius: 3px }}
.made {{ font-weight: 600 }}
table {{ border-collapse: collapse; font-size: 14px }}
td, th {{ padding: .2rem .6rem; text-align: left; border-bottom: 1px solid #8886 }}
td.n {{ text-align: right; font-variant-numeric: tabular-nums }}
</style></head><body>
<h1>{title}</h1>
<p>The stronger the colour, the more of a token's probability came from taught documents. Bold tokens were generated.
Point at a token to see its documents.</p>
<pre>{text}</pre>
<table><tr><th>document</th><th>source</th><th>tokens recalled</th></tr>{rows}</table>
</body></html>
"""


def explanation_page(title: str, tokens: Sequence[RecalledToken]) -> str:
    """A page that needs nothing else. All text from outside is escaped."""
    spans, totals = [], dict[tuple[str, str], float]()
    for token in tokens:
        for origin in token.origins:
            key = (origin.document, origin.source)
            totals[key] = totals.get(key, 0.0) + token.from_store * origin.part
        about = f"{token.from_store:.0%} from the store"
        if token.origins:
            sources = {origin.document: origin.source for origin in token.origins[:MAX_NAMED]}
            named = "; ".join(f"{document} is {source}" for document, source in sources.items())
            about += f", context of {token.context}: {named_origins(token)}; {named}"
        kind = "" if token.is_prompt else ' class="made"'
        colour = f"background: rgba(230, 140, 20, {0.75 * token.from_store:.2f})"
        spans.append(f'<span{kind} style="{colour}" title="{_shown(about)}">{_shown(token.text)}</span>')
    rows = [
        f'<tr><td>{_shown(document)}</td><td>{_shown(source)}</td><td class="n">{amount:.2f}</td></tr>'
        for (document, source), amount in sorted(totals.items(), key=lambda item: (-item[1], item[0]))
    ]
    return PAGE.format(title=_shown(title), text="".join(spans), rows="".join(rows))


def named_origins(token: RecalledToken) -> str:
    """The ids of the first few documents of a token and their parts."""
    shown = [f"{origin.document} {origin.part:.0%}" for origin in token.origins[:MAX_NAMED]]
    more = len(token.origins) - MAX_NAMED
    return ", ".join(shown) + (f", {more} more" if more > 0 else "")


def recalled_sources(tokens: Sequence[RecalledToken]) -> dict[str, str]:
    """The sources of all documents that `named_origins` shows, by id."""
    return {origin.document: origin.source for token in tokens for origin in token.origins[:MAX_NAMED]}


def _shown(text: str) -> str:
    return html.escape(plain(text))
