"""Metrics that other packages add to a run."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from trc2.config.section import Section, SettingError, shown
from trc2.errors import UserError, did_you_mean
from trc2.system.plugins import MetricPlugin, find, installed_names, load, missing_hint, register

OURS = frozenset({
    "loss", "perplexity", "bits_per_byte", "token_accuracy", "exact_match", "bleu", "chrf", "rouge_l", "tokens",
})  # fmt: skip


class MetricConfig(Section):
    """A metric of an installed plug-in. The plug-in's own description of it is kept with the run.

    So a run folder can be read later without the plug-in.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_]*$", max_length=100)] = Field(
        description="name of the plug-in"
    )
    higher_is_better: bool = Field(description="whether a higher score is better")
    reads: Literal["text", "tokens"] = Field("text", description="whether the metric reads decoded text or token ids")
    is_log: bool = Field(False, description="whether differences are taken of logarithms")
    min_gain: Annotated[float, Field(gt=0.0)] | None = Field(
        None, description="divide forgetting by the gain from training, if the gain is at least this"
    )

    @model_validator(mode="before")
    @classmethod
    def _ask_the_plugin(cls, values: Any) -> Any:
        """If only the name is given, read the other fields from the plug-in."""
        name = values.get("name") if isinstance(values, dict) else values
        if isinstance(name, str) and name in OURS:
            raise SettingError(f"'{name}' is a score of every run already: leave it out.", "name")
        if not isinstance(name, str) or (isinstance(values, dict) and "higher_is_better" in values):
            return values
        return {**describe_metric(name), **(values if isinstance(values, dict) else {})}


def register_metric(name: str, metric: MetricPlugin) -> None:
    """Make a metric known in this process, for `eval.metrics`, without a package. See docs/plugins.md."""
    if name in OURS:
        raise UserError(f"'{name}' is a score of every run already: choose another name.")
    if not isinstance(metric, MetricPlugin):
        raise UserError(f"The metric '{name}' is {shown(metric)}: give a trc2.MetricPlugin.")
    register("metric", name, metric)


def describe_metric(name: str) -> dict[str, Any]:
    """How a plug-in's metric is read."""
    metric = plugged_metric(name)
    return {field: getattr(metric, field) for field in MetricConfig.model_fields if field != "name"} | {"name": name}


def plugged_metric(name: str) -> MetricPlugin:
    """The metric of this name that an installed package brings."""
    plugin = find("metric", name)
    if plugin is None:
        choices = installed_names("metric")
        hint = " ".join([*([did_you_mean(name, choices)] if choices else []), missing_hint("metric")])
        raise SettingError(f"There is no metric {shown(name)}: {hint}", "name")
    offered = load(plugin)
    if not isinstance(offered, MetricPlugin):
        raise plugin.broken("it is not a trc2.MetricPlugin")
    return offered
