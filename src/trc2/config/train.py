"""How a run learns, evaluates and is watched."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from trc2.config.section import Count, Decay, Fraction, NonNegative, Positive, Section, Seed, Size


class TrainConfig(Section):
    """Optimization. All of it is *learning*: a resumed run may not change it."""

    seed: Seed = 0
    sequence_length: Size = 128
    batch_size: Size = Field(8, description="sequences per micro-batch")
    micro_batches: Size = Field(1, description="micro-batches per optimizer step, over all ranks and accumulation")
    learning_rate: Positive = 1e-3
    betas: tuple[Decay, Decay] = (0.9, 0.95)
    weight_decay: NonNegative = 0.1
    schedule: Literal["per_task", "stream"] = "per_task"
    warmup_steps: Annotated[int, Field(ge=0, le=2**31 - 1)] = 20
    min_lr_ratio: Fraction = 0.1
    clip_norm: Positive = 1.0
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    max_nonfinite_steps: Count = Field(10, description="non-finite steps in a row after which the run stops")

    @property
    def tokens_per_step(self) -> int:
        return self.batch_size * self.micro_batches * self.sequence_length


class ReplayControlConfig(Section):
    """The replay controller; its settings are the paper's. λ_0, B_0 and ρ_0, where it starts, are `model.replay_…`."""

    mode: Literal["off", "fixed", "closed_loop"] = Field(
        "closed_loop",
        description="off: no replay; fixed: λ_0, B_0 and ρ_0 throughout; closed_loop: by measured forgetting",
    )
    every_steps: Count = Field(240, description="N_ctrl")
    coefficient_range: tuple[NonNegative, NonNegative] = (0.0, 0.15)
    target_gap: NonNegative = Field(0.001, description="g_tar")
    proportional_gain: NonNegative = Field(1.0, description="k_p")
    integral_gain: NonNegative = Field(0.05, description="k_i")
    integral_limit: NonNegative = Field(1.0, description="I_max")
    smoothing: Fraction = Field(0.7, description="β of the moving average of the gap")
    batch_range: tuple[Size, Size] = (2, 6)
    batch_gain: NonNegative = Field(4.0, description="k_B")
    long_gain: NonNegative = Field(4.0, description="k_ρ")

    @model_validator(mode="after")
    def _ranges_hold(self) -> ReplayControlConfig:
        _check_range("coefficient_range", self.coefficient_range)
        _check_range("batch_range", self.batch_range)
        return self


def _check_range(name: str, limits: tuple[float, float]) -> None:
    low, high = limits
    if low > high:
        raise ValueError(f"{name}=[{low}, {high}] is reversed: write the smaller one first.")


class EvalConfig(Section):
    """When and on how much the run is measured."""

    every_steps: Count = 50
    batch_size: Size = 16
    max_batches: Count | None = Field(None, description="validation batches per task; None means all")
    text_sequences: Annotated[int, Field(ge=0, le=2**31 - 1)] = Field(
        32, description="sequences scored as text; 0 turns it off"
    )
    text_when: Literal["boundaries", "always"] = Field(
        "boundaries",
        description="score text before training and at task boundaries only, or always",
    )
    test: bool = Field(True, description="score the test splits once, at the end")
    fence: bool = Field(False, description="hash all state around every evaluation and fail if anything moved")


class OutputConfig(Section):
    """Where a run is written and who watches. All of it is *execution*: free to change on resume."""

    folder: Path = Path("runs/run")
    log_every: Count = 20
    checkpoint_every: Count = 200
    keep_checkpoints: Count = 2
    report_to: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ()
    device: str = "auto"
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    deterministic: bool = False
    compile: bool = Field(
        False, description="torch.compile for attention, router and norms: about 40 s at the start, a few percent later"
    )

    parallel: Literal["ddp", "fsdp"] = Field(
        "ddp", description="with several processes: the whole model on each, or its columns and blocks divided"
    )
    recompute: bool = Field(
        False, description="run every column or block again in the backward pass instead of keeping what it computed"
    )
    check_ranks: bool = Field(False, description="compare the state of all processes after every step")

    @field_validator("folder")
    @classmethod
    def _home_is_found(cls, folder: Path) -> Path:
        """`~` at the beginning is the home folder, as a shell would have it; a relative path stays relative."""
        try:
            return folder.expanduser()
        except RuntimeError:
            raise ValueError(f"{folder} begins with the home of nobody here: write the path out.") from None
