"""`TRC2ForCausalLM`: any of our backbones as a transformers model that loads, generates and trains."""

from __future__ import annotations

from os import PathLike
from typing import Any, Literal

from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.generation.utils import GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.modeling_utils import PreTrainedModel

from trc2.backbones.registry import build_model
from trc2.backbones.shell import Backbone
from trc2.errors import UserError
from trc2.hf.configuration import TRC2PretrainedConfig
from trc2.nn.decoding import Decoding
from trc2.nn.rope import RotaryTable
from trc2.ops.head_loss import IGNORE_INDEX

Memory = Literal["read", "off"]


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
    """A backbone with the interface of transformers; `net` is the network itself.

    `labels` are unshifted, as usual there. The memory is only ever read, except in training mode with labels, where
    writes are queued until `MemoryCallback` (or your own loop) flushes them.
    """

    config_class = TRC2PretrainedConfig
    config: TRC2PretrainedConfig
    base_model_prefix = "net"
    main_input_name = "input_ids"
    _supports_sdpa = True
    _no_split_modules = ("CorticalColumn", "Block")

    def __init__(self, config: TRC2PretrainedConfig, net: Backbone | None = None) -> None:
        super().__init__(config)
        self.net = build_model(config.settings) if net is None else net
        embedding = self.net.get_input_embeddings()
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False, device="meta")
        self.lm_head.weight = embedding.weight
        source = next(name for name, module in self.named_modules() if module is embedding)
        self._tied_weights_keys = {"lm_head.weight": f"{source}.weight"}
        self.post_init()

    @classmethod
    def wrap(cls, net: Backbone) -> TRC2ForCausalLM:
        """The face of a network that exists already; both share their weights."""
        return cls(TRC2PretrainedConfig(backbone=net.config), net)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | PathLike[str], *args: Any, **kwargs: Any) -> Any:
        """As usual, but a missing tensor is an error: a network with random parts must not pass for a saved one."""
        wants_info = kwargs.pop("output_loading_info", False)
        model, info = super().from_pretrained(pretrained_model_name_or_path, *args, output_loading_info=True, **kwargs)
        for problem in ("missing_keys", "mismatched_keys", "unexpected_keys"):
            if info.get(problem):
                first = sorted(map(str, info[problem]))[0]
                raise UserError(
                    f"The weights in {pretrained_model_name_or_path} do not fit their config.json: {first} is one of "
                    f"{len(info[problem])} {problem.replace('_', ' ')}; use the files that were saved together."
                )
        model.net.follow_state()
        return (model, info) if wants_info else model

    def _init_weights(self, module: nn.Module) -> None:
        """Networks initialise themselves when they are built; only what no file holds is derived again."""
        if isinstance(module, RotaryTable):
            module.derive()

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
        return resized

    # ------------------------------------------------------------------------------------------------------ forward

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        past_key_values: DecodingCache | None = None,
        use_cache: bool | None = None,
        memory: Memory = "read",
        logits_to_keep: int = 0,
        return_logits: bool = True,
        num_items_in_batch: Tensor | int | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Logits, and with `labels` the whole training objective.

        `memory="off"` leaves the episodic memory unread. `return_logits=False` never forms a (B, T, V) tensor.
        With `num_items_in_batch` the loss is the batch's share of a mean over that many labels.
        """
        _reject(kwargs)
        if input_ids is None:
            raise UserError("input_ids is missing: give token ids, inputs_embeds cannot be used.")
        if memory not in ("read", "off"):
            raise UserError(f"memory={memory!r} is not known: use 'read' or 'off'.")
        keeps_cache = labels is None and (past_key_values is not None or bool(use_cache))
        if labels is not None:
            output = self._learn(input_ids, attention_mask, labels, memory, return_logits, num_items_in_batch)
        elif keeps_cache:
            cache = DecodingCache(self.net.start_decoding()) if past_key_values is None else past_key_values
            output = self._decode(input_ids, attention_mask, cache, memory, logits_to_keep)
        else:
            logits, _ = self.net(input_ids, valid=attention_mask, read_memory=memory == "read")
            output = CausalLMOutputWithPast(logits=logits[:, -logits_to_keep:])
        is_dict = self.config.return_dict if return_dict is None else return_dict
        return output if is_dict else output.to_tuple()

    def _decode(
        self, input_ids: Tensor, mask: Tensor | None, cache: DecodingCache, memory: Memory, keep: int
    ) -> CausalLMOutputWithPast:
        valid = None if mask is None else mask[:, -input_ids.shape[1] :]
        logits = self.net.decode(
            input_ids, cache.decoding, valid=valid, read_memory=memory == "read", last=keep or None
        )
        return CausalLMOutputWithPast(logits=logits, past_key_values=cache)

    def _learn(
        self,
        input_ids: Tensor,
        mask: Tensor | None,
        labels: Tensor,
        memory: Memory,
        return_logits: bool,
        num_items: Tensor | int | None,
    ) -> CausalLMOutputWithPast:
        """Shift the labels to targets and run the network's own objective; in training mode it also queues writes."""
        targets = nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORE_INDEX)
        logits, aux = self.net(
            input_ids, targets, valid=mask, return_logits=return_logits, read_memory=memory == "read"
        )
        loss = aux["loss"] if num_items is None else aux["loss"] * (aux["num_labels"] / num_items)
        return CausalLMOutputWithPast(loss=loss, logits=logits)

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        """`generate` gets our state; a cache implementation of transformers would not hold the router's means."""
        if generation_config.use_cache is not False and model_kwargs.get("past_key_values") is None:
            model_kwargs["past_key_values"] = DecodingCache(self.net.start_decoding())


def _reject(kwargs: dict[str, Any]) -> None:
    """What would change the result if it were heeded is refused; flags at their harmless value pass."""
    for name, value in kwargs.items():
        if value is None or value is False:
            continue
        raise UserError(f"{name} is not supported by TRC2ForCausalLM: leave it out.")
