"""What a user of a GPU runs first: the same network on the device and on the CPU, training there, and several ranks."""

from __future__ import annotations

import copy
import math
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor

from trc2.backbones.shell import Backbone
from trc2.config import RunConfig, settings_text
from trc2.distributed.launch import launch
from trc2.runs.checkpoint import list_checkpoints, load_checkpoint
from trc2.runs.folder import RunFolder
from trc2.system.precision import choose_device
from trc2.training.resume import resume_run
from trc2.training.setup import start_run
from trc2.verify.check import Check, ModelUnderTest, gap, largest, train_forward
from trc2.verify.kill_tests import WORDS, compare_runs, small_run, write_small_data

QUIET = Console(quiet=True)
SAME = 1e-9  # two devices in float64
CLOSE = 1e-3  # float32, in which devices and ranks add up in another order
Watch = Callable[[str], None]


def device_checks(tested: ModelUnderTest, device: str, watch: Watch = lambda _: None) -> list[Check]:
    """Every check on a device. Without it, all are skipped, with the reason."""
    kind = device.split(":")[0]
    if kind == "cuda" and not torch.cuda.is_available():
        return [Check("G", name, claim, note="skipped: torch sees no CUDA device") for name, claim in CLAIMS.items()]
    choose_device(device)  # refuses other names
    watch(f"the network on {device}")
    checks = [*same_as_on_the_cpu(tested, device), decoding_on(tested.model, device)]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_small_data(folder / "data", WORDS)
        for precision in ("float32", "float16", "bfloat16"):
            watch(f"training on {device} in {precision}")
            checks += training_on(folder, device, precision)
        watch("several ranks")
        checks.append(ranks_on(folder, device, torch.cuda.device_count() if kind == "cuda" else 1))
    return checks


CLAIMS = {
    "forward, float64": "‖logits on the device − logits on the CPU‖",
    "gradients, float64": "largest difference of a gradient to the CPU's",
    "decoding, float32": "‖token by token − all at once‖ on the device",
    **{f"training, {name}": "losses of 24 steps that are not finite" for name in ("float32", "float16", "bfloat16")},
    **{f"resume, {name}": "differences after a resume from step 9" for name in ("float32", "float16", "bfloat16")},
    "ranks, float32": "largest difference of a weight to one process",
}


def _check(name: str, measured: float, bound: float, note: str = "") -> Check:
    return Check("G", name, CLAIMS[name], measured, "<=", bound, note)


def same_as_on_the_cpu(tested: ModelUnderTest, device: str) -> list[Check]:
    """Logits and gradients of one training forward, in float64."""
    x = tested.tokens("probe")
    here = tested.fresh("filled")
    there = copy.deepcopy(here).to(device)
    logits: list[Tensor] = []
    for net, tokens in ((here, x), (there, x.to(device))):
        net.eval()
        with torch.no_grad():
            logits.append(net(tokens)[0].cpu())
        train_forward(net, tokens[:, :-1], tokens[:, 1:])
    pairs = zip(here.parameters(), there.parameters(), strict=True)
    gradients = [gap(a.grad, b.grad.cpu()) for a, b in pairs if a.grad is not None and b.grad is not None]
    return [_check("forward, float64", gap(*logits), SAME), _check("gradients, float64", largest(gradients), SAME)]


@torch.no_grad()
def decoding_on(model: Backbone, device: str) -> Check:
    """A row of tokens one by one, against the same row at once."""
    net = copy.deepcopy(model).to(device, torch.float32).eval()
    ids = ModelUnderTest(model).tokens("decoded")[:1].to(device)
    decoding = net.start_decoding()
    single = torch.cat([net.decode(ids[:, t : t + 1], decoding) for t in range(ids.shape[1])], dim=1)
    return _check("decoding, float32", gap(single, net(ids)[0]), CLOSE)


def training_on(folder: Path, device: str, precision: str) -> list[Check]:
    """A small run with everything switched on, and the same run resumed from a checkpoint in its middle."""
    was_deterministic = torch.are_deterministic_algorithms_enabled()
    whole = start_run(_small_run(folder, precision, device, precision), QUIET)
    records = [record for record in RunFolder(whole).records() if record.kind in ("train", "nonfinite")]
    steps = [record for record in records if record.kind == "train"]
    broken = sum(not math.isfinite(record.metrics["train/loss"]) for record in steps)
    # float16 starts with a large scale, so its first steps may overflow and are skipped.
    note = f"{len(records) - len(steps)} steps were skipped to lower the scale" if len(records) > len(steps) else ""
    parted = Path(shutil.copytree(whole, folder / f"{precision} resumed"))
    for checkpoint in list_checkpoints(RunFolder(parted).checkpoints):
        if load_checkpoint(checkpoint).step > 9:
            shutil.rmtree(checkpoint)
    resume_run(parted, [], QUIET)
    torch.use_deterministic_algorithms(was_deterministic)
    differences, _, _ = compare_runs(whole, parted)
    return [
        _check(f"training, {precision}", float(broken + 24 - len(records)), 0.0, note),
        _check(f"resume, {precision}", float(len(differences)), 0.0, ", ".join(differences[:3])),
    ]


def _small_run(folder: Path, name: str, device: str, precision: str) -> RunConfig:
    run = small_run(folder)
    output = run.output.replace(folder=folder / name, device=device, deterministic=True)
    return run.replace(train=run.train.replace(precision=precision), output=output)


def ranks_on(folder: Path, device: str, count: int) -> Check:
    """Two ranks against one process, each on a device of its own: NCCL on GPUs."""
    name = "ranks, float32"
    if count < 2:
        return Check("G", name, CLAIMS[name], note=f"skipped: there is {count} device, and ranks need 2")
    weights = []
    for world in (1, 2):
        run = _small_run(folder, f"ranks {world}", device, "float32")
        recipe = folder / f"ranks_{world}.yaml"
        recipe.write_text(settings_text(run.model_dump(mode="json")))
        code = launch(["train", str(recipe)], world)
        if code != 0:
            return _check(name, math.nan, CLOSE, f"{world} processes ended with exit code {code}")
        checkpoint = load_checkpoint(list_checkpoints(RunFolder(run.output.folder).checkpoints)[-1])
        weights.append({key: tensor for key, tensor in checkpoint.part("model").items() if tensor.is_floating_point()})
    return _check(name, largest([gap(weights[0][key], weights[1][key]) for key in weights[0]]), CLOSE)
