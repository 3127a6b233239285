"""Tasks of the lm-evaluation-harness, scored with our models.

    scores = score_tasks(net, tokenizer, ["hellaswag"], limit=100)
    python -m trc2.evaluation.lm_eval --model trc2 --model_args pretrained=FOLDER --tasks hellaswag

The second form is the harness's own `lm_eval` command, which also knows `--model trc2`. FOLDER is a run, an export, or
any causal language model of transformers. The harness finds models only among its own, so this module must be imported
before it looks. Your own program imports it and then calls `lm_eval.simple_evaluate(model="trc2", ...)`.

The harness is an extra: `pip install '.[lm-eval]'` in the checkout.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import logging
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from trc2.backbones.shell import Backbone
from trc2.errors import UserError, brief
from trc2.generate.sampling import Sampling, generate_ids
from trc2.metrics.lm_eval import Score
from trc2.runs.target import find_target
from trc2.stream.tokenizer import Tokenizer
from trc2.system.precision import choose_device

try:
    from lm_eval import simple_evaluate
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
    from lm_eval.tasks import TaskManager
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
except ModuleNotFoundError as error:
    raise UserError(
        f"The lm-evaluation-harness is not installed ({error}): use `pip install '.[lm-eval]'` in the checkout."
    ) from None

MAX_NEW_TOKENS = 256
ROWS = 8


class NetworkLM(TemplateLM):
    """The harness's interface of a language model, for our networks."""

    def __init__(self, net: Backbone, tokenizer: Tokenizer, rows: int = ROWS, *, reads_memory: bool = True) -> None:
        super().__init__()
        self.net, self.our_tokenizer, self.rows, self.reads_memory = net, tokenizer, rows, reads_memory
        self.net_device = net.get_input_embeddings().weight.device

    @property
    def eot_token_id(self) -> int:
        return self.our_tokenizer.end_of_text

    @property
    def prefix_token_id(self) -> int:
        return (self.our_tokenizer.begin_of_text or [self.our_tokenizer.end_of_text])[0]

    @property
    def tokenizer_name(self) -> str:
        return "trc2"

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Special tokens are never added here: an empty context becomes `prefix_token_id`."""
        return self.our_tokenizer.encode_batch([string])[0]

    @torch.inference_mode()
    def _loglikelihood_tokens(self, requests: list[Any], **_: Any) -> list[tuple[float, bool]]:
        """log p of every continuation after its context, and whether greedy decoding gives this continuation."""
        room = self.net.config.max_positions
        rows = [[*context, *continuation][-(room + 1) :] for _, context, continuation in requests]
        results: list[tuple[float, bool]] = [(0.0, False)] * len(rows)
        order = sorted(range(len(rows)), key=lambda index: len(rows[index]))  # rows of one length need no padding
        for start in range(0, len(order), self.rows):
            together = order[start : start + self.rows]
            width = max(len(rows[index]) for index in together) - 1
            x = torch.full((len(together), width), self.eot_token_id)
            valid = torch.zeros(len(together), width, dtype=torch.bool)
            for row, index in enumerate(together):
                tokens = rows[index][:-1]
                x[row, width - len(tokens) :] = torch.tensor(tokens)
                valid[row, width - len(tokens) :] = True
            mask = None if bool(valid.all()) else valid.to(self.net_device)
            logits, _ = self.net(x.to(self.net_device), valid=mask, read_memory=self.reads_memory)
            for row, index in enumerate(together):
                count = min(len(requests[index][2]), len(rows[index]) - 1)
                wanted = torch.tensor(rows[index][-count:])
                scores = logits[row, -count:].float().log_softmax(dim=-1).cpu()
                picked = scores.gather(1, wanted.unsqueeze(1))
                results[index] = float(picked.sum()), bool((scores.argmax(dim=-1) == wanted).all())
        return results

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """log p of whole texts, in windows such that every token is predicted once."""
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
        """Continuations up to a stop text, by greedy decoding unless a task asks for sampling."""
        texts = []
        for request in requests:
            context, settings = request.args
            stops = settings.get("until") or []
            stops = [stops] if isinstance(stops, str) else list(stops)
            limit = int(settings.get("max_gen_toks", MAX_NEW_TOKENS))
            positions = self.net.config.max_positions
            room = positions - min(limit, positions // 2)  # the answer must not take the place of the question
            prompt = [*self.our_tokenizer.begin_of_text, *self.tok_encode(context)][-room:] or [self.prefix_token_id]
            temperature = float(settings.get("temperature", 0.0)) if settings.get("do_sample") else 0.0
            made: list[int] = []
            text = ""
            sampling = Sampling(limit, temperature, float(settings.get("top_p", 1.0)))
            for token in generate_ids(self.net, prompt, sampling, read_memory=self.reads_memory, end=self.eot_token_id):
                made.append(token)
                text = self.our_tokenizer.decode(made)
                if any(stop in text for stop in stops):
                    break
            ends = [text.index(stop) for stop in stops if stop in text]
            texts.append(text[: min(ends)] if ends else text)
        return texts


def score_tasks(
    net: Backbone,
    tokenizer: Tokenizer,
    tasks: Sequence[str],
    *,
    include: Path | None = None,
    num_fewshot: int | None = None,
    limit: int | None = None,
    rows: int = ROWS,
    reads_memory: bool = True,
    quiet: bool = False,
) -> list[Score]:
    """Every metric of every task. `include` is a folder with more tasks. `limit` counts documents per task.

    The harness seeds the random number generators of the process. `quiet` hides its progress.
    """
    logging.getLogger("lm_eval").setLevel(logging.WARNING)
    if include is not None and not include.is_dir():
        raise UserError(f"{include} is not a folder: give one with the .yaml files of tasks.")
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stderr(io.StringIO()) if quiet else contextlib.nullcontext())
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))  # it prints there, where our answer belongs
        manager = TaskManager(include_path=None if include is None else str(include))
        for name in tasks:
            if not manager.match_tasks([name]):
                near = difflib.get_close_matches(name[:200], manager.all_tasks, n=1)
                hint = (
                    f"did you mean '{near[0]}'?" if near else "`lm_eval ls tasks` lists its own, --include adds yours."
                )
                raise UserError(f"The lm-evaluation-harness has no task '{brief(name, 60)}': {hint}")
        try:
            results: Any = simple_evaluate(
                NetworkLM(net, tokenizer, rows, reads_memory=reads_memory),
                tasks=manager.match_tasks(list(tasks)), num_fewshot=num_fewshot, limit=limit, task_manager=manager,
                bootstrap_iters=0 if quiet else 1000,
            )  # fmt: skip
        except (OSError, ValueError, ArithmeticError) as error:  # missing data, or a wrong task
            raise UserError(
                f"The tasks {', '.join(tasks)} cannot be run ({type(error).__name__}: {brief(error)}): look at their "
                "data and settings, or choose others."
            ) from None
    return [score for name in results["results"] for score in _scores(name, results)]


def _scores(task: str, results: Any) -> Iterator[Score]:
    """The harness writes `acc,none` and `acc_stderr,none`: a metric, and the filter of the answers."""
    values, samples = results["results"][task], results.get("samples", {}).get(task, [])
    for key, value in values.items():
        metric, _, kind = key.partition(",")
        if not kind or metric.endswith("_stderr") or not isinstance(value, float | int):
            continue
        error = values.get(f"{metric}_stderr,{kind}")
        documents = {
            str(sample["doc_id"]): float(sample[metric])
            for sample in samples
            if sample.get("filter", "none") == kind and isinstance(sample.get(metric), float | int)
        }
        yield Score(
            task,
            metric if kind == "none" else f"{metric}@{kind}",
            float(value),
            float(error) if isinstance(error, float | int) else float("nan"),
            bool(results["higher_is_better"].get(task, {}).get(metric, True)),
            documents,
        )


@register_model("trc2")
class HarnessModel(NetworkLM):
    """A trained network by the name of its folder. `memory=off` leaves an episodic memory unread."""

    def __init__(
        self,
        pretrained: str,
        batch_size: int | str | None = None,
        device: str | None = None,
        memory: str = "read",
        **_: Any,
    ) -> None:
        net, tokenizer = find_target(str(pretrained)).trained_model(print)
        is_named = device and (torch.cuda.is_available() or not device.startswith("cuda"))  # its default is cuda:0
        net = net.to(choose_device(str(device) if is_named else "auto")).eval()
        rows = int(str(batch_size)) if str(batch_size or "").isdigit() else ROWS
        super().__init__(net, tokenizer, rows, reads_memory=memory != "off")


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
