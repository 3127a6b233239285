"""A Hugging Face causal language model as a backbone: which folder, what of it learns, and what its config says."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from trc2.config.adapters import is_adapter, read_adapter
from trc2.config.backbone import BackboneConfig
from trc2.config.section import Count, Decay, Positive, Section, Share, Size
from trc2.errors import UserError, brief
from trc2.system.files import reading, refuse_special, write_atomically

CONFIG_FILE = "config.json"
WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
BASE_CARD, MAX_CARD_BYTES = "README.md", 2**20
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[\w.-]{1,96}", re.ASCII)
# What is kept beside the weights. Everything else in the folder may be private.
MODEL_FILES = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "tokenizer.model", "spiece.model",
    "sentencepiece.bpe.model", "chat_template.jinja", "chat_template.json",
)  # fmt: skip
MAX_MODEL_FILE_BYTES, MAX_CONFIG_BYTES, MAX_INDEX_BYTES = 2**27, 2**24, 2**27
# A config asks for as many modules as it likes in a few bytes, and building them takes time and memory.
LIMITS = (
    (re.compile(r".*(layers?|blocks|depth|stages)"), 1000),
    (re.compile(r".*(experts?|heads?|labels|groups)"), 8192),
)
NUMBER_FORMATS = ("float16", "bfloat16", "float32", "float64")
ATTENTIONS = ("eager", "sdpa", "flex_attention", "grouped_mm", "batched_mm")  # others may be fetched as native code
NOT_KEPT = ("auto_map", "_name_or_path", "name_or_path")  # code that is never run, and where the folder once lay
UNLIMITED = 2**20  # positions of a model that has no limit of its own, such as Mamba
DESCRIBED = ("architecture", "vocab_size", "d_model", "max_positions", "num_layers", "num_parameters", "num_active")


class LoraSettings(Section):
    """Low-rank adapters, trained through `peft`. Everything else is frozen."""

    rank: Size = Field(8, description="rank of the adapters")
    alpha: Positive = Field(16.0, description="the output of the adapters is multiplied by alpha / rank")
    targets: tuple[str, ...] | str = Field(
        "all-linear", description="names of modules that get adapters, or all-linear"
    )
    dropout: Decay = Field(0.0, description="share of the adapters' inputs dropped in training")


class HFConfig(BackboneConfig):
    """Any causal language model of transformers, from a folder or by its name on the hub.

    The folder's config.json is read once and kept in `architecture` and the sizes beside it, so that a run
    folder can be read without the model folder, and without transformers as long as nothing is built.
    """

    name: Literal["hf"] = "hf"
    pretrained: str = Field(description="a folder with config.json, safetensors and tokenizer, or a name on the hub")
    lora: LoraSettings | None = Field(None, description="train low-rank adapters instead of all weights")
    adapter: str | None = Field(None, description="a folder of peft whose adapters the training begins with")
    freeze: tuple[str, ...] = Field((), description="patterns of names of tensors that do not learn, e.g. *embed*")
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        "float32", description="number format of the weights that are trained"
    )
    quantize: Literal["nf4"] | None = Field(
        None, description="with lora: store the frozen matrices of the blocks in four bits. It needs bitsandbytes."
    )
    replay: bool = True
    replay_share: Share | None = 0.05

    # read from the folder
    architecture: dict[str, Any] = Field(description="the folder's config.json")
    num_layers: Size = Field(description="blocks on top of each other")
    num_parameters: Count = Field(description="all weights")
    num_active: Count = Field(
        description="weights in matrices that are used for a token. Of the experts, only the selected ones count."
    )

    @model_validator(mode="before")
    @classmethod
    def _read_folder(cls, values: Any) -> Any:
        if not isinstance(values, Mapping) or not isinstance(values.get("pretrained"), str):
            return values
        values = _with_adapter(values)
        given = {name: values[name] for name in DESCRIBED if values.get(name) is not None}
        if len(given) == len(DESCRIBED):
            return values
        described = describe(values["pretrained"])
        for name, value in given.items():
            if name == "max_positions" and isinstance(value, int) and value <= described[name]:
                described[name] = value
            elif value != described[name]:
                raise ValueError(
                    f"{name}={brief(value, 40)} is not the {brief(described[name], 40)} of {values['pretrained']}: "
                    "leave it out, the folder says it."
                )
        return {**values, **described}

    @model_validator(mode="after")
    def _adapters_or_patterns(self) -> HFConfig:
        if self.lora is not None and self.freeze:
            raise ValueError("freeze and lora are both set, but with adapters nothing else learns: leave freeze out.")
        if self.quantize is not None and self.lora is None:
            raise ValueError(
                f"quantize={self.quantize} is for frozen weights, but without lora all of them learn: set model.lora, "
                "or leave quantize out."
            )
        return self

    @property
    def family(self) -> str:
        return str(self.architecture.get("model_type", self.name))

    @property
    def pretrained_from(self) -> str:
        return self.pretrained

    def cheaper_ways(self) -> dict[str, dict[str, Any]]:
        if self.lora is not None:
            return {}
        lora: dict[str, Any] = {"freeze": [], "lora": {}}
        return {"LoRA of rank 8": lora, "LoRA of rank 8 on weights of 4 bits": {**lora, "quantize": "nf4"}}

    @property
    def is_quantized(self) -> bool:
        return self.quantize is not None

    @property
    def depth(self) -> int:
        return self.num_layers

    @property
    def shown_name(self) -> str:
        """The model's name without the place where its folder lies, for files that others get."""
        path = Path(self.pretrained).expanduser()
        is_place = path.is_absolute() or path.is_dir() or self.pretrained.startswith(".")
        return path.resolve().name if is_place else self.pretrained


