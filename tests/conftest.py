"""Shared fixtures. Shapes in signatures are checked while the tests of what declares them run."""

from __future__ import annotations

import gc
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import jaxtyping
from jaxtyping import install_import_hook

import tests.typecheck  # noqa: F401 - the hook below finds it by name

# Tensors here are tiny: a second thread only waits, and on a busy machine for long. Commands that tests run inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

CHECKED = ["trc2.ops", "trc2.nn", "trc2.model", "trc2.replay.stores"]
install_import_hook(CHECKED, "tests.typecheck.checker")

import hypothesis  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
from rich.console import Console  # noqa: E402

from trc2 import CortexNet, RunConfig, TRC2Config  # noqa: E402
from trc2.system import precision  # noqa: E402

if TYPE_CHECKING:
    from tests.small_disk import SmallDisk

torch.set_num_threads(1)
# On a busy machine any example may take a second, so the clock decides nothing.
hypothesis.settings.register_profile("trc2", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("trc2")
precision.PRODUCT_SIZE = 128  # measured at the end of every run, which here is a tenth of its time at the usual size

# Checking shapes takes as long as computing with tensors this small. These tests call what declares shapes in every way
# that it is called, the last three from the trainer and the decoder. The others check something else about the same
# calls. `make test-all` checks shapes everywhere.
HERE = Path(__file__).parent
SHAPES = [HERE / name for name in ("ops", "nn", "model", "replay", "backbones")]
SHAPES += [HERE / "training" / "test_loop.py", HERE / "test_golden.py", HERE / "generate" / "test_sampling.py"]
# Runs of these are compared to the bit, and checking shapes draws from Python's generator.
UNCHECKED = HERE / "backbones" / "hf_models"


@pytest.hookimpl(tryfirst=True)  # before fixtures, which may train
def pytest_runtest_setup(item: pytest.Item) -> None:
    is_named = any(item.path.is_relative_to(path) for path in SHAPES) and not item.path.is_relative_to(UNCHECKED)
    is_checked = not item.config.getoption("markexpr") or is_named
    jaxtyping.config.update("jaxtyping_disable", not is_checked)


def pytest_collection_finish() -> None:
    gc.freeze()  # the collector need not look again at what imports made, which is far more than what a test makes


def tiny_config(**changes: object) -> TRC2Config:
    """A complete TRC² small enough for loops over tokens."""
    settings: dict[str, object] = {
        "vocab_size": 29,
        "d_model": 16,
        "num_columns": 3,
        "num_heads": 4,
        "num_kv_heads": 2,
        "max_positions": 64,
        "num_experts": 4,
        "d_ff": 12,
        "thalamic_rank": 6,
        "memory_slots": 10,
        "memory_key_dim": 5,
        "memory_top_k": 3,
        "memory_read_chunk": 4,
        "memory_read_window": 8,
        "writes_per_sequence": 3,
        "target_writes_per_sequence": 2,
        "gate_top_fraction": 0.3,
        "replay_recent_chunks": 4,
        "replay_long_chunks": 6,
        "replay_chunk_length": 5,
        "replay_batch_size": 3,
    }
    return TRC2Config(**{**settings, **changes})


def excited(net: CortexNet, seed: int = 0) -> CortexNet:
    """Give every parameter a size at which all nonlinearities matter. Fresh weights of 0.02 hide most mistakes."""
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.normal_(0.0, 0.5 if parameter.ndim > 1 else 0.3, generator=rng)
        if net.cortex.hippocampus is not None:
            for buffer in (net.cortex.hippocampus.keys, net.cortex.hippocampus.values):
                buffer.zero_()
    return net


def tokens(config: TRC2Config, batch: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(config.vocab_size, (batch, length), generator=torch.Generator().manual_seed(seed))


def fill_memory(net: CortexNet, events: int, seed: int = 0) -> None:
    """Write random events, unit size per channel."""
    hippocampus = net.cortex.hippocampus
    assert hippocampus is not None
    rng = torch.Generator().manual_seed(seed)
    states = torch.randn(events, net.config.d_model, generator=rng, dtype=hippocampus.values.dtype)
    hippocampus.write(states)


@pytest.fixture(autouse=True)
def _fixed_randomness() -> None:
    torch.manual_seed(0)


def write_task(folder: Path, name: str, words: list[str], documents: int = 60) -> None:
    """A little language of its own: sentences over a few words."""
    rng = random.Random(name)
    (folder / name).mkdir(parents=True, exist_ok=True)
    for split, count in (("train", documents), ("validation", 8), ("test", 8)):
        rows = []
        for number in range(count):
            text = " ".join(rng.choice(words) for _ in range(60))
            rows.append(json.dumps({"text": f"{split} {number}: {text}."}))
        (folder / name / f"{split}.jsonl").write_text("\n".join(rows) + "\n")


QUIET = Console(quiet=True)
MakeRun = Callable[..., RunConfig]
TINY_TASKS = {"fruit": ["apple", "pear", "plum", "fig"], "tools": ["saw", "axe", "drill", "file"]}


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root with two tasks of a few hundred words, and its own cache."""
    root = tmp_path_factory.mktemp("data")
    for name, words in TINY_TASKS.items():
        write_task(root, name, words)
    return root


def tiny_run_config(data: Path, folder: Path, **sections: dict[str, object]) -> RunConfig:
    """A run that trains in a second: two tasks of six steps, everything switched on."""
    settings: dict[str, dict[str, object]] = {
        "model": tiny_config(
            vocab_size=300, num_columns=2, max_positions=32, replay_chunk_length=8, memory_slots=64
        ).model_dump(),
        "stream": {
            "data_root": data,
            "cache": data / "cache",
            "tokenizer": {"vocab_size": 300},
            "control_batches": 1,
            "tasks": [{"name": name, "folder": name, "steps": 6} for name in TINY_TASKS],
        },
        "train": {"sequence_length": 16, "batch_size": 2, "micro_batches": 2, "warmup_steps": 2},
        "control": {"every_steps": 4},
        "eval": {
            "every_steps": 3,
            "batch_size": 4,
            "max_batches": 2,
            "text_sequences": 2,
            "check_no_side_effects": True,
        },
        "output": {"folder": folder, "checkpoint_every": 4, "threads": 1},
    }
    names = {**settings, **sections}
    return RunConfig(**{name: {**settings.get(name, {}), **sections.get(name, {})} for name in names})


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A folder in which the disk can be full."""
    from tests.small_disk import SmallDisk

    made = SmallDisk(tmp_path / "disk")
    yield made
    made.unmount()


@pytest.fixture
def tiny_run(tiny_data: Path, tmp_path: Path) -> Callable[..., RunConfig]:
    """Makes run configs that train in a second, into a folder of the test's own."""

    def build(**sections: dict[str, object]) -> RunConfig:
        return tiny_run_config(tiny_data, tmp_path / "run", **sections)

    return build


@pytest.fixture(scope="session")
def trained_once(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that tests must not change. One micro-batch halves the time of all that goes on from it."""
    from trc2.training.setup import start_run

    config = tiny_run_config(tiny_data, tmp_path_factory.mktemp("trained") / "run", train={"micro_batches": 1})
    return start_run(config, Console(quiet=True))


@pytest.fixture
def trained(trained_once: Path, tmp_path: Path) -> Path:
    """A finished run of the test's own."""
    return Path(shutil.copytree(trained_once, tmp_path / "run"))
