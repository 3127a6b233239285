"""A causal language model of transformers in the shell: its weights, its head, its router loss and its cache."""

from __future__ import annotations

import contextlib
import inspect
import json
import logging
import sys
import warnings
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from trc2.backbones.shell import Backbone
from trc2.config.adapters import WEIGHTS_FILE as ADAPTER_WEIGHTS
from trc2.config.pretrained import (
    WEIGHTS,
    HFConfig,
    causal_class,
    locate,
    silence,
    transformers_config,
    weight_files,
)
from trc2.errors import UserError, brief
from trc2.nn.cost import Activations, Cost, Kept
from trc2.nn.decoding import Decoding, State
from trc2.nn.head import AnyHead, Head
from trc2.nn.segments import Packed, Segment, rejoin
from trc2.nn.trunk import Loss, Trunk, TrunkOutput
from trc2.system.files import reading
from trc2.system.precision import import_bitsandbytes

ADAPTER, ALL_LINEAR = "default", "all-linear"
PROBE_LENGTH = 5
COUNTED_BLOCKS = 4  # of which the activations are counted
RECURRENT_LENGTH = 16  # tokens with which the activations of a recurrent model are counted

OF_VALUES = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)


@contextlib.contextmanager
def as_sentence(config: Any, kinds: tuple[type[Exception], ...] = OF_VALUES) -> Iterator[None]:
    """Turn an error from a wrong value in a config into a UserError. Transformers checks few of its values."""
    try:
        yield
    except kinds as error:
        raise UserError(
            f"Transformers cannot run this {type(config).__name__} ({type(error).__name__}: {brief(error)}): correct "
            "the config.json of the model."
        ) from error


class CacheState(State):
    """The keys and values of the rows' earlier tokens, in a cache of transformers."""

    def __init__(self, config: Any, *, takes_positions: bool = True) -> None:
        super().__init__()
        from transformers.cache_utils import DynamicCache

        with as_sentence(config, (*OF_VALUES, RuntimeError)):  # a number that torch cannot hold
            self.cache = DynamicCache(config=config)
        self.takes_positions = takes_positions

    @property
    def can_join(self) -> bool:
        """Rows of other lengths fit into layers that keep all keys and values, of models that are told positions."""
        from transformers.cache_utils import DynamicLayer

        return self.takes_positions and all(type(layer) is DynamicLayer for layer in self.cache.layers)

    def join(self, other: State, padding: tuple[int, int]) -> None:
        assert isinstance(other, CacheState)
        for ours, theirs in zip(self.cache.layers, other.cache.layers, strict=True):
            for name in ("keys", "values"):
                pairs = zip((ours, theirs), padding, strict=True)
                rows = [nn.functional.pad(getattr(layer, name), (0, 0, pad, 0)) for layer, pad in pairs]
                setattr(ours, name, torch.cat(rows))

    def drop_first(self, tokens: int) -> None:
        for layer in self.cache.layers:
            layer.keys, layer.values = layer.keys[:, :, tokens:], layer.values[:, :, tokens:]

    def reorder(self, rows: Tensor) -> None:
        self.cache.reorder_cache(rows)


