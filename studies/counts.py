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
from pathlib import Path

import numpy as np

from trc2.config import RunConfig, load_recipe
from trc2.recall.counts import DISCOUNT, Counts, Floats, Ints
from trc2.runs.schedule import TaskSchedule
from trc2.stream.batches import TaskData
from trc2.stream.prepare import prepare_stream
from trc2.system.files import write_atomically
from trc2.training.data import StreamData

ORDERS = {1: "unigram", 2: "bigram", 3: "trigram"}


def visited(data: TaskData, steps: int) -> Ints:
    """The rows of tokens that a task's steps train on, each once. One token more than a window, the last target."""
    rows = [
        np.concatenate((batch.x.numpy(), batch.y[:, -1:].numpy()), axis=1)
        for step in range(min(steps, -(-data.num_pool // (data.batch_size * data.micro_batches))))
        for batch in data.train_batches(step)
    ]
    return np.unique(np.concatenate(rows), axis=0)


def probabilities(model: Counts, rows: Ints) -> Floats:
    """P of every token but the first of each row (rows, length − 1), by as much context as its row has."""
    nodes = model.follow(rows)[:, :-1]
    return model.probabilities(nodes.reshape(-1, model.order), rows[:, 1:].ravel()).reshape(len(rows), -1)


def perplexity(model: Counts, data: TaskData, config: RunConfig) -> float:
    """As the run's evaluation scores the task. Its first token of a window has a context of one token, as there."""
    logs = []
    for batch in data.eval_batches("validation", config.eval.batch_size, config.eval.max_batches):
        rows = np.concatenate((batch.x.numpy(), batch.y[:, -1:].numpy()), axis=1)
        logs.append(np.log(probabilities(model, rows)).ravel())
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
    shared = _counts(everything, config.model.vocab_size)
    for name, own_rows in rows.items():
        own = _counts(list(own_rows), config.model.vocab_size)
        result[name] = {"tokens": int(own_rows.shape[0] * (own_rows.shape[1] - 1))}
        for scope, models in (("own", own), ("stream", shared)):
            result[name][scope] = {
                ORDERS[order]: perplexity(model, stream_data.tasks[name], config) for order, model in models.items()
            }
    return result


def _counts(rows: list[Ints], vocabulary: int) -> dict[int, Counts]:
    """A model of every order. Windows are cut anywhere, so their beginnings are not beginnings of documents."""
    return {order: Counts.of(rows, vocabulary, order, count_starts=False) for order in ORDERS}


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
