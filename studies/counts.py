"""Count models on the tokens of a stream: what a network must beat before its forgetting means anything.

    python -m studies.counts lab_trc2 stream.data_root=DATA --out results/lab/counts.json

Interpolated Kneser–Ney with one discount, orders one to three, on the training windows that a run of the recipe visits,
each counted once. Scores are those of the run's own evaluation: the same validation windows, contexts cut at the
beginning of a window. `own` counts a task's own text, `stream` the text of all tasks.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trc2.config import RunConfig, load_recipe
from trc2.runs.schedule import TaskSchedule
from trc2.stream.batches import TaskData
from trc2.stream.prepare import prepare_stream
from trc2.system.files import write_atomically
from trc2.training.data import StreamData

DISCOUNT = 0.75
ORDERS = {1: "unigram", 2: "bigram", 3: "trigram"}
Tokens = NDArray[np.int64]


@dataclass(frozen=True)
class Level:
    """One order of the model: counts of n-grams, and totals and numbers of followers of their contexts.

    Keys are n-grams as numbers to the base of the vocabulary, sorted.
    """

    grams: Tokens
    counts: Tokens
    contexts: Tokens
    totals: Tokens
    followers: Tokens

    @classmethod
    def of(cls, grams: Tokens, counts: Tokens, vocabulary: int) -> Level:
        contexts, start = np.unique(grams // vocabulary, return_index=True)
        return cls(grams, counts, contexts, np.add.reduceat(counts, start), np.diff(np.append(start, len(grams))))


class KneserNey:
    """P_n(w | c) = max(0, N(cw) − D)/N(c) + D · followers(c)/N(c) · P_{n−1}(w | shorter c); P_0 is uniform.

    At the highest order N counts occurrences, below it the different tokens that come before (continuations).
    """

    def __init__(self, rows: Iterable[Tokens], vocabulary: int, order: int) -> None:
        self.vocabulary, self.order = vocabulary, order
        keys = [_keys(row, vocabulary, order) for row in rows]
        # The first tokens of a row have no full context: they count at the orders they have.
        grams, counts = np.unique(np.concatenate(keys), return_counts=True)
        levels = [Level.of(grams, counts, vocabulary)]
        for shorter in range(order - 1, 0, -1):
            grams, counts = np.unique(grams % vocabulary**shorter, return_counts=True)
            levels.append(Level.of(grams, counts, vocabulary))
        self.levels = levels[::-1]

    def probabilities(self, rows: Tokens) -> NDArray[np.float64]:
        """P of every token but the first of each row (rows, length − 1), by as much context as its row has."""
        found = np.empty((len(rows), rows.shape[1] - 1))
        for place in range(1, rows.shape[1]):
            known = min(self.order - 1, place)
            found[:, place - 1] = self._conditional(rows[:, place - known : place + 1])
        return found

    def _conditional(self, grams: Tokens) -> NDArray[np.float64]:
        """P of the last token given those before it."""
        probability = np.full(len(grams), 1.0 / self.vocabulary)
        for order, level in enumerate(self.levels[: grams.shape[1]], start=1):
            key = _number(grams[:, -order:], self.vocabulary)
            total, followers = _look_up(level.contexts, key // self.vocabulary, level.totals, level.followers)
            (count,) = _look_up(level.grams, key, level.counts)
            seen = total > 0
            kept = np.maximum(0.0, count - DISCOUNT) + DISCOUNT * followers * probability
            probability = np.where(seen, kept / np.maximum(total, 1), probability)
        return probability


def _number(grams: Tokens, vocabulary: int) -> Tokens:
    key = np.zeros(len(grams), dtype=np.int64)
    for column in grams.T:
        key = key * vocabulary + column
    return key


def _keys(row: Tokens, vocabulary: int, order: int) -> Tokens:
    return _number(np.lib.stride_tricks.sliding_window_view(row, order), vocabulary)


def _look_up(keys: Tokens, wanted: Tokens, *values: Tokens) -> list[Tokens]:
    """The values of the wanted keys, 0 for those that are not there."""
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    is_there = keys[place] == wanted
    return [np.where(is_there, value[place], 0) for value in values]


def visited(data: TaskData, steps: int) -> Tokens:
    """The rows of tokens that a task's steps train on, each once; one token more than a window, the last target."""
    rows = [
        np.concatenate((batch.x.numpy(), batch.y[:, -1:].numpy()), axis=1)
        for step in range(min(steps, -(-data.num_pool // (data.batch_size * data.micro_batches))))
        for batch in data.train_batches(step)
    ]
    return np.unique(np.concatenate(rows), axis=0)


def perplexity(model: KneserNey, data: TaskData, config: RunConfig) -> float:
    """As the run's evaluation scores the task; its first token of a window has a context of one token, as there."""
    logs = []
    for batch in data.eval_batches("validation", config.eval.batch_size, config.eval.max_batches):
        rows = np.concatenate((batch.x.numpy(), batch.y[:, -1:].numpy()), axis=1)
        logs.append(np.log(model.probabilities(rows)).ravel())
    return math.exp(-float(np.concatenate(logs).mean()))


def count_models(config: RunConfig) -> dict[str, dict[str, object]]:
    """Perplexities of every task, by counts of its own text and of the whole stream."""
    assert config.stream is not None
    schedule = TaskSchedule.of_run(config)
    stream_data = StreamData(config, schedule, prepare_stream(config.stream))
    rows = {
        span.task: visited(stream_data.tasks[span.task], count)
        for span, count in zip(schedule.spans, schedule.steps, strict=True)
    }
    everything = [row for task in rows.values() for row in task]
    result: dict[str, dict[str, object]] = {}
    shared = {order: KneserNey(everything, config.model.vocab_size, order) for order in ORDERS}
    for name, own_rows in rows.items():
        own = {order: KneserNey(list(own_rows), config.model.vocab_size, order) for order in ORDERS}
        result[name] = {"tokens": int(own_rows.shape[0] * (own_rows.shape[1] - 1))}
        for scope, models in (("own", own), ("stream", shared)):
            result[name][scope] = {
                ORDERS[order]: perplexity(model, stream_data.tasks[name], config) for order, model in models.items()
            }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m studies.counts", description=__doc__.partition("\n")[0])
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    config = load_recipe(arguments.recipe, arguments.overrides)
    tasks = count_models(config)
    content = {"schema": 1, "discount": DISCOUNT, "recipe": arguments.recipe, "tasks": tasks}
    write_atomically(arguments.out, json.dumps(content, indent=1).encode())
    for name, scores in tasks.items():
        print(name, scores)


if __name__ == "__main__":
    main()
