"""Settings that all backbones share: vocabulary, width, positions, and the two replay stores."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from trc2.config.section import Decay, Fraction, NonNegative, Positive, Section, Seed, Share, Size

MAX_PARTS = 100_000  # building more takes minutes, whatever their size


class BackboneConfig(Section):
    """Settings of any language model this package trains. `name` says which one."""

    # Settings that turn a part of the network off. "Backbone only" is the network with all of them off.
    switches: ClassVar[tuple[str, ...]] = ()

    name: str = Field(description="which backbone")
    vocab_size: Size = Field(
        50257, description="number of token ids with an embedding. It must be at least the size of the tokenizer."
    )
    d_model: Size = Field(768, description="width of the residual stream")
    max_positions: Size = Field(1024, description="the longest sequence the network can read")
    dropout: Decay = Field(0.0, description="share of activations dropped in training")
    norm_eps: Positive = Field(1e-6, description="ε of the norms")

    # replay
    replay: bool = Field(False, description="whether chunks of earlier text are stored and trained on again")
    replay_recent_chunks: Size = Field(2048, description="number of chunks in the recency buffer")
    replay_long_chunks: Size = Field(16_384, description="size of the reservoir of all chunks ever seen")
    replay_chunk_length: Annotated[int, Field(ge=2, le=2**31 - 1)] = Field(128, description="tokens of a stored chunk")
    replay_batch_size: Size = Field(4, description="B_0: chunks replayed per micro-batch")
    replay_coefficient: NonNegative = Field(0.05, description="λ_0: weight of the replay loss")
    replay_share: Share | None = Field(
        None,
        description="share of a step's tokens that is replayed. It replaces coefficient and batch size. Every "
        "token then has the same weight.",
    )
    replay_long_fraction: Fraction = Field(
        0.5, description="ρ_0: share of replayed chunks that comes from the reservoir"
    )
    replay_keep: Literal["uniform", "loss", "surprise", "balanced"] = Field(
        "uniform",
        description="text that the reservoir keeps. uniform treats all text alike. loss and surprise prefer "
        "difficult text. balanced keeps equal numbers of chunks from all stretches of the stream. A "
        "new stretch begins where the loss jumps.",
    )
    replay_seed: Seed | None = Field(
        None,
        description="seed of the draws from the replay stores. None means train.seed, or 0 for a model without a "
        "stream.",
    )
    max_unflushed_batches: Size = Field(
        256, description="unflushed micro-batches that are held before the oldest is dropped"
    )

    # objective
    lambda_router: NonNegative = Field(1.0, description="weight of all router losses")
    lambda_load_balance: NonNegative = Field(0.01, description="weight of the experts' balance loss")

    @model_validator(mode="after")
    def _can_be_built(self) -> BackboneConfig:
        if self.num_parts > MAX_PARTS:
            raise ValueError(
                f"The depth of {self.depth} gives a network of {self.num_parts} blocks, experts or adapters: choose "
                f"fewer, at most {MAX_PARTS} in all."
            )
        return self

    @model_validator(mode="after")
    def _replays_one_way(self) -> BackboneConfig:
        """Replay has one strength: a share of the tokens, or λ_rep and B_R, not both."""
        for name in ("replay_coefficient", "replay_batch_size"):
            value = getattr(self, name)
            if self.replay_share is not None and value != BackboneConfig.model_fields[name].default:
                raise ValueError(
                    f"replay_share={self.replay_share} and {name}={value} both say how strongly is replayed: set "
                    f"replay_share to null, or leave {name} out."
                )
        return self

    @model_validator(mode="after")
    def _surprise_needs_a_memory(self) -> BackboneConfig:
        if self.replay_keep == "surprise" and not self.has_critic:
            raise ValueError("replay_keep=surprise needs the memory's critic, which this model lacks: choose loss.")
        return self

    def with_horizons(self, steps: int) -> BackboneConfig:
        """The same settings, with those that follow from the steps of the stream filled in."""
        return self

    def backbone_only(self) -> BackboneConfig:
        """The same network with all switches off."""
        return self.replace(**dict.fromkeys(self.switches, False))

    def complete(self) -> BackboneConfig:
        """The same network with all switches on."""
        return self.replace(**dict.fromkeys(self.switches, True))

    def memory_bytes_sent(self, rows: int, length: int, micro_batches: int) -> float:
        """Bytes a rank sends in a step so that the memory stays equal on all ranks."""
        return 0.0

    def check_tasks(self, num_tasks: int) -> None:
        """Raise a ValueError if the backbone cannot learn so many tasks one after the other."""

    @property
    def learns_other_weights_per_task(self) -> bool:
        """Whether a new task trains other weights than the one before."""
        return False

    @property
    def family(self) -> str:
        """The architecture's name in tables and figures."""
        return self.name

    @property
    def pretrained_from(self) -> str | None:
        """The folder of the weights that training begins with. None if they are drawn at random."""
        return None

    def cheaper_ways(self) -> dict[str, dict[str, Any]]:
        """Settings that train the model with less memory, by name."""
        return {}

    @property
    def has_critic(self) -> bool:
        """Whether the surprise of every token is estimated."""
        return False

    @property
    def is_quantized(self) -> bool:
        """Whether the frozen matrices of the blocks are stored in four bits."""
        return False

    @property
    def depth(self) -> int:
        """How many blocks lie on top of each other, whatever this backbone calls them."""
        raise NotImplementedError

    @property
    def num_parts(self) -> int:
        """How many modules are built one by one: blocks, or the experts or adapters in all of them."""
        return self.depth

    @property
    def read_slots(self) -> int:
        """How many memory slots a query sees once the memory is full. 0 without one."""
        return 0


def divides(name: str, value: int, divisor_name: str, divisor: int) -> None:
    """Raise unless the divisor divides the value."""
    if value % divisor:
        raise ValueError(
            f"{name}={value} is not divisible by {divisor_name}={divisor}: choose a multiple of {divisor}."
        )


def even_heads(d_model: int, num_heads: int) -> None:
    """Raise unless the heads have an even width, which rotary positions need."""
    if d_model // num_heads % 2:
        raise ValueError(
            f"d_model={d_model} with num_heads={num_heads} gives odd heads of width {d_model // num_heads}: "
            "rotary positions need an even width, so change num_heads."
        )


def at_most(name: str, value: int, limit_name: str, limit: int) -> None:
    """Raise unless the value keeps the limit."""
    if value > limit:
        raise ValueError(f"{name}={value} is more than {limit_name}={limit}: choose at most as many.")


def round_up(value: float, multiple: int) -> int:
    """The smallest multiple that is not below the value."""
    return math.ceil(value / multiple) * multiple
