"""The progress of a run in a notebook."""

from __future__ import annotations

from trc2.runs.records import Record
from trc2.train.notebook import NotebookBar


def train(step: int) -> Record:
    return Record("train", step, "a<b", {"train/loss_lm": 2.0, "train/tokens_per_second": 1000.0})


def test_one_output_is_drawn_again_with_own_steps_loss_and_scores() -> None:
    shown: list[str] = []
    bar = NotebookBar(20, first=10, show=shown.append)
    assert 'value="0" max="10"' in shown[-1]
    for step in range(11, 20):
        bar.see(train(step))
    assert len(shown) < 5  # not a picture for every step
    bar.see(Record("eval", 19, "a<b", {"eval/x/perplexity": 12.345, "eval/x/loss": 1.0}))
    assert "x 12.3" in shown[-1]
    assert "loss 2.000 · 1,000 tokens/s" in shown[-1]
    assert "a&lt;b" in shown[-1]
    bar.see(Record("nonfinite", 20, "a<b"))
    bar.close()
    assert 'value="10" max="10"' in shown[-1]
    assert "skipped" in shown[-1]
