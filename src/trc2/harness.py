"""Our models in the lm-evaluation-harness: `python -m trc2.harness` is its `lm_eval` that also knows `--model trc2`.

    python -m trc2.harness --model trc2 --model_args pretrained=FOLDER --tasks hellaswag

FOLDER is a run, an export, or any causal language model of transformers. The harness finds models only among its own,
so something has to import this file before it looks: that is all the difference to the plain `lm_eval`.
"""

from __future__ import annotations

from typing import Any

import torch
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from trc2.generate import generate_ids
from trc2.runs.target import find_target
from trc2.train.precision import choose_device

MAX_NEW_TOKENS = 256
ROWS = 8


@register_model("trc2")
class HarnessModel(TemplateLM):
    """Scores and continues text with a trained network; `memory=off` leaves an episodic memory unread."""

    def __init__(
        self,
        pretrained: str,
        batch_size: int | str | None = None,
        device: str | None = None,
        memory: str = "read",
        **_: Any,
    ) -> None:
        super().__init__()
        net, self.words = find_target(str(pretrained)).trained_model(print)
        is_named = device and (torch.cuda.is_available() or not device.startswith("cuda"))  # its default is cuda:0
        self.place = choose_device(str(device) if is_named else "auto")
        self.net = net.to(self.place).eval()
        self.reads_memory = memory != "off"
        self.rows = int(str(batch_size)) if str(batch_size or "").isdigit() else ROWS

    @property
    def eot_token_id(self) -> int:
        return self.words.end_of_text

    @property
    def prefix_token_id(self) -> int:
        return (self.words.begin_of_text or [self.words.end_of_text])[0]

    @property
    def tokenizer_name(self) -> str:
        return "trc2"

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Special tokens are never added here: an empty context becomes `prefix_token_id`."""
        return self.words.encode_batch([string])[0]

    @torch.inference_mode()
    def _loglikelihood_tokens(self, requests: list[Any], **_: Any) -> list[tuple[float, bool]]:
        """log p of every continuation after its context, and whether it is what the model would have said."""
        room = self.net.config.max_positions
        rows = [[*context, *continuation][-(room + 1) :] for _, context, continuation in requests]
        found: list[tuple[float, bool]] = [(0.0, False)] * len(rows)
        order = sorted(range(len(rows)), key=lambda index: len(rows[index]))  # rows of one length need no padding
        for start in range(0, len(order), self.rows):
            together = order[start : start + self.rows]
            width = max(len(rows[index]) for index in together) - 1
            x = torch.full((len(together), width), self.eot_token_id)
            valid = torch.zeros(len(together), width, dtype=torch.bool)
            for place, index in enumerate(together):
                tokens = rows[index][:-1]
                x[place, width - len(tokens) :] = torch.tensor(tokens)
                valid[place, width - len(tokens) :] = True
            mask = None if bool(valid.all()) else valid.to(self.place)
            logits, _ = self.net(x.to(self.place), valid=mask, read_memory=self.reads_memory)
            for place, index in enumerate(together):
                count = min(len(requests[index][2]), len(rows[index]) - 1)
                wanted = torch.tensor(rows[index][-count:])
                scores = logits[place, -count:].float().log_softmax(dim=-1).cpu()
                picked = scores.gather(1, wanted.unsqueeze(1))
                found[index] = float(picked.sum()), bool((scores.argmax(dim=-1) == wanted).all())
        return found

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """log p of whole texts, in windows that each token is predicted in once."""
        totals = []
        for request in requests:
            (text,) = request.args
            windows = get_rolling_token_windows(
                self.tok_encode(text), self.prefix_token_id, max_seq_len=self.net.config.max_positions, context_len=1
            )
            pairs = [(None, *make_disjoint_window(window)) for window in windows]
            totals.append(sum(score for score, _ in self._loglikelihood_tokens(pairs)))
        return totals

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Continuations up to a stop text, the likeliest tokens unless a task asks for chance."""
        texts = []
        for request in requests:
            context, settings = request.args
            stops = settings.get("until") or []
            stops = [stops] if isinstance(stops, str) else list(stops)
            limit = int(settings.get("max_gen_toks", MAX_NEW_TOKENS))
            room = max(1, self.net.config.max_positions - limit)
            prompt = [*self.words.begin_of_text, *self.tok_encode(context)][-room:] or [self.prefix_token_id]
            temperature = float(settings.get("temperature", 0.0)) if settings.get("do_sample") else 0.0
            made: list[int] = []
            text = ""
            for token in generate_ids(
                self.net, prompt, max_new_tokens=limit, temperature=temperature,
                top_p=float(settings.get("top_p", 1.0)), seed=0, read_memory=self.reads_memory, end=self.eot_token_id,
            ):  # fmt: skip
                made.append(token)
                text = self.words.decode(made)
                if any(stop in text for stop in stops):
                    break
            ends = [text.index(stop) for stop in stops if stop in text]
            texts.append(text[: min(ends)] if ends else text)
        return texts


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