def _with_adapter(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings with the model and the `lora` of the adapters that `adapter` or `pretrained` names."""
    named = Path(values["pretrained"]).expanduser()
    if is_adapter(named):
        adapter = read_adapter(named)
        values = {**values, "pretrained": str(adapter.base), "adapter": str(named.resolve())}
    elif isinstance(values.get("adapter"), str) and values.get("lora") is None:
        adapter = read_adapter(Path(values["adapter"]).expanduser())
    else:
        return values
    if values.get("lora") is not None and values["lora"] != adapter.lora:
        raise ValueError(f"lora is set, but the adapters in {adapter.folder} have settings of their own: leave it out.")
    return {**values, "lora": adapter.lora}


def describe(pretrained: str) -> dict[str, Any]:
    """What a model folder says about itself: its config.json as it is, and the sizes that follow from it."""
    folder = locate(pretrained)
    folder = read_adapter(folder).base if is_adapter(folder) else folder
    architecture = read_config_json(folder / CONFIG_FILE)
    config = transformers_config(architecture, pretrained)
    architecture = without_marks(architecture)
    parameters, active = _count(config, pretrained)
    positions = getattr(config, "max_position_embeddings", None)
    return {
        "architecture": architecture,
        "vocab_size": int(config.vocab_size),
        "d_model": int(config.hidden_size),
        "max_positions": int(positions) if isinstance(positions, int) and positions > 0 else UNLIMITED,
        "num_layers": int(config.num_hidden_layers),
        "num_parameters": parameters,
        "num_active": active,
    }


def locate(pretrained: str, *, with_weights: bool = False) -> Path:
    """The folder of a model: as it is named, or where the hub's copy of it lies."""
    folder = Path(pretrained).expanduser()
    if folder.is_dir():
        return folder
    if folder.is_absolute() or folder.exists():
        raise UserError(f"There is no folder {brief(pretrained, 200)}: give the folder of a Hugging Face model.")
    patterns = ["*.json", "*.txt", "*.model", "*.jinja", BASE_CARD, *(["*.safetensors"] if with_weights else [])]
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(pretrained, allow_patterns=patterns))
    except Exception as error:  # no network, no such name, no permission: the hub has an error for each
        raise UserError(
            f"There is no model '{brief(pretrained, 80)}': no folder has this name, and the hub says: {brief(error)}."
        ) from None


def weight_files(folder: Path) -> list[Path]:
    """Those that the weights are read from: one file, or the shards that an index names."""
    one, index = (folder / name for name in WEIGHTS)
    if one.is_file() or not index.is_file():
        return [one]
    check_size(index, MAX_INDEX_BYTES)
    with reading(index, "use another copy"):
        names = {str(name) for name in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()}
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise UserError(
                f"{index} names the weights {brief(name, 80)}, which are not a .safetensors file in the same folder: "
                "use a folder that holds all of its weights."
            )
    return [folder / name for name in sorted(names)]


