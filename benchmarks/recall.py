"""What it costs to read taught documents: time to index a stored token, and time to look one up while decoding.

    python benchmarks/recall.py --sizes 100000 1000000 10000000 --out benchmarks/recall.json

The text is drawn from a little language in which every token has a few followers, so that contexts repeat as in real
text. The network is that of the recipe with random weights, one row, one token at a time. Times are CPU seconds of
one thread, so that other programs on the machine do not count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
import torch

from trc2.backbones.registry import build_model
from trc2.backbones.shell import Backbone
from trc2.config import load_recipe
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


@torch.inference_mode()
def decode_ms(net: Backbone, recall: Recall, prompt: Ints, num_tokens: int) -> tuple[float, float]:
    """Median milliseconds of CPU time for a token, without and with the store.

    Every token is run both ways, one after the other, so that both see the same load of the machine.
    """
    ways = [(None, net.start_decoding(), list[float]()), (recall, net.start_decoding(), list[float]())]
    for reader, decoding, _ in ways:
        net.recall = reader
        net.decode(torch.from_numpy(prompt[None, :32]), decoding, last=1)
    for token in prompt[32 : 32 + num_tokens]:
        for reader, decoding, times in ways:
            net.recall = reader
            begun = time.process_time()
            net.decode(torch.tensor([[int(token)]]), decoding, last=1)
            times.append(1000 * (time.process_time() - begun))
    net.recall = None
    without, reading = (statistics.median(times[WARM_UP:]) for _, _, times in ways)
    return without, reading


def measure(net: Backbone, num_tokens: int, decoded: int) -> dict[str, float]:
    vocabulary = net.config.vocab_size
    documents = list(text(num_tokens, vocabulary))
    prompt = text(DOCUMENT_LENGTH, vocabulary, seed=7)[0]
    begun = time.process_time()
    counts = Counts.of(documents, vocabulary)
    seconds = time.process_time() - begun
    arrays = [
        getattr(level, name) for level in counts.levels for name in ("keys", "counts", "starts", "totals", "followers")
    ]
    recall = Recall(counts, Gate(DEFAULT_WEIGHTS, "default"))
    without, reading = decode_ms(net, recall, prompt, decoded)
    lengths = counts.match(counts.follow(prompt[None])[0]).length
    return {
        "stored_tokens": num_tokens,
        "index_seconds": seconds,
        "index_us_per_token": 1e6 * seconds / num_tokens,
        "index_bytes_per_token": sum(array.nbytes for array in arrays) / num_tokens,
        "mean_match_length": float(lengths.mean()),
        "decode_ms_without": without,
        "decode_ms_with": reading,
        "slower_by": reading / without - 1,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--recipe", default="demo")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10**5, 10**6, 10**7])
    parser.add_argument("--decoded", type=int, default=96)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    config = load_recipe(arguments.recipe).model
    net = build_model(config.replace(replay=False), torch.Generator().manual_seed(0)).eval()
    lay_out_for_decoding(net)
    rows = []
    for size in arguments.sizes:
        rows.append(measure(net, size, arguments.decoded))
        print({name: round(value, 4) for name, value in rows[-1].items()}, flush=True)
    if arguments.out is not None:
        facts = {
            "recipe": arguments.recipe,
            "vocabulary": config.vocab_size,
            "threads": 1,
        }
        arguments.out.write_text(json.dumps({"schema": 1, **facts, "sizes": rows}, indent=1))


if __name__ == "__main__":
    main()