class HFTrunk(Trunk):
    """`lm` is the model as transformers builds it, head included, so that its tensors keep their names.

    Its attention does not take packed rows of two lengths, so every segment is one call: the batch, then the replayed
    chunks.
    """

    def __init__(self, config: HFConfig, lm: Any) -> None:
        super().__init__()
        self.config = config
        self.lm = lm
        accepted = inspect.signature(self.body.forward).parameters
        self._takes_positions = "position_ids" in accepted
        self._cache_name = "past_key_values" if "past_key_values" in accepted else "cache_params"
        self._shared = _shared_names(lm)
        self.register_state_dict_post_hook(_leave_out_shared)
        self.register_load_state_dict_pre_hook(_put_back_shared)
        if config.is_quantized:
            self.register_state_dict_post_hook(_leave_out_frozen)
            self.register_load_state_dict_pre_hook(_put_back_frozen)

    @property
    def body(self) -> Any:
        """The model without its head."""
        return self.lm.base_model

    @property
    def embedding(self) -> nn.Embedding:
        return self.lm.get_input_embeddings()

    @embedding.setter
    def embedding(self, value: nn.Embedding) -> None:
        raise UserError("The vocabulary of a Hugging Face model cannot be changed here: resize it with transformers.")

    @property
    def head(self) -> Head:
        output = self.lm.get_output_embeddings()
        scale, cap = _scale(self.lm.config), getattr(self.lm.config, "final_logit_softcapping", None)
        is_plain = type(output) is nn.Linear and output.bias is None
        if is_plain and scale == 1.0 and cap is None:
            return Head(output.weight)

        def logits(hidden: Tensor) -> Tensor:
            scores = output(hidden) if scale == 1.0 else output(hidden) * scale
            return scores if cap is None else torch.tanh(scores / cap) * cap

        return AnyHead(output.weight, logits)

    @property
    def rounding(self) -> float:
        """Transformers computes norms, softmax and rotary angles in float32, also for float64 weights."""
        return 1e-4

    def forward(
        self, packed: Packed, *, with_losses: bool = True, read_memory: bool = True, decoding: Decoding | None = None
    ) -> TrunkOutput:
        state = None if decoding is None else decoding.states[0]
        assert state is None or isinstance(state, CacheState)
        hidden: list[Tensor] = []
        losses: tuple[Loss, ...] = ()
        for number, segment in enumerate(packed.segments):
            wants_losses = with_losses and number == 0 and self._balance is not None
            with as_sentence(self.lm.config):
                out = self._run_body(segment.of(packed.tokens), segment, state, wants_losses)
            hidden.append(out.last_hidden_state)
            if wants_losses:
                losses = self._router_loss(out, segment)
        return TrunkOutput(rejoin(hidden), losses)

    def _run_body(self, tokens: Tensor, segment: Segment, state: CacheState | None, wants_router: bool) -> Any:
        arguments: dict[str, Any] = {"use_cache": state is not None, "return_dict": True}
        valid = segment.valid_so_far()
        if valid is not None:
            arguments["attention_mask"] = valid.long()
            if self._takes_positions:
                arguments["position_ids"] = segment.positions(tokens.device)
        if wants_router:
            arguments["output_router_logits"] = True
        if state is None:
            return self.body(input_ids=tokens, **arguments)
        arguments[self._cache_name] = state.cache
        is_recurrent = self._cache_name == "cache_params"
        if not is_recurrent or segment.earlier is None:
            return self.body(input_ids=tokens, **arguments)
        # A recurrent state takes one token at a time, and padding lies before all of them.
        arguments.pop("attention_mask", None)
        parts = [self.body(input_ids=token, **arguments) for token in tokens.split(1, dim=1)]
        parts[-1].last_hidden_state = torch.cat([part.last_hidden_state for part in parts], dim=1)
        return parts[-1]

    @property
    def _balance(self) -> Any:
        """Transformers' own balance loss of this model's routers, or None."""
        if not getattr(self.lm.config, "router_aux_loss_coef", 0.0):
            return None
        return getattr(sys.modules[type(self.lm).__module__], "load_balancing_loss_func", None)

    def _router_loss(self, out: Any, segment: Segment) -> tuple[Loss, ...]:
        config = self.lm.config
        experts = getattr(self.lm, "num_experts", None) or getattr(config, "num_experts", None)
        mask = None if segment.valid is None else segment.valid.long()
        value = self._balance(out.router_logits, experts, config.num_experts_per_tok, mask)
        return (Loss("load_balance", config.router_aux_loss_coef * value, self.config.lambda_router),)

    def new_states(self) -> Sequence[State]:
        return [CacheState(self.lm.config, takes_positions=self._takes_positions)]

    def subsystems(self) -> dict[str, list[nn.Module]]:
        return {"embedding and head": [self.embedding, self.lm.get_output_embeddings()], "body": [self.body]}

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        moved = super()._apply(fn, recurse)
        if self.embedding.weight.dtype == torch.float64:  # torch has no grouped products in float64
            self.lm.config._experts_implementation = "eager"
            self._keep_masks_finite()
        return moved

    def _keep_masks_finite(self) -> None:
        """Transformers masks with the smallest float64, but its eager softmax is float32, where that is −∞.

        All keys of a padded query are masked, so its softmax would be NaN, and NaN times 0 would reach the real rows.
        """
        for module in self.lm.modules():
            takes_mask = "attention_mask" in inspect.signature(module.forward).parameters
            if takes_mask and _finite_mask not in module._forward_pre_hooks.values():
                module.register_forward_pre_hook(_finite_mask, with_kwargs=True)

    @property
    def recompute(self) -> bool:
        """Whether every layer runs again in the backward pass instead of keeping its activations."""
        return bool(self.lm.is_gradient_checkpointing)

    @recompute.setter
    def recompute(self, wanted: bool) -> None:
        if wanted and not self.lm.supports_gradient_checkpointing:
            raise UserError(f"A {type(self.lm).__name__} cannot be recomputed: leave output.recompute out.")
        if wanted:
            self.lm.gradient_checkpointing_enable({"use_reentrant": False})

    def units(self) -> list[nn.Module]:
        """The blocks: the members of the body's list of as many modules as the config has layers."""
        blocks = next((list(found) for found in self._block_lists()), [])
        # FSDP divides by rows, so every tensor needs at least one dimension.
        return blocks if all(p.ndim > 0 for block in blocks for p in block.parameters()) else []

    def _block_lists(self) -> list[nn.ModuleList]:
        lists = [module for module in self.body.modules() if isinstance(module, nn.ModuleList)]
        return [found for found in lists if len(found) == self.config.num_layers][:1]

    def tables(self) -> list[Tensor]:
        """Embedding and head, which may be the same tensor."""
        weights = [self.embedding.weight, self.lm.get_output_embeddings().weight]
        return list({id(weight): weight for weight in weights}.values())