def copy_model_files(pretrained: str, folder: Path) -> None:
    """Copy tokenizer, settings and model card from beside the weights: an export needs them without the first folder.

    An export names the licence that the card states.
    """
    source = locate(pretrained)
    folder.mkdir(parents=True, exist_ok=True)
    for name, limit in (*((name, MAX_MODEL_FILE_BYTES) for name in MODEL_FILES), (BASE_CARD, MAX_CARD_BYTES)):
        path = source / name
        if not path.is_file() or not _is_of_folder(path) or path.stat().st_size > limit:
            continue
        content = path.read_bytes()
        if name.endswith("config.json"):
            with contextlib.suppress(ValueError, RecursionError, AttributeError):  # not settings: copy it as it is
                content = json.dumps(without_marks(json.loads(content)), indent=2).encode()
        write_atomically(folder / name, content)


def _is_of_folder(path: Path) -> bool:
    """Whether a file is not a link to elsewhere. In the hub's own cache all files are links to its store."""
    target, home = path.resolve(), path.parent.resolve()
    is_stored = home.parent.name == "snapshots" and target.parent == home.parent.parent / "blobs"
    return target == home / path.name or is_stored


def without_marks(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without what names code or places of somebody's machine. A name on the hub is kept."""
    return {
        name: value
        for name, value in settings.items()
        if name not in NOT_KEPT or (name == "_name_or_path" and HUB_NAME.fullmatch(str(value)))
    }


def check_size(path: Path, most: int) -> None:
    """Refuse a file that is larger than any honest one, before it is read."""
    refuse_special(path)
    if path.stat().st_size > most:
        raise UserError(f"{path} has {path.stat().st_size:,} bytes, more than {most:,}: use another copy.")


def base_facts(pretrained: str, model_files: Path) -> dict[str, str]:
    """What an export says of the model it began with: `base_model`, its name, and `license` if its card states one.

    A folder is known by the name on the hub that its config.json remembers, else by its own. A card is a stranger's
    text, so only a plain word after `license:` in its front matter is taken.
    """
    home = Path(pretrained).expanduser()
    is_hub_name = HUB_NAME.fullmatch(pretrained) is not None and not home.is_dir()
    facts = {"base_model": pretrained if is_hub_name else home.name}
    with contextlib.suppress(OSError, ValueError, RecursionError):
        refuse_special(model_files / CONFIG_FILE)
        name = json.loads((model_files / CONFIG_FILE).read_text(encoding="utf-8")).get("_name_or_path")
        if isinstance(name, str) and HUB_NAME.fullmatch(name):
            facts["base_model"] = name
    with contextlib.suppress(OSError, ValueError):
        refuse_special(model_files / BASE_CARD)
        front = re.match(r"---\s*\n(.*?)\n---", (model_files / BASE_CARD).read_text(encoding="utf-8"), re.DOTALL)
        for key in ("license", "license_name"):
            line = rf"^{key}: *['\"]?([A-Za-z0-9][\w.+-]{{0,80}})['\"]? *$"
            if stated := re.search(line, front[1] if front else "", re.MULTILINE):
                facts[key] = stated[1]
    return facts


def transformers_config(architecture: Mapping[str, Any], pretrained: str) -> Any:
    """The config object of transformers. Raises UserError unless transformers has this causal language model.

    Code from the folder is never run. A model that brings its own code is refused.
    """
    auto, causal = _registries()
    kind, classes = architecture.get("model_type"), architecture.get("architectures")
    classes = classes if isinstance(classes, list) else []
    if kind == "trc2":
        raise UserError(f"{pretrained} is a model of trc2 itself: continue its run, or train a recipe of its backbone.")
    if not isinstance(kind, str) or kind not in auto:
        needs = "brings its own code, which is never run" if "auto_map" in architecture else "is of an unknown kind"
        raise UserError(
            f"{pretrained} {needs} (model_type {brief(kind, 40)}): use a model that transformers has a class for."
        )
    not_causal = UserError(
        f"{pretrained} is not a causal language model ({brief(classes[0] if classes else kind, 60)}): use one whose "
        "class ends in ForCausalLM, such as a Llama, Qwen or GPT-2."
    )
    class_names = [name for name in classes if isinstance(name, str)]
    if class_names and not any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in class_names):
        raise not_causal
    try:
        _check_values(architecture, f"{pretrained}/{CONFIG_FILE}")
        with silence():
            config = auto[kind].from_dict(without_marks(architecture))
    except UserError:
        raise
    except Exception as error:  # configs check themselves, each in its own way
        raise UserError(
            f"{pretrained}/{CONFIG_FILE} is refused by transformers ({brief(error)}): correct it."
        ) from None
    if type(config) not in causal or getattr(config, "is_encoder_decoder", False):
        raise not_causal
    for name in ("vocab_size", "hidden_size", "num_hidden_layers"):
        if not isinstance(getattr(config, name, None), int):
            raise UserError(f"{pretrained}/{CONFIG_FILE} does not say its {name}: this kind of model is not supported.")
    return config


