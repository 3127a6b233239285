"""Our settings inside a transformers config."""

from __future__ import annotations

from typing import Any

from transformers.configuration_utils import PreTrainedConfig

from trc2.backbones.saved import MODEL_TYPE, SCHEMA
from trc2.config import BackboneConfig, TRC2Config, model_config
from trc2.errors import UserError


class TRC2PretrainedConfig(PreTrainedConfig):
    """`backbone` holds the settings of the network, of TRC² or of any other backbone by its `name`."""

    model_type = MODEL_TYPE
    # Transformers' own conventions: its Trainer adds a list to the first.
    keys_to_ignore_at_inference = ["past_key_values", "losses"]  # noqa: RUF012
    attribute_map = {"num_attention_heads": "num_heads"}  # noqa: RUF012

    def __init__(self, backbone: dict[str, Any] | BackboneConfig | None = None, **kwargs: Any) -> None:
        if kwargs.pop("schema", SCHEMA) != SCHEMA:
            raise UserError(f"This model was saved by another version: save it again with schema {SCHEMA}.")
        kwargs.pop("sha256", None)  # of the file it was read from. What is saved next has its own
        kwargs.setdefault("tie_word_embeddings", True)
        if not isinstance(backbone, BackboneConfig):
            backbone = TRC2Config() if backbone is None else model_config(backbone)
        self.backbone = backbone.model_dump()
        self.schema = SCHEMA
        self.use_cache = bool(kwargs.pop("use_cache", True))
        super().__init__(**kwargs)
        self.check_is_tied()

    def check_is_tied(self) -> None:
        if not self.tie_word_embeddings:
            raise UserError("tie_word_embeddings=False cannot be built: the head is the embedding, leave it True.")

    @property
    def settings(self) -> Any:
        """The validated settings of the network."""
        return model_config(self.backbone)

    # The names transformers and its friends look for.

    @property
    def vocab_size(self) -> int:
        return int(self.backbone["vocab_size"])

    @vocab_size.setter
    def vocab_size(self, value: int) -> None:
        self.backbone = {**self.backbone, "vocab_size": value}

    @property
    def hidden_size(self) -> int:
        return int(self.backbone["d_model"])

    @property
    def num_hidden_layers(self) -> int:
        return int(self.settings.depth)

    @property
    def num_heads(self) -> int:
        return int(self.backbone["num_heads"])

    @property
    def max_position_embeddings(self) -> int:
        return int(self.backbone["max_positions"])