def _finite_mask(
    _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    mask = kwargs.get("attention_mask")
    if isinstance(mask, Tensor) and mask.dtype == torch.float64:
        kwargs = {**kwargs, "attention_mask": mask.clamp_min(torch.finfo(torch.float32).min)}
    return args, kwargs


def _scale(config: Any) -> float:
    """The factor of the logits: Cohere's config states it, Granite's config states its inverse."""
    multiplier, divisor = getattr(config, "logit_scale", None), getattr(config, "logits_scaling", None)
    return float(multiplier or 1.0) / float(divisor or 1.0)


# ---------------------------------------------------------------------------------------------- one tensor, two names


def _shared_names(lm: nn.Module) -> dict[str, str]:
    """The names of tensors that also have an earlier name, such as a tied head, and that name."""
    first: dict[int, str] = {}
    shared = {}
    for name, parameter in lm.named_parameters(remove_duplicate=False):
        if id(parameter) in first:
            shared[f"lm.{name}"] = f"lm.{first[id(parameter)]}"
        first.setdefault(id(parameter), name)
    return shared


def _leave_out_shared(trunk: nn.Module, state: dict[str, Tensor], prefix: str, _metadata: object) -> None:
    """Save every tensor once."""
    assert isinstance(trunk, HFTrunk)
    for name in trunk._shared:
        state.pop(f"{prefix}{name}", None)


def _put_back_shared(trunk: nn.Module, state: dict[str, Tensor], prefix: str, *_: object) -> None:
    assert isinstance(trunk, HFTrunk)
    for name, source in trunk._shared.items():
        if f"{prefix}{source}" in state:
            state.setdefault(f"{prefix}{name}", state[f"{prefix}{source}"])


# ------------------------------------------------------------------------------------------------- four-bit weights


def _leave_out_frozen(trunk: nn.Module, state: dict[str, Tensor], prefix: str, _metadata: object) -> None:
    """Save the adapters only: packed weights depend on the machine, and the folder has them in full."""
    for name in [name for name in state if name.startswith(prefix) and ".lora_" not in name]:
        del state[name]


def _put_back_frozen(trunk: nn.Module, state: dict[str, Tensor], prefix: str, *_: object) -> None:
    for path, module in trunk.named_modules():
        saved = {
            name: buffer for name, buffer in module._buffers.items() if name not in module._non_persistent_buffers_set
        }
        for name, tensor in (*module._parameters.items(), *saved.items()):
            full = f"{path}.{name}" if path else name
            if tensor is not None and ".lora_" not in full:
                state.setdefault(f"{prefix}{full}", tensor)


def without_quantization(net: Backbone) -> Backbone:
    """The same adapters on the weights of the folder, which are not rounded to four bits."""
    assert isinstance(net.config, HFConfig)
    plain = build(net.config.replace(quantize=None, adapter=None), torch.Generator())
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            if ".lora_" in name:
                parameter.copy_(net.get_parameter(name))
    return plain


# ------------------------------------------------------------------------------------------------------------ building


def build(config: HFConfig, generator: torch.Generator | None = None) -> Backbone:
    """With a generator, the model with the weights of its folder. Without one, a model to load weights into."""
    settings = transformers_config(config.architecture, config.pretrained)
    _set_dropout(settings, config.dropout)
    with torch.random.fork_rng(devices=[]):  # adapters and layers draw from torch's global generator
        torch.manual_seed(0 if generator is None else generator.initial_seed())
        is_outline = torch.get_default_device().type == "meta"
        # Four-bit weights are not in checkpoints: they are made from the folder again.
        has_weights = not is_outline and (generator is not None or config.is_quantized)
        lm = _load(config, settings) if has_weights else _skeleton(config, settings)
        _choose_what_learns(config, lm)
        if has_weights and config.adapter is not None:
            _load_adapters(config.adapter, lm)
    trunk = HFTrunk(config, lm)
    if has_weights:
        _check_head(trunk)
    if has_weights and config.is_quantized:
        _quantize(trunk)
    return Backbone(config, trunk)


def cost(config: HFConfig, rows: int, length: int, *, slots: int = 0, is_replay: bool = False) -> dict[str, Cost]:
    """2·N·tokens forward and 6·N·tokens with backward, where N is the number of active weights in matrices.

    Attention adds 4·T²·d per layer and row where there are heads. Frozen weights need no gradient of their own, so
    adapters take 4·N.
    """
    flops = 2.0 * config.num_active * rows * length
    if any(name in config.architecture for name in ("num_attention_heads", "n_head")):
        flops += 4.0 * config.num_layers * rows * length**2 * config.d_model
    return {"model": Cost(flops, (2 if config.lora is not None else 3) * flops)}


def activations(config: HFConfig, length: int, *, on_cpu: bool) -> Activations:
    """Floats that are kept, counted in a forward pass over tensors that have shapes and no memory.

    The residual stream is what norms keep. Grouped keys and values are counted as repeated for every head, which is
    some percent too much where torch's attention shares them.
    """
    has_heads = any(name in config.architecture for name in ("num_attention_heads", "n_head"))
    counted = length if has_heads else min(length, RECURRENT_LENGTH)  # a recurrence keeps the same for every token
    return _count_kept(config.replace(replay=False, adapter=None, quantize=None).model_dump_json(), counted)


@lru_cache(maxsize=16)
def _count_kept(settings: str, length: int) -> Activations:
    from torch._subclasses.fake_tensor import FakeTensorMode

    config = HFConfig(**json.loads(settings))
    last: Exception | None = None
    for dtype in ("float32", "bfloat16"):  # without a GPU, grouped products of experts are known in bfloat16 only
        try:
            with torch.device("meta"):
                trunk = build(config.replace(dtype=dtype)).train().trunk
            assert isinstance(trunk, HFTrunk)
            with FakeTensorMode(), warnings.catch_warnings(), _unlogged("torch._subclasses.fake_tensor"):
                warnings.simplefilter("ignore")
                _pretend_on_cpu(trunk)
                return _kept_by(trunk, torch.zeros(1, length, dtype=torch.long), config)
        except UserError:
            raise
        except Exception as error:  # every architecture has its own way to fail
            last = error
    raise UserError(
        f"The activations of {config.pretrained} cannot be counted without its weights ({brief(last)}): measure a "
        "short run instead."
    )


def _pretend_on_cpu(trunk: nn.Module) -> None:
    """Replace tensors of the meta device by such that behave as if they were in memory."""
    made: dict[int, nn.Parameter] = {}
    for module in trunk.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                pretended = torch.empty(parameter.shape, dtype=parameter.dtype)
                new = made.setdefault(id(parameter), nn.Parameter(pretended, parameter.requires_grad))
                module._parameters[name] = new
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype)


