"""One way to name a model: a recipe, a recipe file, a run folder or a folder with a saved model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from trc2.backbones.registry import build_model
from trc2.backbones.saved import CONFIG_FILE, check_memory, load_config, load_model, trained_length
from trc2.backbones.shell import Backbone
from trc2.config import RunConfig, TrainConfig, load_recipe
from trc2.errors import UserError
from trc2.runs.folder import RunFolder, Warn
from trc2.stream.tokenizer import Tokenizer, read_tokenizer


@dataclass(frozen=True)
class Target:
    """What was named. `folder` is where its weights lie, None for a recipe, which has none yet.

    `config` is that of the recipe or the run; of a saved model it says no more than its network and the length of its
    sequences.
    """

    name: str
    config: RunConfig
    folder: Path | None
    is_run: bool

    def model(self, warn: Warn, seed: int = 0) -> Backbone:
        """The network: freshly initialised from the seed, of a run's newest checkpoint, or as it was saved."""
        if self.folder is None:
            check_memory(self.config.model)
            return build_model(self.config.model, torch.Generator().manual_seed(seed))
        return RunFolder(self.folder).model(warn)[0] if self.is_run else load_model(self.folder)

    def trained_model(self, warn: Warn) -> tuple[Backbone, Tokenizer]:
        """The network and its tokenizer; refused for a recipe, whose weights would be random."""
        if self.folder is None:
            raise UserError(f"'{self.name}' is a recipe, which has no weights yet: name a run folder or a saved model.")
        net, tokenizer = self.model(warn), read_tokenizer(self.folder)
        check_vocabulary(net.config.vocab_size, tokenizer.vocab_size, net.config.name)
        return net, tokenizer.with_settings(tokenizer.special_in_text, self._begins)

    @property
    def _begins(self) -> bool:
        """Whether its texts begin with the tokenizer's own first token, if there is one."""
        stream = self.config.stream
        return self.config.model.name == "hf" if stream is None else stream.tokenizer.begin_of_text


def find_target(name: str, overrides: Sequence[str] = ()) -> Target:
    """Recipes first by name, then folders, then files; overrides are for recipes only."""
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
    except (OSError, ValueError):  # a name too long or with a NUL is no folder; as a recipe it gets a sentence
        return False
