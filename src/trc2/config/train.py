"""How a run learns, evaluates and is watched."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from trc2.config.metric import MetricConfig
from trc2.config.section import Count, Decay, Fraction, NonNegative, Positive, Section, Seed, Share, Size


class TrainConfig(Section):
    """Optimization. All of it is *learning*: a resumed run may not change it."""

    seed: Seed = Field(0, description="seed of weights, batches, replay and reservoir")
    sequence_length: Size = Field(128, description="T: tokens of a row")
    batch_size: Size = Field(8, description="sequences per micro-batch")
    micro_batches: Size = Field(1, description="micro-batches per optimizer step, over all ranks and accumulation")
    optimizer: Literal["adamw", "adamw_8bit"] = Field(
        "adamw",
        description="adamw_8bit keeps the two averages of AdamW in eight bits instead of 32. It needs bitsandbytes.",
    )
    learning_rate: Positive = Field(1e-3, description="peak learning rate of AdamW")
    betas: tuple[Decay, Decay] = Field(
        (0.9, 0.95), description="decays of AdamW's averages of the gradient and its square"
    )
    weight_decay: NonNegative = Field(
        0.1, description="AdamW's weight decay, which acts on tensors of two or more dimensions"
    )
    schedule: Literal["per_task", "stream", "wsd", "infinite"] = Field(
        "per_task",
        description="learning rate schedule. per_task and stream have a warm-up and a cosine, per task or over "
        "the stream. wsd and infinite hold a constant rate. They anneal a copy of the run before "
        "every task boundary.",
    )
    warmup_steps: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = Field(
        None, description="steps in which the learning rate rises. None means 1/22 of the scheduled steps."
    )
    min_lr_ratio: Fraction = Field(0.1, description="share of the peak that the cosine ends at")
    anneal_share: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        0.1, description="wsd and infinite: the anneal takes this last share of a task's steps"
    )
    cooldown_steps: Annotated[int, Field(ge=0, le=2**31 - 1)] = Field(
        100, description="infinite: cosine steps from the peak to the constant rate, after the warm-up"
    )
    constant_lr_ratio: Fraction = Field(0.5, description="infinite: the constant rate as a share of the peak")
    clip_norm: Positive = Field(1.0, description="the largest norm of the gradients")
    clip_critic_apart: bool = Field(
        True,
        description="whether the gradients of the memory's critic are clipped by themselves. If false, all "
        "gradients are clipped together, as in the paper.",
    )
    precision: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="number format of training. auto chooses a format that suits the device."
    )
    max_nonfinite_steps: Count = Field(10, description="non-finite steps in a row after which the run stops")

    def warmup_of(self, scheduled_steps: int) -> int:
        """Warm-up steps of a schedule of this length. The default is the paper's share, 1,000 of 22,000."""
        wanted = round(scheduled_steps / 22) if self.warmup_steps is None else self.warmup_steps
        return min(wanted, scheduled_steps)

    @property
    def branches(self) -> bool:
        """Whether tasks are annealed on a branch, and the next one goes on from before it."""
        return self.schedule in ("wsd", "infinite")

    @property
    def tokens_per_step(self) -> int:
        return self.batch_size * self.micro_batches * self.sequence_length


class ReplayControlConfig(Section):
    """The replay controller, with the paper's settings. It starts at λ_0, B_0 and ρ_0, which are `model.replay_…`."""

    mode: Literal["off", "fixed", "closed_loop"] = Field(
        "closed_loop",
        description="off turns replay off. fixed keeps λ_0, B_0 and ρ_0 throughout. closed_loop adapts them to "
        "measured forgetting.",
    )
    every_steps: Count | None = Field(
        None,
        description="N_ctrl: steps between two measurements of forgetting. None means the stream's steps · "
        "240/22,000, at least 10.",
    )
    coefficient_range: tuple[NonNegative, NonNegative] = Field((0.0, 0.15), description="λ_min and λ_max")
    target_gap: NonNegative = Field(0.001, description="g_tar: the forgetting that the controller aims at")
    proportional_gain: NonNegative = Field(1.0, description="k_p: how strongly λ_rep follows the gap")
    integral_gain: NonNegative = Field(0.05, description="k_i: how strongly λ_rep follows the sum of gaps")
    integral_limit: NonNegative = Field(1.0, description="I_max: the largest sum of gaps")
    smoothing: Fraction = Field(0.7, description="β of the moving average of the gap")
    batch_range: tuple[Size, Size] = Field((2, 6), description="B_min and B_max")
    share_range: tuple[Share, Share] = Field(
        (0.0, 0.5),
        description="range of model.replay_share. If the share is set, it follows the gap with the gains of λ_rep.",
    )
    batch_gain: NonNegative = Field(4.0, description="k_B: how strongly B_R follows the gap")
    long_gain: NonNegative = Field(4.0, description="k_ρ: how strongly ρ_long follows the gap")
    jump_gain: NonNegative = Field(
        0.0, description="k_f: how strongly λ_rep, or the share, follows a jump of the training loss. 0 turns this off."
    )
    jump_margin: NonNegative = Field(
        0.25, description="a rise of the loss above its running mean counts as a jump only beyond this margin"
    )
    jump_decay: Decay = Field(0.95, description="δ: share of a jump's added replay that remains one step later")
    loss_ema_decay: Decay = Field(0.95, description="μ of the running mean of the loss")

    @property
    def period(self) -> int:
        """Steps between two measurements. Without a stream, those of the paper."""
        return 240 if self.every_steps is None else self.every_steps

    @model_validator(mode="after")
    def _ranges_hold(self) -> ReplayControlConfig:
        for name in ("coefficient_range", "batch_range", "share_range"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"{name}=[{low}, {high}] is reversed: write the smaller one first.")
        return self


