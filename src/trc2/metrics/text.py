"""Scores of decoded text: overlap of arg-max predictions with the text they predict, and scores of other packages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from trc2.config.metric import MetricConfig, plugged_metric
from trc2.errors import UserError
from trc2.system.plugins import find


def text_scores(predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Corpus BLEU and chrF (sacrebleu, 0–100) and mean ROUGE-L F1 (rouge-score, 0–1)."""
    import sacrebleu
    from rouge_score import rouge_scorer

    if not predictions:
        return {"bleu": 0.0, "chrf": 0.0, "rouge_l": 0.0}
    # force=True: predictions are tokens at labelled positions, and sacrebleu would warn that they look tokenised.
    bleu = sacrebleu.corpus_bleu(list(predictions), [list(references)], force=True)
    chrf = sacrebleu.corpus_chrf(list(predictions), [list(references)])
    scorer = rouge_scorer.RougeScorer(["rougeL"])
    rouge = [scorer.score(ref, hyp)["rougeL"].fmeasure for hyp, ref in zip(predictions, references, strict=True)]
    return {"bleu": float(bleu.score), "chrf": float(chrf.score), "rouge_l": sum(rouge) / len(rouge)}


def plugged_scores(
    metrics: Iterable[MetricConfig], texts: tuple[Sequence[str], Sequence[str]], tokens: tuple[Tensor, Tensor]
) -> dict[str, float]:
    """Scores of plug-in metrics by name. `texts` and `tokens` are predictions and references."""
    scores = {}
    for metric in metrics:
        plugin = find("metric", metric.name)
        score = plugged_metric(metric.name).score
        predictions, references = (list(part) for part in texts)
        try:
            if metric.reads == "text":
                value = score(predictions, references)
            else:
                value = score(*(part.clone() for part in tokens))  # a plug-in may change its arguments
            scores[metric.name] = float(value)
        except UserError:
            raise
        except (Exception, SystemExit, GeneratorExit) as error:
            assert plugin is not None
            raise plugin.broken(f"{type(error).__name__}: {error}") from error
    return scores
