"""The `trc2` command: parse, call, print."""

from __future__ import annotations

import io
import json
import math
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from trc2 import __version__
from trc2.console import PlainConsole, shown
from trc2.errors import UserError, plain, sentence_of

app = typer.Typer(
    name="trc2",
    help="Language models that keep learning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
MAX_COUNT, MAX_SEED = 2**31 - 1, 2**32 - 1

out = PlainConsole()
err = PlainConsole(stderr=True)

Target = Annotated[str, typer.Argument(help="A recipe's name or file, a run folder, or a folder with a saved model.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="Settings to change, e.g. model.d_model=256.")]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"trc2 {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


@app.command()
def verify(
    target: Target = "paper_compact",
    overrides: Overrides = None,
    folder: Annotated[Path, typer.Option("--out", help="Where verify.json and verify.png go.")] = Path("runs/verify"),
    seed: Annotated[int, typer.Option(help="Seed of weights, probes and kills.", min=0, max=MAX_SEED)] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Prove exact resume instead, by killing a run.")] = False,
    kills: Annotated[int, typer.Option(help="How often --resume kills.", min=1, max=1_000_000)] = 20,
) -> None:
    """Prove causality and state semantics of a model: a table, JSON and a picture. Or, with --resume, exact resume.

    Exit code 0 if every check holds, 1 if one fails, 2 on bad input.
    """
    if resume:
        _verify_resume(folder, kills, seed)
    from trc2.runs.target import find_target
    from trc2.verify import run_battery
    from trc2.verify.picture import as_table, draw, notes, summary

    net = find_target(target, overrides or []).model(_warn, seed)
    with out.status("starting") as status:
        report = run_battery(net, target, seed, watch=lambda name: status.update(shown(f"checking {name}")))
    out.print(as_table(report, out.width))
    for note in notes(report):
        out.print(note, style="dim")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "verify.json").write_text(json.dumps(report.to_json(), indent=2))
    draw(report, folder / "verify.png")
    out.print(summary(report), style="green" if report.passed else "bold red")
    out.print(f"{folder / 'verify.json'}  {folder / 'verify.png'}")
    raise typer.Exit(0 if report.passed else 1)


def _verify_resume(folder: Path, kills: int, seed: int) -> None:
    import tempfile

    from trc2.verify.kills import verify_resume

    with out.status("starting") as status, tempfile.TemporaryDirectory() as scratch:
        report = verify_resume(Path(scratch), kills, seed, watch=lambda text: status.update(shown(text)))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "resume.json").write_text(json.dumps(report.to_json(), indent=2))
    places = ", ".join(f"{name} ×{count}" for name, count in report.killed_at.items())
    out.print(f"Killed {report.kills} times: {places}.")
    if report.passed:
        what = f"All {report.tensors} tensors, the state and {report.records} records"
        out.print(f"{what} equal those of the undisturbed run to the bit ({report.seconds:.0f} s).", style="green")
    for difference in report.differences[:20]:
        out.print(f"differs: {difference}", style="bold red")
    out.print(str(folder / "resume.json"))
    raise typer.Exit(0 if report.passed else 1)


@app.command()
def budget(
    target: Target = "paper_compact",
    overrides: Overrides = None,
    paper: Annotated[bool, typer.Option("--paper", help="Our numbers beside the paper's tables.")] = False,
    family: Annotated[str | None, typer.Option(help="One table of all backbones: lab or paper.")] = None,
    slots: Annotated[
        int | None, typer.Option(help="Filled memory slots; all that are read by default.", min=0, max=MAX_COUNT)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Parameters, static memory and FLOPs per token, by subsystem."""
    from trc2.bench.tables import budget_json, budget_table, counts_line, family_rows, family_table, paper_table
    from trc2.config import family_names
    from trc2.runs.target import find_target

    if family is not None:
        rows = family_rows(family_names(family))
        if as_json:
            print(json.dumps({"schema": 1, "family": family, "recipes": rows}, indent=2))
        else:
            out.print(family_table(f"The {family} family", rows))
        return
    if paper:
        table, different = paper_table()
        out.print(table)
        verdict = "All of the paper's printed numbers come out." if not different else f"{different} numbers differ."
        out.print(verdict)
        raise typer.Exit(0 if not different else 1)
    run = find_target(target, overrides or []).config
    filled = run.model.read_slots if slots is None else slots
    if as_json:
        print(json.dumps(budget_json(target, run, filled), indent=2))
        return
    out.print(budget_table(target, run, filled))
    out.print(counts_line(run))


@app.command()
def bench(
    target: Target = "demo",
    overrides: Overrides = None,
    against: Annotated[str | None, typer.Option(help="Time a Hugging Face model too: mixtral, llama or mamba.")] = None,
    scaling: Annotated[
        str | None, typer.Option(help="How cost grows with tokens, batch, slots, experts or columns, instead.")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Rounds in which all alternatives take turns.", min=1, max=10_000)] = 5,
    threads: Annotated[
        int | None, typer.Option(help="Threads of torch; its own choice by default.", min=1, max=1024)
    ] = None,
    folder: Annotated[Path, typer.Option("--out", help="Where bench.json and bench.png go.")] = Path("runs/bench"),
) -> None:
    """Speed, memory and utilisation of a recipe: ratios of one interleaved run, as table, JSON and picture."""
    import torch

    from trc2.bench.draw import draw_bars, draw_scaling, results_table, scaling_table
    from trc2.bench.comparison import bench_recipe, bench_scaling
    from trc2.runs.target import find_target

    if threads is not None:
        torch.set_num_threads(threads)
    run = find_target(target, overrides or []).config
    folder.mkdir(parents=True, exist_ok=True)
    with out.status("building") as status:
        if scaling is not None:
            report = bench_scaling(run, scaling, repeats=repeats, watch=lambda text: status.update(shown(text)))
        else:
            report = bench_recipe(run, repeats=repeats, against=against, watch=lambda text: status.update(shown(text)))
    (folder / "bench.json").write_text(json.dumps(report, indent=1))
    if scaling is not None:
        out.print(scaling_table(target, report))
        draw_scaling(report, folder / "bench.png")
    else:
        out.print(results_table(target, report))
        draw_bars(report, folder / "bench.png")
    out.print(f"{folder / 'bench.json'}  {folder / 'bench.png'}")


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="A recipe's name or file; it must have a stream of tasks.")] = "demo",
    overrides: Overrides = None,
) -> None:
    """Train a model through a stream of tasks and measure what it forgets."""
    from trc2.config import load_recipe
    from trc2.train.start import start_run

    folder = start_run(load_recipe(recipe, overrides or []), out)
    _show_summary(folder)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="The run folder.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Execution settings, e.g. output.log_every=5.")] = None,
) -> None:
    """Go on with an interrupted run, exactly as if it had not been interrupted."""
    from trc2.train.resume import resume_run

    _show_summary(resume_run(folder, overrides or [], out))


@app.command("continue")
def continue_(
    parent: Annotated[Path, typer.Argument(help="The finished run.")],
    task: Annotated[str, typer.Option(help="Name of the new task.")],
    folder: Annotated[Path | None, typer.Option("--out", help="New run folder; PARENT+TASK by default.")] = None,
    steps: Annotated[int, typer.Option(help="Optimizer steps for the new task.", min=1, max=MAX_COUNT)] = 100,
    builtin: Annotated[str | None, typer.Option(help="A built-in corpus: prose, code or arithmetic.")] = None,
    source: Annotated[str | None, typer.Option("--folder", help="A folder with train.jsonl and so on.")] = None,
    dataset: Annotated[str | None, typer.Option(help="A Hugging Face dataset id.")] = None,
    subset: Annotated[str | None, typer.Option(help="The dataset's configuration.")] = None,
    format_: Annotated[str, typer.Option("--format", help="text, gsm8k or a template.")] = "text",
    max_forgetting: Annotated[
        float | None, typer.Option(help="Exit with 3 if past tasks' perplexity rose by more than this fraction.", min=0)
    ] = None,
) -> None:
    """Teach a finished run one more task, in a new folder that points to its parent.

    Exit code 3 if --max-forgetting is given and exceeded: the parent then remains the model to use.
    """
    from trc2.config import TaskConfig
    from trc2.train.resume import continue_run, relative_forgetting

    if max_forgetting is not None and not math.isfinite(max_forgetting):
        raise UserError(f"--max-forgetting {max_forgetting} is no limit: give a number such as 0.05.")
    known = {"name": task, "steps": steps, "builtin": builtin, "dataset": dataset, "subset": subset, "format": format_}
    config = TaskConfig(**known, folder=None if source is None else str(Path(source).resolve()))
    home = parent.resolve()
    if not home.name:
        raise UserError(f"{parent} is not a run folder: name one.")
    target = folder or (parent if parent.name else home).with_name(f"{home.name}+{task}")
    continue_run(parent, target, config, out)
    _show_summary(target)
    risen = relative_forgetting(target)
    out.print(f"The perplexity of past tasks rose by {risen:.1%} on average since their own training.")
    if max_forgetting is not None and not risen <= max_forgetting:  # NaN is not within any limit
        err.print(
            f"gate: that is not within --max-forgetting {max_forgetting:.1%}: keep using {parent}.",
            style="bold red", soft_wrap=True,
        )  # fmt: skip
        raise typer.Exit(3)


@app.command("eval")
def evaluate(
    target: Target,
    task: Annotated[list[str] | None, typer.Option(help="A task of the run; all of them by default.")] = None,
    file: Annotated[list[Path] | None, typer.Option(help="A .jsonl, .txt or .parquet file to score.")] = None,
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "validation",
    format_: Annotated[str, typer.Option("--format", help="Text format of the files.")] = "text",
    again: Annotated[bool, typer.Option("--again", help="Read a test split a second time.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Score a checkpoint on any task of its stream, or on any file."""
    from rich.table import Table

    from trc2.runs.target import find_target
    from trc2.train.scoring import score_target

    scores = score_target(
        find_target(target),
        tasks=task or [],
        files=file or [],
        split=split,
        text_format=format_,
        again=again,
        warn=_warn,
    )
    if as_json:
        print(json.dumps(scores, indent=2))
        return
    names = list(dict.fromkeys(name for metrics in scores.values() for name in metrics))
    table = Table(title=f"{target}, {split}", caption="perplexity per token")
    table.add_column("task")
    for name in names:
        table.add_column(name, justify="right")
    for name, metrics in scores.items():
        cells = {key: f"{value:,}" if isinstance(value, int) else f"{value:.4g}" for key, value in metrics.items()}
        table.add_row(name, *[cells.get(key, "–") for key in names])
    out.print(table)


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(help="Run folders of one stream.")],
    folder: Annotated[Path | None, typer.Option("--out", help="Where comparison.md and comparison.png go.")] = None,
) -> None:
    """Summarise a run, or compare several: tables, pictures, and a reading computed from the numbers."""
    from rich.table import Table

    from trc2.report.summary import CAPTION, Comparison

    if len(folders) == 1:
        _show_summary(folders[0])
        return
    comparison = Comparison.of(folders)
    table = Table(title="What each run forgot", caption=CAPTION)
    for index, name in enumerate(comparison.header()):
        table.add_column(name, justify="right" if index else "left")
    for row in comparison.rows():
        table.add_row(*row)
    out.print(table)
    for sentence in comparison.reading():
        out.print(sentence)
    written = comparison.write(folder or folders[0].parent)
    out.print("  ".join(str(path) for path in written), soft_wrap=True)


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="The run folder.")],
    folder: Annotated[Path, typer.Argument(help="A new folder for the model.")],
    with_replay: Annotated[
        bool, typer.Option("--with-replay", help="Take the replay stores along; they hold training text.")
    ] = False,
) -> None:
    """Write a run's newest checkpoint as a model folder: safetensors, JSON, tokenizer and model card."""
    from trc2.hf.export import export_run

    written = export_run(run, folder, __version__, with_replay=with_replay, warn=_warn)
    out.print("  ".join(str(path) for path in written), soft_wrap=True)


