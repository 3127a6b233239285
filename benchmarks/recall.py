"""What it costs to read taught documents: time to index a stored token, and time to look one up while decoding.

    python benchmarks/recall.py --out benchmarks/recall.json

The text is drawn from a little language in which every token has a few followers, so that contexts repeat as in real
text. The network is that of the recipe with random weights, one row, one token at a time, one thread, by the plain path
and by the compiled graph. Tokens with and without the store take turns. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trc2.backbones.compiled import Policy
from trc2.backbones.registry import build_model
from trc2.backbones.shell import Backbone
from trc2.config import BackboneConfig, load_recipe
from trc2.generate.sampling import lay_out_for_decoding
from trc2.recall.counts import Counts, Ints
from trc2.recall.gate import DEFAULT_WEIGHTS, Gate
from trc2.recall.reader import Recall

DOCUMENT_LENGTH = 500
FOLLOWERS = 64
WARM_UP = 8


def text(num_tokens: int, vocabulary: int, seed: int = 0) -> Ints:
    """Documents as rows. The follower of a token is drawn from its own list, the first ones most often."""
    rng = np.random.default_rng(seed)
    followers = np.random.default_rng(1).integers(0, vocabulary, (vocabulary, FOLLOWERS))
    rows = np.empty((-(-num_tokens // DOCUMENT_LENGTH), DOCUMENT_LENGTH), dtype=np.int64)
    rows[:, 0] = rng.integers(0, vocabulary, len(rows))
    for place in range(1, DOCUMENT_LENGTH):
        choice = np.minimum(rng.geometric(0.08, len(rows)) - 1, FOLLOWERS - 1)
        rows[:, place] = followers[rows[:, place - 1], choice]
    return rows


def prepared(config: BackboneConfig, policy: Policy) -> Backbone:
    net = build_model(config, torch.Generator().manual_seed(0)).eval()
    lay_out_for_decoding(net, policy)
    return net


@torch.inference_mode()
def decode_ms(net: Backbone, recall: Recall, prompt: Ints, num_tokens: int) -> dict[str, float]:
    """Median milliseconds for a token, without and with the store.

    Every token is run both ways, one after the other, so that both see the same load of the machine.
    """
    ways = [(None, net.start_decoding(), list[float]()), (recall, net.start_decoding(), list[float]())]
    for reader, decoding, _ in ways:
        net.recall = reader
        net.decode(torch.from_numpy(prompt[None, :32]), decoding, last=1)
    for token in prompt[32 : 32 + num_tokens]:
        for reader, decoding, times in ways:
            net.recall = reader
            begun = time.perf_counter()
            net.decode(torch.tensor([[int(token)]]), decoding, last=1)
            times.append(1000 * (time.perf_counter() - begun))
    net.recall = None
    without, reading = (statistics.median(times[WARM_UP:]) for _, _, times in ways)
    return {"without_ms": without, "with_ms": reading, "slower_by": reading / without - 1}


def measure(nets: dict[str, Backbone], vocabulary: int, num_tokens: int, decoded: int) -> dict[str, Any]:
    documents = list(text(num_tokens, vocabulary))
    prompt = text(DOCUMENT_LENGTH, vocabulary, seed=7)[0]
    begun = time.perf_counter()
    counts = Counts.of(documents, vocabulary)
    seconds = time.perf_counter() - begun
    arrays = [
        getattr(level, name) for level in counts.levels for name in ("keys", "counts", "starts", "totals", "followers")
    ]
    recall = Recall(counts, Gate(DEFAULT_WEIGHTS, "default"))
    lengths = counts.match(counts.follow(prompt[None])[0]).length
    return {
        "stored_tokens": num_tokens,
        "index_seconds": seconds,
        "index_us_per_token": 1e6 * seconds / num_tokens,
        "index_bytes_per_token": sum(array.nbytes for array in arrays) / num_tokens,
        "mean_match_length": float(lengths.mean()),
        "decoding": {name: decode_ms(net, recall, prompt, decoded) for name, net in nets.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--recipe", default="lab_trc2")
    parser.add_argument("--vocabularies", type=int, nargs="+", default=[4096, 32_000])
    parser.add_argument("--sizes", type=int, nargs="+", default=[10**5, 10**6, 10**7])
    parser.add_argument("--decoded", type=int, default=192)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = []
    for vocabulary in arguments.vocabularies:
        config = load_recipe(arguments.recipe).model.replace(replay=False, vocab_size=vocabulary)
        nets = {"plain": prepared(config, "off"), "compiled": prepared(config, "now")}
        for size in arguments.sizes:
            row = {"vocabulary": vocabulary, **measure(nets, vocabulary, size, arguments.decoded)}
            results.append(row)
            print(json.dumps(row), flush=True)
    if arguments.out is not None:
        content = {"schema": 2, "recipe": arguments.recipe, "threads": 1, "sizes": results}
        arguments.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
