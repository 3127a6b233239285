"""What is added to a backbone so that it forgets less, and by what two runs are made equal."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from trc2.config.section import Fraction, NonNegative, Section, SettingError, Size, shown
from trc2.errors import did_you_mean

STRATEGIES = ("none", "replay", "replay_controlled", "ewc", "agem", "l2")


class StrategyConfig(Section):
    """One strategy for any backbone. TRC²'s own replay belongs to the model and is there whatever is named here."""

    name: str = Field(
        "none",
        description="none; replay: the paper's two stores; replay_controlled: the same, steered by measured "
        "forgetting; ewc: online elastic weight consolidation; agem: averaged gradient episodic memory; "
        "l2: pull to the last boundary",
    )
    ewc_strength: NonNegative = Field(1000.0, description="λ: the penalty is λ/2 · F (θ − θ*)²")
    ewc_decay: Fraction = Field(0.9, description="γ: what earlier tasks' Fisher information still counts")
    fisher_sequences: Size = Field(32, description="sequences of a task that estimate its Fisher information")
    l2_strength: NonNegative = Field(0.01, description="λ: the penalty is λ/2 · (θ − θ*)²")
    agem_chunks: Size = Field(8, description="stored chunks whose gradient must not be worked against")

    @field_validator("name", mode="before")
    @classmethod
    def _known(cls, name: Any) -> Any:
        if name not in STRATEGIES:
            raise SettingError(f"There is no strategy {shown(name)}: {did_you_mean(str(name), STRATEGIES)}")
        return name

    def settings(self, has_replay: bool) -> dict[str, dict[str, Any]]:
        """What the strategy sets elsewhere: the stores belong to the model, their control to the trainer.

        `has_replay` tells a model that replays of its own accord, as TRC² does.
        """
        if self.name == "replay":
            return {"model": {"replay": True}, "control": {"mode": "fixed"}}
        if self.name == "replay_controlled":
            return {"model": {"replay": True}, "control": {"mode": "closed_loop"}}
        if self.name == "agem" and not has_replay:  # stores are filled, but only gradients are compared with them
            return {"model": {"replay": True}, "control": {"mode": "off"}}
        return {}


class BudgetConfig(Section):
    """What runs have in common: a task's `steps` are those of the reference, and are rescaled for this run."""

    match: Literal["steps", "tokens", "flops"] = Field(
        "steps",
        description="steps: as many optimizer steps; tokens: as many tokens, replayed ones included; "
        "flops: as many training FLOPs as the reference, replay included",
    )
    reference: str | None = Field(None, description="for flops: the recipe whose model sets the budget")
