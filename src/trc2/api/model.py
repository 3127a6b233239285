"""A saved model as Python holds it: teach it documents, ask it, and see which documents it recalls."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from trc2.config import RunConfig
from trc2.config.stream import StreamConfig
from trc2.errors import UserError
from trc2.evaluation.score import score_target
from trc2.generate.sampling import Sampling, stream_text
from trc2.recall.store import StoredDocument
from trc2.runs.target import find_target
from trc2.stream.document import Document
from trc2.stream.texts import Texts, keep_texts
from trc2.system.console import PlainConsole
from trc2.teaching.documents import given_documents, read_documents
from trc2.teaching.explain import RecalledToken, explain
from trc2.teaching.teach import Change, forget, stored_documents, teach
from trc2.training.setup import warn_on

Given = Texts | str | Path
"""Documents, or the path of a file or folder."""


class TrainedFolder:
    """A folder with trained weights, of a run or a saved model. It is read again whenever asked."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def generate(
        self,
        prompt: str = "",
        *,
        max_new_tokens: int = 100,
        temperature: float = 1.0,
        top_p: float = 1.0,
        seed: int = 0,
        memory: Literal["read", "off"] = "read",
    ) -> str:
        """Text that follows a prompt, by the newest checkpoint of a run. The same seed gives the same text.

        The prompt itself is not returned: `prompt + run.generate(prompt)` is the whole text. `memory="off"` reads
        neither episodic memory nor taught documents.
        """
        if memory not in ("read", "off"):
            raise UserError(f"memory={memory!r} is not known: use 'read' or 'off'.")
        net, tokenizer = find_target(str(self.folder)).trained_model(self._warn)
        sampling = Sampling(max_new_tokens, temperature, top_p, seed)
        return "".join(stream_text(net, tokenizer, prompt, sampling, read_memory=memory == "read"))

    def evaluate(self, texts: Texts, *, memory: Literal["read", "off"] = "read") -> dict[str, float]:
        """Loss, perplexity, bits per byte and so on of texts that the model may never have seen."""
        target = find_target(str(self.folder))
        path = keep_texts("given", texts, cache_of(target.config)) / "train.jsonl"
        return score_target(target, warn=self._warn, files=[path], memory=memory)[str(path)]

    def _warn(self, message: str) -> None:
        warn_on(PlainConsole(stderr=True))(message)


def cache_of(config: RunConfig | None) -> Path:
    """The cache of a run, or the usual one."""
    if config is None or config.stream is None:
        return Path(StreamConfig.model_fields["cache"].default)
    return config.stream.cache


class SavedModel(TrainedFolder):
    """A folder with a saved model: an export of ours, or a Hugging Face folder."""

    def __repr__(self) -> str:
        return f"SavedModel({str(self.folder)!r})"

    def teach(self, texts: Given, *, source: str = "text", keep: Given = (), max_bytes: int | None = None) -> Change:
        """Store documents that the model reads from now on, without training. Its weights do not change.

        texts      strings, rows with `text`, or the path of a file or folder
        source     the name by which `forget` finds documents that were given as strings
        keep       text whose loss must not rise, given like texts. By default the model samples some
        max_bytes  most bytes of stored tokens, now and later. A random sample of all documents stays
        """
        documents, kept = self._documents(texts, source), self._documents(keep, "keep")
        return teach(str(self.folder), documents, self._warn, keep=kept, max_bytes=max_bytes)

    def forget(self, *, document: str | Iterable[str] = (), source: str | Iterable[str] = ()) -> Change:
        """Remove documents by id or by a pattern of their sources, as if they had never been taught."""
        documents, sources = ([given] if isinstance(given, str) else list(given) for given in (document, source))
        return forget(str(self.folder), self._warn, documents=documents, sources=sources)

    def documents(self) -> list[StoredDocument]:
        """What it was taught."""
        store = stored_documents(str(self.folder))
        return [] if store is None else list(store.documents)

    def recall(self, prompt: str, *, max_new_tokens: int = 20) -> list[RecalledToken]:
        """For every token of a prompt and its likeliest continuation, how much came from which document."""
        return explain(str(self.folder), prompt, self._warn, max_new_tokens=max_new_tokens)

    def _documents(self, given: Given, source: str) -> Iterable[Document]:
        if isinstance(given, str | Path):
            return read_documents([Path(given)], self._warn)
        return given_documents(given, source)


def load_model(folder: str | Path) -> SavedModel:
    """A saved model: a folder that `trc2 export`, `save_pretrained` or the Hugging Face hub wrote."""
    target: Any = find_target(str(folder))
    if target.is_run or target.folder is None:
        raise UserError(f"{folder} is not a folder with a saved model: use trc2.load_run, or export the run first.")
    return SavedModel(folder)