@app.command()
def generate(
    target: Target,
    prompt: Annotated[str, typer.Option(help="Text to continue.")] = "",
    max_new_tokens: Annotated[int, typer.Option(help="Stop after this many tokens.", min=1, max=MAX_COUNT)] = 100,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token, 1 is the model's own chance.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="Draw from the smallest set of tokens with this probability.")] = 1.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same text.", min=0, max=MAX_SEED)] = 0,
    memory: Annotated[str, typer.Option(help="read or off: whether the episodic memory is read.")] = "read",
) -> None:
    """Continue a prompt, token by token."""
    from trc2.generate import lay_out_for_decoding, stream_text
    from trc2.runs.target import find_target

    if memory not in ("read", "off"):
        raise UserError(f"--memory {memory} is not known: use read or off.")
    net, tokenizer = find_target(target).trained_model(_warn)
    lay_out_for_decoding(net)
    print(plain(prompt), end="", flush=True)
    for piece in stream_text(
        net,
        tokenizer,
        prompt,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        read_memory=memory == "read",
    ):
        print(plain(piece), end="", flush=True)
    print()


data_app = typer.Typer(help="Prepare and inspect data.", no_args_is_help=True)
app.add_typer(data_app, name="data")


@data_app.command("prepare")
def data_prepare(
    recipe: Annotated[str, typer.Argument(help="A recipe's name or file with a stream.")],
    overrides: Overrides = None,
) -> None:
    """Pack a stream's documents into token shards, or find them in the cache."""
    from rich.table import Table

    from trc2.config import load_recipe
    from trc2.train.start import prepare_with_progress

    run = load_recipe(recipe, overrides or [])
    if run.stream is None:
        raise UserError(f"'{recipe}' has no stream of tasks: choose a recipe that has, such as demo.")
    prepared = prepare_with_progress(run, out)
    table = Table(
        title=f"{recipe}: fingerprint {prepared.fingerprint()[:16]}, {prepared.tokenizer.vocab_size} token ids"
    )
    for index, name in enumerate(("task", "split", "documents", "tokens", "bytes", "13-grams also in train of")):
        table.add_column(name, justify="right" if 1 < index < 5 else "left")
    for name, task in prepared.tasks.items():
        for split, info in task.splits.items():
            shared = prepared.overlap.get(f"{name}/{split}", {})
            told = ", ".join(f"{other} {share:.1%}" for other, share in shared.items() if share > 0)
            table.add_row(name, split, f"{info.documents:,}", f"{info.tokens:,}", f"{info.bytes:,}", told)
    out.print(table)


def _warn(message: str) -> None:
    err.print(message, style="yellow")


def _show_summary(folder: Path) -> None:
    from rich.markdown import Markdown

    from trc2.report.summary import write_summary

    written = write_summary(folder)
    text = written[0].read_text(encoding="utf-8")
    out.print(Markdown("\n".join(line for line in text.splitlines() if not line.startswith("!["))))
    out.print("  ".join(str(path) for path in written), soft_wrap=True)


def main() -> None:
    """The border: what users or their disks did wrong is one sentence and exit code 2, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a sign is no reason to stop
    try:
        app()
    except KeyboardInterrupt:
        err.print("interrupted")
        sys.exit(130)
    except Exception as error:
        sentence = sentence_of(error)
        if sentence is None:
            raise
        code = getattr(error, "exit_code", UserError.exit_code)
        label = Text("error: ", style="bold red") if code == UserError.exit_code else Text()
        err.print(label + Text(plain(" ".join(sentence.split()))), soft_wrap=True)
        sys.exit(code)


if __name__ == "__main__":
    main()