@contextlib.contextmanager
def _unlogged(name: str) -> Iterator[None]:
    logger = logging.getLogger(name)
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _kept_by(trunk: HFTrunk, tokens: Tensor, config: HFConfig) -> Activations:
    owned = {tensor.untyped_storage()._cdata for tensor in (*trunk.parameters(), *trunk.buffers())}
    units, length = trunk.units()[:COUNTED_BLOCKS], tokens.shape[1]
    for blocks in trunk._block_lists():
        del blocks[COUNTED_BLOCKS:]
    inside = {"norms": 0, "units": 0}
    entered: list[nn.Module] = []
    floats: dict[tuple[int, bool], float] = {}  # by number of the block, 0 for what is not in one
    seen: dict[int, Tensor] = {}  # the tensors themselves, so that no address is used twice

    def note(tensor: Tensor) -> Tensor:
        address = tensor.untyped_storage()._cdata
        is_mask = tensor.shape == (1, 1, length, length)  # shared by all rows and heads, and absent on real devices
        if address not in owned and address not in seen and tensor.is_floating_point() and not is_mask:
            seen[address] = tensor
            place = (len(entered) if inside["units"] else 0, inside["norms"] > 0)
            floats[place] = floats.get(place, 0.0) + tensor.untyped_storage().nbytes() / tensor.itemsize
        return tensor

    def count(module: nn.Module, name: str) -> None:
        module.register_forward_pre_hook(lambda *_: inside.update({name: inside[name] + 1}))
        module.register_forward_hook(lambda *_: inside.update({name: inside[name] - 1}))

    for unit in units:
        unit.register_forward_pre_hook(lambda module, _: entered.append(module))
        count(unit, "units")
    for module in trunk.modules():
        if "Norm" in type(module).__name__:
            count(module, "norms")
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        trunk.body(input_ids=tokens, use_cache=False)

    def mean(numbers: Sequence[int]) -> Kept:
        stream, inner = (sum(floats.get((n, is_norm), 0.0) for n in numbers) for is_norm in (True, False))
        return Kept(stream=stream, inner=inner) * (1 / (length * max(1, len(numbers))))

    # The first block keeps less where nothing before it learns.
    in_unit = mean(range(2, len(units) + 1) if len(units) > 1 else [1])
    return Activations(in_unit, config.num_layers, Kept(stream=config.d_model), mean([0]) + Kept(stream=config.d_model))


