"""Typed, frozen configuration: a YAML recipe, then dotted overrides. An unknown key is an error with a hint."""

from trc2.config.backbone import BackboneConfig, round_up
from trc2.config.model import TRC2Config
from trc2.config.models import MODELS, model_config
from trc2.config.reader import parse_settings, read_settings, settings_text
from trc2.config.recipes import family_names, recipe_descriptions, recipe_names
from trc2.config.run import RunConfig, load_recipe
from trc2.config.section import Section
from trc2.config.strategy import BudgetConfig, StrategyConfig, strategy_config, strategy_names
from trc2.config.stream import StreamConfig, TaskConfig, TokenizerConfig
from trc2.config.train import EvalConfig, OutputConfig, ReplayControlConfig, TrainConfig