def _check_values(settings: Mapping[str, Any], place: str) -> None:
    """Refuse numbers that no model has, and settings that would fetch code or read other files than the weights."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            _check_values(value, place)
        most = next((limit for pattern, limit in LIMITS if pattern.fullmatch(str(name))), None)
        if most is not None and isinstance(value, int) and value > most:
            raise UserError(f"{place} has {brief(name, 60)}={brief(value, 40)}, more than {most}: correct it.")
        if str(name).endswith("_implementation"):
            for asked in value.values() if isinstance(value, Mapping) else (value,):
                if asked is not None and asked not in ATTENTIONS:
                    raise UserError(
                        f"{place} has {brief(name, 60)}={brief(asked, 60)}, for which native code may be fetched: "
                        "remove it."
                    )
        if name in ("dtype", "torch_dtype") and value not in (None, "auto", *NUMBER_FORMATS):
            choices = ", ".join(NUMBER_FORMATS)
            raise UserError(f"{place} has {name}={brief(value, 40)}, which cannot be trained: use one of {choices}.")
    if settings.get("transformers_weights") is not None:
        raise UserError(
            f"{place} has transformers_weights={brief(settings['transformers_weights'], 60)}: remove it, and call the "
            f"file of weights {WEIGHTS[0]}."
        )


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Silence the progress messages of transformers. We report what matters ourselves."""
    from transformers.utils import logging

    level, shows_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shows_bars:
            logging.enable_progress_bar()


def _registries() -> tuple[Any, Any]:
    """Config classes by model_type, and model classes of causal language models by config class."""
    try:
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
    except ModuleNotFoundError:
        raise UserError("model=hf needs transformers: install it with `pip install '.[hf]'` in the checkout.") from None
    return CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING


def causal_class(config: Any) -> Any:
    """The class of transformers that a config is of."""
    return _registries()[1][type(config)]


def read_config_json(path: Path) -> dict[str, Any]:
    """The object in the config.json of a model, one of transformers or one of ours."""
    if not path.is_file():
        raise UserError(f"There is no {path}: give the folder of a Hugging Face model, or of a saved one.")
    check_size(path, MAX_CONFIG_BYTES)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError):
        raise UserError(f"{path} is not valid JSON: the folder is damaged, use another copy.") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} does not describe a model: the folder is damaged, use another copy.")
    return content


def _count(config: Any, pretrained: str) -> tuple[int, int]:
    """All weights, and those in matrices that one token meets, counted on a model on the meta device."""
    import torch

    try:
        with torch.device("meta"), silence():
            model = causal_class(config)(config)
    except Exception as error:
        raise UserError(f"{pretrained} cannot be built by transformers ({brief(error)}): use another copy.") from None
    names = ("num_local_experts", "num_experts", "num_experts_per_tok")
    counts = [getattr(config, name, 0) for name in names]
    local, experts, chosen = (count if isinstance(count, int) else 0 for count in counts)
    experts = max(local, experts)
    table, output = model.get_input_embeddings().weight, model.get_output_embeddings()
    is_tied = output is not None and output.weight is table
    total, active = 0, 0.0
    for name, parameter in model.named_parameters():
        total += parameter.numel()
        if parameter.ndim >= 2 and (is_tied or parameter is not table):
            active += parameter.numel() * (chosen / experts if experts and ".experts." in name else 1.0)
    return total, max(1, round(active))