def _quantize(trunk: HFTrunk) -> None:
    """Store the frozen matrices of the blocks in four bits (NF4, with scales in eight bits)."""
    package = import_bitsandbytes(f"model.quantize={trunk.config.quantize}")
    dtype, count = getattr(torch, trunk.config.dtype), 0
    for name, module in [pair for unit in trunk.units() for pair in _frozen_linears(unit)]:
        replaced = module.get_submodule(name)
        packed = package.nn.Linear4bit(
            replaced.in_features, replaced.out_features, bias=replaced.bias is not None, compute_dtype=dtype,
            compress_statistics=True, quant_type=trunk.config.quantize, device="meta",
        )  # fmt: skip
        packed.weight = package.nn.Params4bit(
            replaced.weight.data, requires_grad=False, compress_statistics=True, quant_type=trunk.config.quantize,
            module=packed,
        )  # fmt: skip
        packed.bias = replaced.bias
        parent, _, child = name.rpartition(".")
        setattr(module.get_submodule(parent), child, packed.to("cpu"))  # this packs the weights
        count += 1
    if count == 0:
        raise UserError(
            f"{trunk.config.pretrained} has no frozen linear maps that could be stored in four bits: leave "
            "model.quantize out."
        )


def _frozen_linears(unit: nn.Module) -> list[tuple[str, nn.Module]]:
    """The names of a block's linear maps that do not learn, each with the block."""
    return [
        (name, unit)
        for name, module in unit.named_modules()
        if type(module) is nn.Linear and not module.weight.requires_grad
    ]