class EvalConfig(Section):
    """When and on how much the run is measured."""

    every_steps: Count = Field(50, description="steps between evaluations")
    batch_size: Size = Field(16, description="sequences scored at once")
    max_batches: Count | None = Field(None, description="validation batches per task. None means all.")
    text_sequences: Annotated[int, Field(ge=0, le=2**31 - 1)] = Field(
        32, description="sequences scored as text. 0 turns text scores off."
    )
    text_metrics_at: Literal["boundaries", "always"] = Field(
        "boundaries",
        description="score text before training and at task boundaries only, or always",
    )
    recall: Literal["off", "boundaries", "always"] = Field(
        "off",
        description="also score the model while it reads its replay stores, at task boundaries only, or always. The "
        "training does not change.",
    )
    test: bool = Field(True, description="score the test splits once, at the end")
    metrics: tuple[MetricConfig, ...] = Field(
        (), description="scores of installed plug-ins, by name, on the sequences that are scored as text"
    )
    lm_tasks: tuple[str, ...] = Field(
        (),
        description="tasks of the lm-evaluation-harness. They are scored before training and at task boundaries, "
        "and the acceptance check judges them.",
    )
    lm_include: str | None = Field(
        None,
        description="a folder with tasks for `lm_tasks`, as .yaml files. The files can run code, so the setting "
        "needs TRC2_TRUST_TASKS=1.",
    )
    lm_limit: Count | None = Field(None, description="documents per task of `lm_tasks`. None means all.")
    check_no_side_effects: bool = Field(
        False, description="hash all state before and after every evaluation, and fail if it changed"
    )

    @field_validator("metrics", mode="before")
    @classmethod
    def _by_name(cls, metrics: Any) -> Any:
        """One name, names with commas between them, or a list."""
        listed = metrics.split(",") if isinstance(metrics, str) else metrics
        if not isinstance(listed, list | tuple):
            return listed
        return [{"name": metric.strip()} if isinstance(metric, str) else metric for metric in listed]

    @model_validator(mode="after")
    def _metrics_differ(self) -> EvalConfig:
        names = [metric.name for metric in self.metrics]
        if len(set(names)) < len(names):
            raise ValueError(f"metrics=[{', '.join(names)}] names one twice: leave it out.")
        return self


class OutputConfig(Section):
    """Where a run is written and logged. All of it is *execution*: free to change on resume."""

    folder: Path = Field(Path("runs/run"), description="the run folder")
    log_every: Count = Field(20, description="steps between two lines of output without a terminal")
    checkpoint_every: Count = Field(
        200, description="steps between checkpoints. Task boundaries have additional checkpoints."
    )
    keep_checkpoints: Count = Field(2, description="checkpoints that are kept besides those at task boundaries")
    report_to: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = Field(
        (), description="other loggers: tensorboard, wandb, trackio"
    )
    device: str = Field("auto", description="auto, cpu, cuda or cuda:0")
    threads: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        None, description="threads of torch. None means torch's own choice."
    )
    deterministic: bool = Field(
        False, description="use deterministic operations on a GPU where torch has them. Training is somewhat slower."
    )
    compile: bool = Field(
        False,
        description="use torch.compile for attention, router and norms. It costs about a minute at the start and "
        "saves about 1 % later.",
    )

    parallel: Literal["ddp", "fsdp"] = Field(
        "ddp",
        description="with several processes: ddp keeps the whole model on each, and fsdp divides its columns or "
        "blocks, embedding and head",
    )
    recompute: bool = Field(
        False, description="run every column or block again in the backward pass instead of keeping what it computed"
    )
    check_ranks: bool = Field(False, description="compare the state of all processes after every step")

    @field_validator("folder")
    @classmethod
    def _home_is_found(cls, folder: Path) -> Path:
        """`~` at the beginning is the home folder, as a shell would have it. A relative path stays relative."""
        try:
            return folder.expanduser()
        except RuntimeError:
            raise ValueError(f"{folder} begins with the home of an unknown user: use an absolute path.") from None
