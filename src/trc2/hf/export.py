"""From a run to a folder that transformers, `trc2 generate`, `trc2 eval` and `trc2 verify` open."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from trc2.artifact import save_model
from trc2.config.pretrained import HFConfig
from trc2.errors import UserError
from trc2.failpoint import failpoint
from trc2.files import replace_folder, sync_folder, write_atomically
from trc2.hf.plain import save_plain
from trc2.report.card import model_card
from trc2.report.finished import read_run
from trc2.runs.folder import RunFolder, Warn
from trc2.stream.tokenizer import TOKENIZER_FILE, Tokenizer


def export_run(
    run_folder: Path,
    folder: Path,
    version: str,
    *,
    with_replay: bool = False,
    merge: bool = True,
    warn: Warn = lambda message: None,
) -> list[Path]:
    """Weights, memory, tokenizer and model card of a run's newest checkpoint; returns the files.

    A run that began with a Hugging Face folder gives back a folder of the same kind, which needs nothing of ours:
    with its adapters merged, or as the adapters alone.

    Replay stores hold training text, so they stay behind unless requested. The folder appears whole or not at
    all: it is written under a hidden name beside its place, where a killed export is found and removed by the next.
    """
    _check_is_free(folder)
    source = RunFolder(run_folder)
    net, step = source.model(warn, with_replay=with_replay)
    run, tokenizer = read_run(run_folder), source.tokenizer()
    parameters = sum(parameter.numel() for parameter in net.parameters())
    is_plain = isinstance(net.config, HFConfig)
    if is_plain and with_replay:
        raise UserError("A folder of transformers has no place for replay stores: leave --with-replay out.")
    files = {} if is_plain else _tokenizer_files(tokenizer, net.config.max_positions)
    files["README.md"] = model_card(run, parameters, net.num_events, step, version)

    target = folder.resolve()
    partial = target.with_name(f".{target.name[:200]}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        if is_plain:
            save_plain(net, partial, source.papers, merge=merge)
        elif not merge:
            raise UserError(f"{run_folder} has no adapters of peft: leave --adapter out.")
        else:
            save_model(net, partial, sequence_length=run.config.train.sequence_length)
        failpoint("export")
        for name, content in files.items():
            write_atomically(partial / name, content.encode())
        sync_folder(partial)
        failpoint("export rename")
        if target.exists():
            target.rmdir()  # it is empty, or this fails
        replace_folder(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return sorted(folder.iterdir())


def _check_is_free(folder: Path) -> None:
    """A new folder or an empty one; anything else belongs to somebody."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: choose a new folder.")
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty: choose a new folder.")


def _tokenizer_files(tokenizer: Tokenizer, max_length: int) -> dict[str, str]:
    end = tokenizer.backend.id_to_token(tokenizer.end_of_text)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "eos_token": end,
        "pad_token": end,
        "padding_side": "left",
        "clean_up_tokenization_spaces": False,
    }
    generation = {"eos_token_id": tokenizer.end_of_text, "pad_token_id": tokenizer.end_of_text}
    return {
        TOKENIZER_FILE: tokenizer.to_json(),
        "tokenizer_config.json": json.dumps(settings, indent=2),
        "generation_config.json": json.dumps(generation, indent=2),
    }
