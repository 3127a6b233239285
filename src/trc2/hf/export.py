"""From a run to a folder that transformers, `trc2 generate`, `trc2 eval` and `trc2 verify` open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from trc2.backbones.hf import ADAPTER, HFTrunk, lora_config, merge_adapters, without_quantization
from trc2.backbones.saved import save_model
from trc2.backbones.shell import Backbone
from trc2.config.adapters import WEIGHTS_FILE as ADAPTER_WEIGHTS
from trc2.config.pretrained import CONFIG_FILE, MODEL_FILES, NUMBER_FORMATS, HFConfig, silence, without_marks
from trc2.continuing.acceptance import why_not_accepted
from trc2.errors import UserError
from trc2.recall.store import Store, read_store, write_store
from trc2.report.card import model_card
from trc2.report.run import read_run
from trc2.runs.folder import RunFolder, Warn
from trc2.stream.chat import TEMPLATE_FILE
from trc2.stream.tokenizer import TOKENIZER_FILE, Tokenizer
from trc2.system.failpoints import failpoint
from trc2.system.files import filled, refuse_taken, sync_folder, write_atomically
from trc2.teaching.fit import fit_store


def export_run(
    run_folder: Path,
    folder: Path,
    version: str,
    *,
    with_replay: bool = False,
    with_store: bool = False,
    merge: bool = True,
    anyway: bool = False,
    warn: Warn = lambda message: None,
) -> list[Path]:
    """Weights, memory, tokenizer and model card of a run's newest checkpoint. Returns the files.

    A run that began with a Hugging Face folder gives back a folder of the same kind, which needs nothing of ours:
    with its adapters merged, or as the adapters alone.

    A run that its acceptance check refused, or has not judged yet, is exported only `anyway`, and its card says so.

    Replay stores hold training text, and the saved model that a run goes on from may have been taught documents. Both
    stay behind unless requested. The folder appears whole or not at all (`trc2.system.files.filled`).
    """
    refuse_taken(folder)
    source = RunFolder(run_folder)
    net, step = source.model(warn, with_replay=with_replay)
    reason = why_not_accepted(source, step)
    if reason is not None and not anyway:
        raise UserError(
            f"{run_folder} {reason}: go on using its parent, judge it by `trc2 check PARENT {run_folder}`, or export "
            "it with --anyway."
        )
    if net.config.is_quantized:
        net = without_quantization(net)
    run, tokenizer = read_run(run_folder), source.tokenizer()
    parameters = sum(parameter.numel() for parameter in net.parameters())
    broken = [name for name, tensor in net.named_parameters() if not bool(tensor.isfinite().all())]
    if broken:
        warn(f"{len(broken)} tensors of {run_folder} hold NaN or infinity, such as {broken[0]}: the model is broken.")
    is_plain = net.config.pretrained_from is not None
    if is_plain and with_replay:
        raise UserError("A folder of transformers has no place for replay stores: leave --with-replay out.")
    if is_plain and with_store and not merge:
        raise UserError("Adapters alone have no place for taught documents: leave --with-store or --adapter out.")
    if not is_plain and not merge:
        raise UserError(f"{run_folder} has no adapters of peft: leave --adapter out.")
    store = _store_of_parent(source, net, tokenizer.with_settings(False, is_plain)) if with_store else None
    files = {} if is_plain else _tokenizer_files(tokenizer, net.config.max_positions)
    files["README.md"] = model_card(
        run, parameters, net.num_events, step, version, reason, is_adapter=is_plain and not merge, store=store
    )

    with filled(folder) as partial:
        if is_plain:
            save_plain(net, partial, source.model_files, merge=merge)
        else:
            save_model(net, partial, sequence_length=run.config.train.sequence_length)
        if store is not None:
            write_store(partial, store)
        failpoint("export")
        for name, content in files.items():
            write_atomically(partial / name, content.encode())
        sync_folder(partial)
        failpoint("export rename")
    return sorted(folder.iterdir())


def _store_of_parent(run: RunFolder, net: Backbone, tokenizer: Tokenizer) -> Store:
    """The documents that were taught to the saved model that a run goes on from, with a gate for its new weights."""
    lineage = run.lineage()
    parent = None if lineage is None or lineage.is_run else lineage.find(run.path)
    store = None if parent is None else read_store(parent, net.config.vocab_size, tokenizer.fingerprint())
    if store is None:
        raise UserError(
            f"{run} does not go on from a saved model that was taught documents: leave --with-store out, and teach the "
            "export."
        )
    return fit_store(net, tokenizer, store).store


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
    template = {} if tokenizer.chat is None else {TEMPLATE_FILE: tokenizer.chat.source}
    if tokenizer.chat is not None:
        settings = {**tokenizer.chat.tokens, **settings}
    return {
        **template,
        TOKENIZER_FILE: tokenizer.to_json(),
        "tokenizer_config.json": json.dumps(settings, indent=2),
        "generation_config.json": json.dumps(generation, indent=2),
    }


def save_plain(net: Backbone, folder: Path, model_files: Path, *, merge: bool = True) -> None:
    """Write a Hugging Face model in its own format and dtype, with tokenizer and settings from `model_files`."""
    config, trunk = net.config, net.trunk
    assert isinstance(config, HFConfig)
    assert isinstance(trunk, HFTrunk)
    folder.mkdir(parents=True, exist_ok=True)
    for path in (model_files / name for name in MODEL_FILES):
        is_wanted = merge or path.name not in (CONFIG_FILE, "generation_config.json")
        if is_wanted and path.is_file() and not path.is_symlink():
            write_atomically(folder / path.name, path.read_bytes())
    dtype = _saved_dtype(config)
    if merge:
        merge_adapters(trunk.lm)
        with silence():
            trunk.lm.to(dtype).save_pretrained(folder, max_shard_size="5GB")
        # As it came, except for the number format: the model was built with the dropout of its training.
        settings = {**without_marks(config.architecture), "dtype": str(dtype).removeprefix("torch.")}
        settings.pop("torch_dtype", None)
        write_atomically(folder / CONFIG_FILE, json.dumps(settings, indent=2).encode())
        return
    if config.lora is None:
        raise UserError("The run trained the model itself, it has no adapters: leave --adapter out.")
    _save_adapters(config, trunk.lm, folder)


def _saved_dtype(config: HFConfig) -> torch.dtype:
    name = config.architecture.get("dtype") or config.architecture.get("torch_dtype") or config.dtype
    return getattr(torch, name) if name in NUMBER_FORMATS else torch.float32


def _save_adapters(config: HFConfig, lm: Any, folder: Path) -> None:
    import safetensors.torch
    from peft import LoraConfig, get_peft_model_state_dict

    settings = lora_config(config, lm, LoraConfig)
    lm.peft_config = {ADAPTER: settings}
    tensors = {
        name: tensor.contiguous()
        for name, tensor in get_peft_model_state_dict(
            lm,
            adapter_name=ADAPTER,
            save_embedding_layers=False,  # else it asks the hub for the model
        ).items()
    }
    prefixed = {name if name.startswith("base_model.model.") else f"base_model.model.{name}": tensor
                for name, tensor in tensors.items()}  # fmt: skip
    write_atomically(folder / ADAPTER_WEIGHTS, safetensors.torch.save(prefixed, metadata={"format": "pt"}))
    settings.inference_mode = True
    settings.save_pretrained(folder)
