"""One way to name a model: a recipe, a recipe file, a run folder or a folder with a saved model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from trc2.backbones.registry import build_model
from trc2.backbones.saved import (
    CONFIG_FILE,
    check_memory,
    is_saved_model,
    load_config,
    load_model,
    trained_length,
)
from trc2.backbones.shell import Backbone
from trc2.config import RunConfig, TrainConfig, load_recipe
from trc2.config.run import apply_overrides
from trc2.errors import UserError
from trc2.recall.reader import open_recall
from trc2.runs.folder import RunFolder, Warn
from trc2.stream.tokenizer import Tokenizer, read_tokenizer


@dataclass(frozen=True)
class Target:
    """A named model. `folder` holds its weights. It is None for a recipe.

    `config` is that of the recipe or the run. For a saved model it has only the network and the sequence length.
    """

    name: str
    config: RunConfig
    folder: Path | None
    is_run: bool

    def model(self, warn: Warn, seed: int = 0) -> Backbone:
        """The network: initialised from the seed, from a run's newest checkpoint, or from a saved model."""
        if self.folder is None:
            check_memory(self.config.model)
            return build_model(self.config.model, torch.Generator().manual_seed(seed))
        return RunFolder(self.folder).model(warn)[0] if self.is_run else load_model(self.folder)

    def trained_model(self, warn: Warn, *, with_recall: bool = True) -> tuple[Backbone, Tokenizer]:
        """The network and its tokenizer. An error for a recipe, whose weights would be random.

        A saved model reads the documents that it was taught, unless `with_recall` is off.
        """
        folder, net = self.weights_folder, self.model(warn)
        tokenizer = self.tokenizer()
        check_vocabulary(net.config.vocab_size, tokenizer.vocab_size, net.config.name)
        if with_recall and not self.is_run:
            net.recall = open_recall(folder, net.config.vocab_size, tokenizer.fingerprint())
        return net, tokenizer

    def tokenizer(self) -> Tokenizer:
        """The tokenizer that was saved with the weights."""
        tokenizer = read_tokenizer(self.weights_folder)
        return tokenizer.with_settings(tokenizer.special_in_text, self._has_begin_token)

    @property
    def weights_folder(self) -> Path:
        """The folder of a run or a saved model. An error for a recipe."""
        if self.folder is None:
            raise UserError(f"'{self.name}' is a recipe, which has no weights yet: name a run folder or a saved model.")
        return self.folder

    @property
    def _has_begin_token(self) -> bool:
        """Whether texts begin with the tokenizer's begin-of-text token, if it has one."""
        stream = self.config.stream
        return self.config.model.name == "hf" if stream is None else stream.tokenizer.begin_of_text


def find_target(name: str, overrides: Sequence[str] = ()) -> Target:
    """A folder with a run or a saved model, else a recipe by its name or file. Overrides are for recipes only."""
    path = Path(name)
    if not _is_folder(path):
        return Target(name, load_recipe(name, overrides), None, is_run=False)
    if overrides:
        raise UserError(f"{name} has weights already, so '{overrides[0]}' cannot be changed: leave the overrides out.")
    run = RunFolder(path)
    if run.is_run:
        return Target(name, run.config(), path, is_run=True)
    if not (path / CONFIG_FILE).is_file():
        raise UserError(
            f"There is no {CONFIG_FILE} in {name}, and no {run.config_file.name}: name a recipe, a run folder or a "
            "folder with a saved model."
        )
    config = RunConfig(model=load_config(path), train=TrainConfig(sequence_length=trained_length(path)))
    return Target(name, config, path, is_run=False)


def planned_config(name: str, overrides: Sequence[str] = ()) -> RunConfig:
    """The settings of a run that is not begun: of a target, or of a training of a saved model with overrides."""
    path = Path(name)
    if not _is_folder(path) or RunFolder(path).is_run or not is_saved_model(path):
        return find_target(name, overrides).config
    model = load_config(path)
    replay = model.replay or bool(type(model).model_fields["replay"].default)
    length = trained_length(path)
    chunk = min(model.replay_chunk_length, length)
    config = RunConfig(
        model=model.replace(replay=replay, replay_chunk_length=chunk), train=TrainConfig(sequence_length=length)
    )
    return RunConfig(**apply_overrides(config.model_dump(mode="json"), overrides))


def check_vocabulary(model: int, tokenizer: int, name: str = "") -> None:
    """Every token must have an embedding."""
    if model < tokenizer and name == "hf":
        raise UserError(
            f"The tokenizer has {tokenizer} tokens, but the model only {model}: use the tokenizer that was saved with "
            "the model."
        )
    if model < tokenizer:
        raise UserError(
            f"model.vocab_size={model} is smaller than the tokenizer's {tokenizer}: set model.vocab_size={tokenizer}."
        )


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # a name that is too long or has a NUL. The recipe loader reports it
        return False