def _set_dropout(settings: Any, value: float) -> None:
    """Set every dropout of the config, attention's included, instead of those of the model's first training."""
    for name, current in settings.to_dict().items():
        if ("dropout" in name or name.endswith("_pdrop")) and isinstance(current, float | int):
            setattr(settings, name, value)


def _skeleton(config: HFConfig, settings: Any) -> Any:
    from transformers.initialization import no_init_weights

    settings.dtype, dtype = None, getattr(torch, config.dtype)
    with no_init_weights(), _default_dtype(dtype):
        lm = causal_class(settings)(settings)
    lm.tie_weights()
    # As `from_pretrained` does: tables of rotary angles stay float32 whatever the weights are.
    for parameter in lm.parameters():
        if parameter.dtype != dtype:
            parameter.data = parameter.data.to(dtype)
    return lm


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _load(config: HFConfig, settings: Any) -> Any:
    folder = locate(config.pretrained, with_weights=True)
    _check_weights(folder)
    try:
        with silence():
            lm, info = causal_class(settings).from_pretrained(
                folder, config=settings, dtype=getattr(torch, config.dtype), use_safetensors=True,
                local_files_only=True, output_loading_info=True,
            )  # fmt: skip
    except Exception as error:  # a damaged or missing shard, another model's weights: each has its own error
        raise UserError(
            f"The weights in {folder} cannot be read ({type(error).__name__}: {brief(error)}): use another copy."
        ) from None
    for problem in ("missing_keys", "mismatched_keys"):
        if info.get(problem):
            raise UserError(
                f"The weights in {folder} do not fit their config.json: {brief(min(map(str, info[problem])), 80)} is "
                f"one of {len(info[problem])} {problem.replace('_', ' ')}, so use the files that were saved together."
            )
    return lm


def _check_weights(folder: Path) -> None:
    if (folder / "adapter_config.json").is_file():  # transformers would load the model that this file names
        raise UserError(f"{folder} holds adapters beside a model: merge them first, or move adapter_config.json away.")
    if any((folder / name).is_file() for name in WEIGHTS):
        weight_files(folder)  # refuses files outside the folder
        return
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt*")):
        raise UserError(f"{folder} has its weights as pickles, which are never opened: convert them to safetensors.")
    raise UserError(f"There is no {folder / WEIGHTS[0]}: give the folder of a Hugging Face model with its weights.")


def _choose_what_learns(config: HFConfig, lm: Any) -> None:
    names = dict(lm.named_parameters())
    if config.lora is not None:
        _add_adapters(config, lm)
        return
    for pattern in config.freeze:
        matches = [name for name in names if fnmatchcase(name, pattern)]
        if not matches:
            raise UserError(
                f"model.freeze: '{brief(pattern, 60)}' matches no tensor of {config.pretrained}: write it like "
                f"{next(iter(names))}, with * for any part."
            )
        for name in matches:
            names[name].requires_grad_(False)
    if not any(parameter.requires_grad for parameter in names.values()):
        raise UserError("model.freeze leaves nothing to learn: freeze less.")


def _add_adapters(config: HFConfig, lm: Any) -> None:
    assert config.lora is not None
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ModuleNotFoundError:
        raise UserError("model.lora needs peft: install it with `pip install '.[hf]'` in the checkout.") from None
    try:
        inject_adapter_in_model(lora_config(config, lm, LoraConfig), lm, adapter_name=ADAPTER)
    except ValueError as error:
        raise UserError(f"model.lora.targets fits no module of {config.pretrained} ({brief(error)}).") from None


