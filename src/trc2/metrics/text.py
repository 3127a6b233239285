"""Overlap of decoded arg-max predictions with the text they predict, teacher-forced."""

from __future__ import annotations

from collections.abc import Sequence


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
