"""`TRC2ForCausalLM`: any of our backbones as a transformers model that loads, generates and trains."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.generation.utils import GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.modeling_utils import PreTrainedModel
from transformers.utils import logging

from trc2.backbones.compiled import CompiledSteps
from trc2.backbones.registry import build_model
from trc2.backbones.shell import Backbone
from trc2.errors import UserError
from trc2.hf.configuration import TRC2PretrainedConfig
from trc2.hf.states import placeholder_ids, record_hidden_states, replace_embeddings
from trc2.nn.decoding import Decoding
from trc2.nn.init import STD, normal_
from trc2.nn.rope import RotaryTable
from trc2.ops.head_loss import IGNORE_INDEX
from trc2.recall.reader import open_recall
from trc2.recall.store import store_path
from trc2.replay.stores import token_dtype
from trc2.stream.tokenizer import read_tokenizer

Memory = Literal["read", "off"]
Losses = dict[str, Tensor]

logger = logging.get_logger(__name__)


@dataclass
class TRC2Output(CausalLMOutputWithPast):
    """`losses` are the parts of the objective by name, unweighted, and under `objective` their weighted sum.

    `loss` is that sum in training mode and the next-token loss `losses["lm"]` in evaluation mode.
    """

    losses: Losses | None = None


class DecodingCache(Cache):
    """Our decoding state where `generate` expects a cache."""

    is_compileable = False

    def __init__(self, decoding: Decoding) -> None:
        super().__init__(layers=[])
        self.decoding = decoding

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.decoding.length

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.decoding.reorder(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        self.decoding.reorder(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        raise UserError("This cache cannot be repeated: repeat the prompt before its first forward instead.")

    def crop(self, tokens_to_remove: int) -> None:
        raise UserError("This cache cannot forget its last tokens: assisted generation does not work with it.")


class TRC2ForCausalLM(PreTrainedModel, GenerationMixin):
    """A backbone with the interface of transformers. `net` is the network itself.

    `labels` are unshifted, as usual there. The memory is only ever read, except in training mode with labels, where
    writes are queued until `MemoryCallback` (or your own loop) flushes them.
    """

    config_class = TRC2PretrainedConfig
    config: TRC2PretrainedConfig
    base_model_prefix = "net"
    main_input_name = "input_ids"
    _supports_sdpa = True
    supports_gradient_checkpointing = True
    _is_stateful = True  # what transformers calls a cache that cannot forget its last tokens
    _no_split_modules = ("CorticalColumn", "Block")

    def __init__(self, config: TRC2PretrainedConfig, net: Backbone | None = None) -> None:
        super().__init__(config)
        config.check_is_tied()
        self.net = build_model(config.settings) if net is None else net
        embedding = self.net.get_input_embeddings()
        # Has no weights of its own: `post_init` ties it, or `from_pretrained` does, which must first see both names.
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False, device="meta")
        source = next(name for name, module in self.named_modules() if module is embedding)
        self._tied_weights_keys = {"lm_head.weight": f"{source}.weight"}
        if not embedding.weight.is_meta:
            _mark_as_initialised(*self.net.parameters(), *self.net.buffers())
        self.post_init()

    @classmethod
    def wrap(cls, net: Backbone) -> TRC2ForCausalLM:
        """The face of a network that exists already, in the mode it is in. Both share their weights."""
        return cls(TRC2PretrainedConfig(backbone=net.config), net).train(net.training)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | PathLike[str], *args: Any, **kwargs: Any) -> Any:
        """As usual, but a missing tensor is an error: a network with random parts must not pass for a saved one.

        With `output_loading_info=True` the caller is told which tensors are missing. These are as in a new network.
        """
        wants_info = kwargs.pop("output_loading_info", False)
        model, info = super().from_pretrained(pretrained_model_name_or_path, *args, output_loading_info=True, **kwargs)
        for problem in ("missing_keys", "mismatched_keys", "unexpected_keys"):
            if info.get(problem) and not wants_info:
                first = sorted(map(str, info[problem]))[0]
                raise UserError(
                    f"The weights in {pretrained_model_name_or_path} do not fit their config.json: {first} is one of "
                    f"{len(info[problem])} {problem.replace('_', ' ')}, so use the files that were saved together."
                )
        model.net.sync_from_buffers()
        folder = Path(pretrained_model_name_or_path)
        if store_path(folder).exists():  # documents that the model was taught, see docs/recall.md
            tokenizer = read_tokenizer(folder).with_settings(False, model.net.config.name == "hf")
            model.net.recall = open_recall(folder, model.net.config.vocab_size, tokenizer.fingerprint())
        return (model, info) if wants_info else model

    def initialize_weights(self) -> None:
        """Give every tensor that no file held what it has in a new network.

        Networks draw their weights when they are built, some by rules of their own, so one is built to copy from.
        """
        for module in self.net.modules():
            if isinstance(module, RotaryTable):
                module.derive()
                _mark_as_initialised(module.cos, module.sin)
        lacking = {
            name: tensor
            for name, tensor in (*self.net.named_parameters(), *self.net.named_buffers())
            if not getattr(tensor, "_is_hf_initialized", False) and not tensor.is_meta
        }
        if lacking:
            new = build_model(self.config.settings)
            tensors = {**dict(new.named_parameters()), **dict(new.named_buffers())}
            for name, tensor in lacking.items():
                with torch.no_grad():
                    tensor.copy_(tensors[name])
                _mark_as_initialised(tensor)
        super().initialize_weights()

    def _init_weights(self, module: nn.Module) -> None:
        """For what transformers adds to a network: an embedding of another size. The rest is `initialize_weights`'."""
        if isinstance(module, nn.Embedding) and not getattr(module.weight, "_is_hf_initialized", False):
            normal_(module.weight, STD)

    def get_input_embeddings(self) -> nn.Embedding:
        return self.net.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.net.set_input_embeddings(value)

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        self.lm_head = new_embeddings

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> Any:
        resized = super().resize_token_embeddings(*args, **kwargs)
        self.net.config = self.net.config.replace(vocab_size=resized.num_embeddings)
        self.config.vocab_size = resized.num_embeddings
        if self.net.replay is not None:
            self.net.replay.set_token_type(token_dtype(resized.num_embeddings))
        return resized

    def gradient_checkpointing_enable(
        self, gradient_checkpointing_kwargs: dict[str, Any] | None = None, **options: Any
    ) -> None:
        """All layers run again in the backward pass, never reentrantly, whatever the keyword arguments say."""
        _reject({name: value for name, value in options.items() if value != 1})  # of every_n_layers 1 is the default
        super().gradient_checkpointing_enable(gradient_checkpointing_kwargs)

    @property
    def gradient_checkpointing(self) -> bool:
        """What transformers sets and asks: whether layers run again in the backward pass."""
        return self.net.trunk.recompute

    @gradient_checkpointing.setter
    def gradient_checkpointing(self, wanted: bool) -> None:
        self.net.trunk.recompute = wanted

    # ------------------------------------------------------------------------------------------------------ forward

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        past_key_values: DecodingCache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        memory: Memory = "read",
        logits_to_keep: int = 0,
        return_logits: bool = True,
        num_items_in_batch: Tensor | int | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> TRC2Output | tuple[Any, ...]:
        """Logits, and with `labels` the loss: the whole objective in training mode, else the next-token loss alone.

        `memory="off"` leaves the episodic memory and taught documents unread. `return_logits=False` never forms a
        (B, T, V) tensor.
        With `num_items_in_batch` the loss is the batch's share of a mean over that many labels.
        `hidden_states` are what enters every layer, and last what the head gets.
        """
        _reject(kwargs)
        if (input_ids is None) == (inputs_embeds is None):
            what = "input_ids is missing" if input_ids is None else "input_ids and inputs_embeds were both given"
            raise UserError(f"{what}: give token ids, or inputs_embeds in their place.")
        if memory not in ("read", "off"):
            raise UserError(f"memory={memory!r} is not known: use 'read' or 'off'.")
        reads_memory = memory == "read"
        if inputs_embeds is not None and self.net.recall is not None and reads_memory:
            raise UserError("Taught documents cannot be found by inputs_embeds: give input_ids, or set memory='off'.")
        x = input_ids if inputs_embeds is None else placeholder_ids(self.net, inputs_embeds)
        assert x is not None
        if use_cache is None:
            use_cache = self.config.use_cache and not self.net.training
        wants_states = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        with replace_embeddings(self.net, inputs_embeds), record_hidden_states(self.net, bool(wants_states)) as states:
            if labels is not None:
                self._check_can_learn_from(inputs_embeds)
                output = self._learn(x, attention_mask, labels, reads_memory, return_logits, num_items_in_batch)
            elif past_key_values is not None or use_cache:
                cache = DecodingCache(self.net.start_decoding()) if past_key_values is None else past_key_values
                output = self._decode(x, attention_mask, cache, reads_memory, logits_to_keep)
            else:
                logits, _ = self.net(x, valid=attention_mask, read_memory=reads_memory)
                output = TRC2Output(logits=logits[:, -logits_to_keep:])
        if wants_states:
            output["hidden_states"] = tuple(states)
        is_dict = self.config.return_dict if return_dict is None else return_dict
        return output if is_dict else output.to_tuple()

    def _check_can_learn_from(self, embeddings: Tensor | None) -> None:
        """Reject embeddings in training with replay: the stores would keep placeholders instead of token ids."""
        if embeddings is not None and self.net.training and self.net.replay is not None:
            raise UserError(
                "inputs_embeds cannot be learned from where tokens are stored for replay: give token ids as input_ids."
            )

    def _decode(
        self, x: Tensor, mask: Tensor | None, cache: DecodingCache, reads_memory: bool, keep: int
    ) -> TRC2Output:
        valid = None if mask is None else mask[:, -x.shape[1] :]
        logits = self.net.decode(x, cache.decoding, valid=valid, read_memory=reads_memory, last=keep or None)
        return TRC2Output(logits=logits, past_key_values=cache)

    def _learn(
        self,
        x: Tensor,
        mask: Tensor | None,
        labels: Tensor,
        reads_memory: bool,
        return_logits: bool,
        num_items: Tensor | int | None,
    ) -> TRC2Output:
        """Shift the labels to targets and run the network's own objective. In training mode it also queues writes."""
        targets = nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORE_INDEX)
        logits, aux = self.net(x, targets, valid=mask, return_logits=return_logits, read_memory=reads_memory)
        losses = {name.removeprefix("loss_"): value for name, value in aux.items() if name.startswith("loss_")}
        losses["objective"] = aux["loss"]
        loss = aux["loss"] if self.net.training else aux["loss_lm"]
        if num_items is not None:
            loss = loss * (aux["num_labels"] / num_items)
        return TRC2Output(loss=loss, logits=logits, losses=losses)

    # ---------------------------------------------------------------------------------------------------- generation

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        """`generate` gets our state. A cache implementation of transformers would not hold the router's means."""
        if self.net.steps is None:
            self.net.steps = CompiledSteps(self.net)
        if generation_config.use_cache is not False and model_kwargs.get("past_key_values") is None:
            model_kwargs["past_key_values"] = DecodingCache(self.net.start_decoding())

    def _prepare_generated_length(
        self,
        generation_config: Any,
        has_default_max_length: bool,
        has_default_min_length: bool,
        model_input_name: str,
        input_ids_length: int,
        inputs_tensor: Tensor,
    ) -> Any:
        """`generate` ends at the last position, as `trc2 generate` does, however many tokens were asked for."""
        prepared = super()._prepare_generated_length(
            generation_config, has_default_max_length, has_default_min_length, model_input_name, input_ids_length,
            inputs_tensor,
        )  # fmt: skip
        prompt, limit = inputs_tensor.shape[1], self.config.max_position_embeddings
        if prompt >= limit:
            raise UserError(f"The prompt has {prompt} tokens and the model {limit} positions: shorten the prompt.")
        # Tokens that were given as embeddings are not in what `generate` counts.
        last = limit - (prompt - input_ids_length if model_input_name == "inputs_embeds" else 0)
        if prepared.max_length > last:
            logger.warning_once(f"Generation ends at the model's last position, {limit}.")
            prepared.max_length = last
        return prepared


def _reject(kwargs: dict[str, Any]) -> None:
    """Reject arguments that would change the result and are not implemented. Flags at a harmless value pass."""
    for name, value in kwargs.items():
        if value is None or value is False:
            continue
        raise UserError(f"{name} is not supported by TRC2ForCausalLM: leave it out.")


def _mark_as_initialised(*tensors: Tensor) -> None:
    """By the flag with which transformers tells loaded tensors from those that no file held."""
    for tensor in tensors:
        tensor._is_hf_initialized = True  # type: ignore[attr-defined]