def _load_adapters(adapter: str, lm: Any) -> None:
    """Put the saved adapters into the modules that were made for them. Every tensor must fit."""
    path = Path(adapter) / ADAPTER_WEIGHTS
    with reading(path, "use another copy"):
        saved = safetensors.torch.load_file(path)
    named = {_own_name(name): tensor for name, tensor in saved.items()}
    wanted = {name: tensor for name, tensor in lm.named_parameters() if ".lora_" in name}
    shapes = {name: tuple(tensor.shape) for name, tensor in named.items()}
    expected = {name: tuple(tensor.shape) for name, tensor in wanted.items()}
    wrong = [name for name in expected.keys() | shapes.keys() if expected.get(name) != shapes.get(name)]
    if wrong:
        raise UserError(
            f"{path} does not fit its model: {brief(min(wrong), 80)} is one of {len(wrong)} tensors that differ, so "
            "use the model that the adapters were trained with."
        )
    with torch.no_grad():
        for name, parameter in wanted.items():
            parameter.copy_(named[name])


def _own_name(name: str) -> str:
    """The name of a tensor of peft's file in a model with adapters."""
    stem, _, kind = name.removeprefix("base_model.model.").rpartition(".lora_")
    part, _, rest = kind.partition(".")
    return f"{stem}.lora_{part}.{ADAPTER}{'.' if rest else ''}{rest}"


@torch.no_grad()
def merge_adapters(lm: nn.Module) -> None:
    """W ← W + B·A·α/r in every adapted module, which then is what it was before."""
    for name, module in list(lm.named_modules()):
        if hasattr(module, "merge") and hasattr(module, "get_base_layer"):
            module.merge()
            parent, _, child = name.rpartition(".")
            setattr(lm.get_submodule(parent), child, module.get_base_layer())


def lora_config(config: HFConfig, lm: nn.Module, kind: Any) -> Any:
    """The settings of the adapters as a config of peft. GPT-2 stores its matrices transposed."""
    is_transposed = any(type(module).__name__ == "Conv1D" for module in lm.modules())
    lora = config.lora
    assert lora is not None
    targets: str | list[str] = list(lora.targets)
    if lora.targets in (ALL_LINEAR, (ALL_LINEAR,)):  # peft takes this word only outside a list
        targets = ALL_LINEAR
    return kind(
        r=lora.rank, lora_alpha=lora.alpha, target_modules=targets, lora_dropout=lora.dropout, task_type="CAUSAL_LM",
        base_model_name_or_path=config.shown_name, fan_in_fan_out=is_transposed,
    )  # fmt: skip


@torch.no_grad()
def _check_head(trunk: HFTrunk) -> None:
    """Refuse a model whose logits are not its head applied to its last states, or that looks at later tokens."""
    lm = trunk.lm.eval()
    length = min(PROBE_LENGTH, trunk.config.max_positions)
    tokens = torch.arange(length).remainder(trunk.config.vocab_size).unsqueeze(0)
    other = tokens.clone()
    other[0, -1] = (other[0, -1] + 1) % trunk.config.vocab_size
    with as_sentence(lm.config):
        theirs = lm(input_ids=tokens, use_cache=False).logits.float()
        ours = trunk.head.logits(trunk.body(input_ids=tokens, use_cache=False).last_hidden_state).float()
    bound = 1e-3 * float(theirs.abs().max()) + 1e-6
    name = type(lm).__name__
    if ours.shape != theirs.shape or float((ours - theirs).abs().max()) > bound:
        raise UserError(
            f"{trunk.config.pretrained} is a {name}, whose logits are not its head applied to its last states: this "
            "kind of model is not supported."
        )
    changed = lm(input_ids=other, use_cache=False).logits.float()
    if length > 1 and float((changed - theirs)[:, :-1].abs().max()) > bound:
        raise UserError(f"{trunk.config.pretrained} is a {name} that looks at later tokens: use a causal model.")
