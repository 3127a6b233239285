"""Which command or function gets what. Weights keep the average case quick: what trains or draws pictures is rare."""

from __future__ import annotations

import json

from hypothesis import strategies as st

from tests.fuzz.cases import Case, Kind, Pieces, Strategy, called, line, option, sometimes, typed
from tests.fuzz.damage import TEXTS
from tests.fuzz.values import (
    FILES,
    ODD_RUN,
    as_json,
    numbers,
    paths_to_read,
    paths_to_write,
    rows,
    values,
    weighted,
    words,
)
from tests.fuzz.world import LAST, World
from trc2.cli import COMMANDS

DATA = ("data", "cache")
RECIPES = ("recipes",)
REFUSED = "x=1"  # no recipe has this name and no section this setting: what would be slow is refused in the end
PRETRAINED_SETTINGS = (
    "num_hidden_layers", "num_attention_heads", "num_labels", "dtype", "architectures", "model_type", "sliding_window",
    "num_experts", "attn_implementation", "rope_parameters", "rope_scaling", "max_position_embeddings", "vocab_size",
    "hidden_act", "quantization_config", "auto_map", "tie_word_embeddings", "use_cache", "use_return_dict", "x",
)  # fmt: skip
FIRST_WORDS = (*COMMANDS, "prepare", "help", "trian", "[/red]", "\x1b[31m", "")
OPTIONS = (
    "--help", "--version", "--out", "--seed", "--kills", "--family", "--slots", "--json", "--against", "--scaling",
    "--repeats", "--threads", "--task", "--steps", "--folder", "--dataset", "--subset", "--format", "--max-forgetting",
    "--stop-at", "--dream", "--max-drift", "--base", "--merge", "--interpolate",
    "--file", "--split", "--again", "--with-replay", "--anyway", "--prompt", "--max-new-tokens", "--temperature",
    "--top-p", "--memory", "--devices", "--flops", "--utilisation", "--bandwidth", "--nproc", "--max-restarts",
    "--jobs", "--launcher", "--retry", "--compact", "--list", "--minutes", "--quick", "--changed", "--first",
    "--to", "--reason", "--promote", "--hold", "--notify", "--picture", "--keep-models", "--[/red]",
    "--keep", "--document", "--source", "--html", "--with-store", "--rollback",
    "--no-wait", "--device", "--compile", "--tokens", "--replay-share", "--registry", "--max-stored-bytes",
    "--\x1b[31m", "--\udcff", "-", "--", "-x", "-\x1b", "--out=", "--seed=nan", "--x=y",
)  # fmt: skip


def all_kinds(world: World) -> list[Kind]:
    pieces = Pieces(world)
    return [*_looking(pieces), *_using(pieces), *_training(pieces), *_functions(pieces)]


def _looking(pieces: Pieces) -> list[Kind]:
    """Commands about recipes and data."""
    damage, overrides = pieces.damage, pieces.overrides
    recipe = st.sampled_from(("recipe.yaml", "plain.yaml"))
    core = pieces.damage_of(("model/config.json", "model/model.safetensors"), inside=6)
    seed = option("--seed", ("0", "7"), numbers, 2)
    slots = option("--slots", ("0", "4"), numbers)
    out = option("--out", ("new",), paths_to_write, 2)
    budget = weighted(
        (2, typed("budget", paths_to_read, sometimes(overrides), on=(*RECIPES, "model"))),
        (3, typed("budget", recipe, overrides, slots, on=RECIPES)),
        (2, typed("budget", recipe, on=RECIPES, after=damage("recipes"))),
        (2, typed("budget", "model", slots, on=("model",), after=core)),
        (1, typed("budget", "--family", words)),
    )
    plan = weighted(
        (2, typed("plan", paths_to_read, sometimes(overrides), on=(*RECIPES, "model"))),
        (3, typed("plan", recipe, overrides, option("--devices", ("3", "64"), numbers), on=RECIPES)),
        (3, typed("plan", recipe, option("--memory", ("1",), numbers), option("--flops", ("9",), numbers), on=RECIPES)),
        (1, typed("plan", recipe, "--utilisation", numbers, "--bandwidth", numbers, on=RECIPES)),
        (1, typed("plan", "model", on=("model",), after=core)),
    )
    verify = weighted(
        (3, typed("verify", paths_to_read, overrides, out, seed, REFUSED, on=(*RECIPES, "model"))),
        (3, typed("verify", recipe, overrides, seed, out, REFUSED, on=RECIPES)),
        (1, typed("verify", "model", "--out", "new", seed, on=("model",))),
        (1, typed("verify", "model", "--out", "new", on=("model",), after=core)),
        (4, typed("verify", "model", "--seed", numbers, REFUSED, on=("model",), after=damage("model"))),
        (1, typed("verify", "x", "--resume", "--kills", st.sampled_from(("0", "-1", "nan", "", "x")))),
    )
    bench = weighted(
        (2, typed("bench", paths_to_read, overrides, "--threads", numbers, REFUSED, on=RECIPES)),
        (2, typed("bench", recipe, overrides, "--repeats", numbers, out, REFUSED, on=RECIPES)),
        (1, typed("bench", "plain.yaml", "--repeats=1", on=RECIPES)),
        (1, typed("bench", "plain.yaml", "--against", words, on=RECIPES)),
        (1, typed("bench", "plain.yaml", "--scaling", words, on=RECIPES)),
        (1, typed("bench", "model", "--against", words, on=("model",), after=core)),
    )
    config = weighted(
        (3, typed("config", recipe, overrides, sometimes(st.just("--json")), on=RECIPES)),
        (2, typed("config", paths_to_read, sometimes(overrides), on=(*RECIPES, "run/config.yaml"))),
        (1, typed("config", recipe, "--changed", on=RECIPES, after=damage("recipes"))),
    )
    recipes = typed("recipes", sometimes(words), sometimes(st.just("--json")))
    doctor = typed("doctor", "--quick", sometimes(st.just("--json")), sometimes(words))
    time_given = option("--minutes", ("0.1",), numbers, 2)
    init = weighted(
        (1, typed("init", "data/fruit", "--minutes=0.1", "--out", paths_to_write, on=("data",))),
        (1, typed("init", st.sampled_from(("data/fruit", "tools=data/tools")), "--minutes=0.1", on=("data",))),
        (3, typed("init", paths_to_read, time_given, "--out", "recipe.yaml", on=(*RECIPES, "data"))),
        (1, typed("init", paths_to_read, "--minutes", st.sampled_from(("0", "-1", "nan", "x", "1e9")))),
    )
    hostile_rows = rows.map(lambda text: (("data/fruit/train.jsonl", text),))
    prepare = weighted(
        (3, typed("data", "prepare", "recipe.yaml", on=(*RECIPES, *DATA), after=damage("data", most=4))),
        (3, typed("data", "prepare", "recipe.yaml", on=(*RECIPES, *DATA), after=damage("cache", most=4))),
        (3, typed("data", "prepare", recipe, overrides, on=(*RECIPES, *DATA))),
        (2, typed("data", "prepare", recipe, on=(*RECIPES, *DATA), texts=hostile_rows)),
        (1, typed("data", "prepare", recipe, on=(*RECIPES, *DATA), after=damage("recipes"))),
        (1, typed("data", "prepare", paths_to_read, sometimes(overrides), on=RECIPES)),
    )
    axes = st.sampled_from(("recipes", "sizes", "ablations", "strategies", "seeds", "orders", "settings", "x"))
    grids = st.builds(lambda axis, value: {"grids": [{"recipes": ["plain.yaml"], axis: value}]}, axes, values)
    many = st.integers(1, 300).map(lambda count: {f"a{number}": [] for number in range(count)})
    bombs = st.tuples(many, many, many).map(
        lambda found: {
            "grids": [
                {"recipes": ["plain.yaml"], **dict(zip(("sizes", "ablations", "strategies"), found, strict=True))}
            ]
        }
    )
    right = st.just((("matrix.yaml", as_json({"grids": [{"recipes": ["plain.yaml"], "seeds": [0, 1]}]})),))
    matrices = weighted((4, grids), (2, values), (1, bombs)).map(lambda content: (("matrix.yaml", as_json(content)),))
    sweep = weighted(
        (3, typed("sweep", "matrix.yaml", sometimes(overrides), "--list", on=RECIPES, texts=matrices)),
        (2, typed("sweep", "matrix.yaml", sometimes(overrides), "--list", on=RECIPES, texts=right)),
        (3, typed("sweep", "matrix.yaml", out, option("--jobs", ("1",), numbers), REFUSED, on=RECIPES, texts=matrices)),
        (2, typed("sweep", paths_to_read, overrides, "--list", on=RECIPES)),
        (1, typed("sweep", words, "--launcher", words)),
    )
    any_word = weighted((2, st.sampled_from(OPTIONS)), (1, words), (1, numbers), (1, paths_to_read))
    free = line(st.sampled_from(FIRST_WORDS), st.lists(any_word, max_size=5).map(tuple), "--steps=1", REFUSED)
    first = weighted((1, st.sampled_from(COMMANDS)), (1, words))
    bare = line(first, st.sampled_from(("--help", "--x", "-h", "--\x1b[31m")))
    anything = weighted((3, called("anything", free, on=("run", "model", "recipes"))), (1, called("anything", bare)))
    return [
        Kind("config", 20, config), Kind("recipes", 12, recipes), Kind("doctor", 12, doctor), Kind("init", 12, init),
        Kind("budget", 22, budget), Kind("plan", 20, plan), Kind("verify", 20, verify), Kind("bench", 20, bench),
        Kind("data", 30, prepare), Kind("sweep", 20, sweep), Kind("anything", 20, anything),
    ]  # fmt: skip


def _using(pieces: Pieces) -> list[Kind]:
    """Commands that only read a run or a model."""
    damage = pieces.damage
    file = weighted((2, st.sampled_from(FILES)), (1, paths_to_read))
    task = option("--task", ("fruit",), words)
    split = option("--split", ("train", "test", "validation"), words)
    form = option("--format", ("text", "gsm8k", "{text}!"), words)
    either = st.sampled_from(("run", "model"))
    eval_ = weighted(
        (2, typed("eval", either, "--file", file, form, on=("run", "model", "files"))),
        (3, typed("eval", "run", "--json", on=("run", *DATA), after=damage("run"))),
        (2, typed("eval", "run", "--json", on=("run", *DATA), after=damage("cache"))),
        (2, typed("eval", "run", split, task, form, on=("run", *DATA), after=damage("run", "data"))),
        (2, typed("eval", "model", "--file", st.sampled_from(FILES[:-1]), on=("model", "files"),
                  after=damage("model", "files"))),
        (1, typed("eval", paths_to_read, task, split, on=("run", "model", *DATA))),
        (1, typed("eval", ODD_RUN, split, task, on=(ODD_RUN, *DATA))),
        (1, typed("eval", "plain", "--split=test", sometimes(st.just("--again"), 2), on=("plain", *DATA),
                  after=damage("plain"))),
    )  # fmt: skip
    out = option("--out", ("new",), paths_to_write, 2)
    recorder = pieces.damage_of(("plain/config.yaml", "plain/data.json", "plain/metrics.jsonl"), inside=6)
    many = st.integers(1, 4).map(lambda count: ("plain", "run", "other") * count)
    report = weighted(
        (3, typed("report", paths_to_read, on=("cut/config.yaml", "model"))),
        (3, typed("report", "plain", on=("plain",), after=recorder)),
        (2, typed("report", "run", paths_to_read, out, on=("cut", "model", "run"))),
        (2, typed("report", "plain", "run", out, on=("run", "plain"), after=damage("run", "plain"))),
        (1, typed("report", many, out, on=("run", "plain", "other"), after=damage("other"))),
        (3, typed("report", st.lists(words, max_size=3).map(tuple), out)),
        (1, typed("report", ODD_RUN, sometimes(st.just("plain")), out, on=(ODD_RUN, "plain"))),
    )
    verdict = pieces.damage_of(("child/acceptance.json", "child/parent.json"), inside=6)
    stores = sometimes(st.sampled_from(("--with-replay", "--with-store")))
    export = weighted(
        (1, typed("export", "run", paths_to_write, stores, on=("run", "model"))),
        (2, typed("export", "run", "new", stores, on=("run",), after=damage("run"))),
        (1, typed("export", paths_to_read, "new", on=("run", "model"))),
        (1, typed("export", ODD_RUN, "new", on=(ODD_RUN,))),
        (1, typed("export", "child", "new", sometimes(st.just("--anyway")), on=("child",), after=damage("child"))),
        (1, typed("export", "child", "new", sometimes(st.just("--anyway")), on=("child",), after=verdict)),
        (1, typed("export", "versions", "new", stores, on=("versions",), after=damage("versions"))),
    )
    how = line(
        option("--max-new-tokens", ("1", "5"), numbers), option("--temperature", ("0", "0.7"), numbers),
        option("--top-p", ("0.5", "1"), numbers), option("--seed", ("0", "3"), numbers),
        option("--memory", ("read", "off"), words), option("--prompt", ("an apple",), words, 2),
    )  # fmt: skip
    generate = weighted(
        (2, typed("generate", "model", how, on=("model",))),
        (2, typed("generate", "model", sometimes(how), on=("model",), after=damage("model"))),
        (2, typed("generate", "run", sometimes(how), on=("run",), after=damage("run"))),
        (1, typed("generate", paths_to_read, how, on=("run", "model"))),
    )
    little = line(
        "--tokens", "4", option("--length", ("1", "3"), numbers), option("--temperature", ("0.7",), numbers),
        option("--top-p", ("0.5", "1"), numbers), option("--seed", ("0", "3"), numbers),
        option("--out", ("new.jsonl",), paths_to_write, 2),
    )  # fmt: skip
    dream = weighted(
        (2, typed("dream", either, little, on=("run", "model"))),
        (1, typed("dream", either, little, on=("run", "model"), after=damage("run", "model"))),
        (1, typed("dream", paths_to_read, little, on=("run", "model"))),
    )
    read = weighted((2, file), (1, st.tuples(file, file)), (1, st.just("data/fruit")))
    teach = weighted(
        (3, typed("teach", "model", read, form, on=("model", "files", "data"))),
        (2, typed("teach", "taught", read, option("--keep", ("files/lines.txt",), paths_to_read),
                  on=("taught", "files"), after=damage("taught", "files"))),
        (1, typed("teach", paths_to_read, read, on=("run", "model", "files"))),
        (1, typed("teach", "taught", read, "--max-bytes", st.sampled_from(("60", "0", "-1", "x", "9" * 30)),
                  on=("taught", "files"))),
    )  # fmt: skip
    forget = weighted(
        (2, typed("forget", "taught", option("--document", ("1", "2-0"), words, 2), option("--source", ("*",), words),
                  on=("taught",))),
        (2, typed("forget", "taught", "--source", "notes.txt:[1-3]", on=("taught",), after=damage("taught"))),
        (1, typed("forget", paths_to_read, "--document", words, on=("run", "model"))),
    )  # fmt: skip
    asked = line(
        option("--prompt", ("an apple",), words, 2), "--max-new-tokens", st.sampled_from(("0", "2", "-1", "x")),
        option("--html", ("new.html",), paths_to_write), sometimes(st.just("--json")),
    )  # fmt: skip
    recall = weighted(
        (2, typed("recall", "taught", asked, on=("taught",))),
        (2, typed("recall", "taught", sometimes(asked), on=("taught",), after=damage("taught"))),
        (1, typed("recall", paths_to_read, asked, on=("run", "model"))),
    )
    harness = line(option("--tasks", ("quiz", ","), words), option("--limit", ("2",), numbers, 2))
    lm_eval = weighted(
        (1, typed("lm-eval", either, harness, on=("run", "model"))),
        (1, typed("lm-eval", paths_to_read, harness, on=("run", "model"))),
    )
    refused = line("--host", "0.0.0.0")  # without tokens this address is refused, and nothing is served for ever
    serve = weighted(
        (2, typed("serve", paths_to_read, refused, on=("run", "model"))),
        (1, typed("serve", "model", refused, on=("model",), after=damage("model"))),
        (1, typed("serve", "model", "--port", "-1", "--max-rows", numbers, on=("model",))),
    )
    reason = option("--reason", ("week 2",), words)
    versioned = ("versions", "run", "model", "child")
    source, anyway = st.sampled_from(versioned[1:]), sometimes(st.just("--anyway"), 2)
    described = [name for name in pieces.world.names("versions") if name.endswith(("/version.json", "/versions.jsonl"))]
    table = weighted((1, damage("versions")), (1, pieces.damage_of(described, inside=6)))
    promote = weighted(
        (2, typed("promote", "new", either, "--first", reason, on=("run", "model", *DATA))),
        (2, typed("promote", "new", "run", "--first", on=("run", *DATA), after=damage("run"))),
        (1, typed("promote", "new", "model", "--first", on=("model",), after=damage("model"))),
        (1, typed("promote", paths_to_write, paths_to_read, "--first", "--anyway", on=("run", "model", *DATA))),
        (1, typed("promote", paths_to_read, either, option("--notify", ("true", "'"), words), on=("run", "model"))),
        (2, typed("promote", "versions", source, anyway, reason, on=(*versioned, *DATA), after=damage("versions"))),
        (1, typed("promote", "versions", source, anyway, option("--keep-models", ("1", "2"), numbers), on=versioned)),
        (1, typed("promote", "versions", "child", anyway, on=versioned, after=damage("child"))),
    )
    back = line(option("--to", ("1", "2"), words, 2), reason)
    rollback = weighted(
        (2, typed("rollback", "versions", back, sometimes(st.just("--json")), on=("versions",))),
        (3, typed("rollback", "versions", back, on=("versions",), after=table)),
        (1, typed("rollback", paths_to_read, back, on=("run", "versions"))),
    )
    moves = line(
        option("--promote", ("1", "2"), words), sometimes(st.just("--rollback")), reason, sometimes(st.just("--json"))
    )
    versions = weighted(
        (2, typed("versions", "versions", moves, on=("versions",))),
        (3, typed("versions", "versions", moves, on=("versions",), after=table)),
        (1, typed("versions", paths_to_read, moves, on=("run", "versions"))),
    )
    picture = option("--picture", ("new.png",), paths_to_write, 2)
    runs = weighted(
        (2, typed("runs", "run", sometimes(st.just("--json")), picture, on=("run",), after=damage("run"))),
        (1, typed("runs", paths_to_read, picture, on=("run", "model"))),
        (1, typed("runs", st.sampled_from((".", "versions")), picture, on=("versions", "child"), after=table)),
    )
    diff = weighted(
        (2, typed("diff", "run", "model", sometimes(st.just("--json")), on=("run", "model", *DATA))),
        (2, typed("diff", "run", "model", on=("run", "model", *DATA), after=damage("run", "model"))),
        (1, typed("diff", paths_to_read, paths_to_read, on=("run", "versions", *DATA))),
        (1, typed("diff", "plain", "versions", on=("plain", "versions", *DATA), after=damage("versions"))),
    )
    return [
        Kind("promote", 20, promote), Kind("rollback", 12, rollback), Kind("versions", 12, versions),
        Kind("runs", 14, runs), Kind("diff", 14, diff),
        Kind("eval", 36, eval_), Kind("lm-eval", 12, lm_eval), Kind("report", 20, report), Kind("export", 24, export),
        Kind("generate", 28, generate), Kind("serve", 12, serve), Kind("teach", 16, teach), Kind("forget", 12, forget),
        Kind("recall", 14, recall), Kind("dream", 20, dream),
        Kind("transformers", 30, _folders_of_transformers(pieces)),
    ]  # fmt: skip


def _folders_of_transformers(pieces: Pieces) -> st.SearchStrategy[Case]:
    """A Llama whose settings, tokenizer or weights are not what they were."""
    on = ("llama", "recipes", *DATA)
    inside = pieces.damage_of([f"llama/{name}" for name in ("config.json", "tokenizer.json")], inside=12)
    names = st.sampled_from(PRETRAINED_SETTINGS)
    config = pieces.world.parts["llama"]["llama/config.json"]
    written = st.dictionaries(names, values, min_size=1, max_size=2).map(
        lambda given: (("llama/config.json", as_json({**json.loads(config), **given})),)
    )
    model = ("model=hf", "model.pretrained=llama")
    lines = (
        line("generate", "llama", "--max-new-tokens", "2", "--prompt", "an apple"),
        line("budget", "plain.yaml", *model),
        line("eval", "llama", "--file", "data/fruit/test.jsonl"),
        line("train", "plain.yaml", *model, sometimes(st.just("model.lora={rank: 1}")), "train.sequence_length=8",
             "stream.tasks.0.steps=1", "stream.tasks.1.steps=1"),
    )  # fmt: skip
    cases = [
        called("transformers", told, on=on, after=after, texts=texts)
        for told in lines
        for after, texts in ((pieces.damage("llama"), None), (inside, None), (None, written))
    ]
    return st.one_of(cases)


def _training(pieces: Pieces) -> list[Kind]:
    """Commands that write a run. Whole trainings take half a second, so most cases are refused before."""
    damage, overrides = pieces.damage, pieces.overrides
    recipe = st.sampled_from(("recipe.yaml", "plain.yaml"))
    folder = paths_to_write.map("output.folder={}".format)
    train = weighted(
        (3, typed("train", paths_to_read, overrides, REFUSED, on=RECIPES)),
        (3, typed("train", recipe, overrides, REFUSED, on=RECIPES, after=damage("recipes"))),
        (3, typed("train", recipe, overrides, REFUSED, on=RECIPES)),
        (1, typed("train", "plain.yaml", folder, on=(*RECIPES, *DATA, "run", "model"))),
        (2, typed("train", recipe, overrides, on=(*RECIPES, *DATA))),
        (1, typed("train", "plain.yaml", on=(*RECIPES, *DATA), after=damage("data", "cache"))),
    )
    resume = weighted(
        (1, typed("resume", "cut", on=("cut", *DATA), after=damage("cut"))),
        (1, typed("resume", "plain", on=("plain", *DATA), after=damage("plain"))),
        (2, typed("resume", "plain_cut", on=("plain_cut", *DATA), after=damage("plain_cut", "data", "cache"))),
        (1, typed("resume", "child_cut", on=("plain", "child_cut", *DATA), after=damage("child_cut"))),
        (1, typed("resume", "child", on=("plain", "child", *DATA), after=damage("child"))),
        (8, typed("resume", "cut", overrides, REFUSED, on=("cut", *DATA))),
        (1, typed("resume", ODD_RUN, sometimes(overrides, 2), on=(ODD_RUN, *DATA))),
        (8, typed("resume", paths_to_read, on=("model", "cut/config.yaml"))),
    )
    gate = option("--max-forgetting", ("0", "0.5"), numbers)
    start = ("continue", "plain", "--task", "extra", "--steps=1")
    extra = ("--task", "extra", "--folder", "data/extra", "--steps=1")
    spoilt = _whole("plain", ("no numbers", "forged", "foreign"), LAST["plain"])
    continue_ = weighted(
        (5, typed("continue", "plain", "--task", words, "--steps=1", "--folder", paths_to_read, gate, "--out",
                  paths_to_write, on=("plain", "model", *DATA))),
        (5, typed(*start, "--folder", paths_to_read, gate, "--format", words, on=("plain", *DATA))),
        (3, typed(*start, "--dataset", words, option("--subset", (), words), on=("plain", *DATA))),
        (3, typed("continue", "plain", "--task=x", "--steps", numbers, "--builtin", words, on=("plain",))),
        (5, typed("continue", paths_to_read, *extra, on=("cut", "model", "data/extra"))),
        (1, typed("continue", "plain", *extra, "--out", paths_to_write, on=("plain", "model", *DATA))),
        (1, typed("continue", ODD_RUN, *extra, gate, on=(ODD_RUN, *DATA))),
        (2, typed("continue", "run", *extra, gate, on=("run", *DATA), after=damage("run", "data"))),
        (1, typed("continue", "plain", *extra, "--max-forgetting=0.5", on=("plain", *DATA), after=spoilt)),
    )  # fmt: skip
    both = ("check", "plain", "child", gate)
    check = weighted(
        (1, typed(*both, sometimes(st.just("--json")), on=("plain", "child", *DATA))),
        (3, typed(*both, on=("plain", "child", *DATA), after=damage("child"))),
        (1, typed(*both, on=("plain", "child", *DATA), after=damage("plain", "data", "cache"))),
        (1, typed("check", "versions", "child", gate, on=("versions", "child", *DATA), after=damage("versions"))),
        (1, typed("check", "plain", "child_cut", gate, on=("plain", "child_cut", *DATA), after=damage("child_cut"))),
        (1, typed("check", paths_to_read, "child", gate, on=("plain", "child", *DATA))),
        (1, typed("check", "plain", paths_to_read, gate, on=("plain", "model"))),
    )
    return [
        Kind("train", 21, train), Kind("resume", 20, resume), Kind("continue", 20, continue_), Kind("check", 12, check),
    ]  # fmt: skip


def _whole(run: str, hows: tuple[str, ...], *steps: str) -> Strategy:
    """Damage to checkpoints as a whole, see `damage`."""
    return Pieces.damage_of([f"{run}/checkpoints/{step}" for step in steps], hows=hows)


def _functions(pieces: Pieces) -> list[Kind]:
    """The layer below the commands, where files are read: quick enough for most of the cases."""
    damage, of, world = pieces.damage, pieces.damage_of, pieces.world
    last = f"run/checkpoints/{LAST['run']}"
    checkpoint = [name for name in world.names("run") if name.startswith(last)]
    settings, tokenizer, metrics_log = "plain/config.yaml", "model/tokenizer.json", "run/metrics.jsonl"
    recorder = of(("plain/metrics.jsonl", "plain/metrics.jsonl", "plain/data.json", settings), inside=12)
    forged = _whole("plain_cut", ("forged", "forged", "foreign", "no numbers"), "step-00000003", "step-00000004")
    told = of(
        [f"plain_cut/{name}" for name in ("config.yaml", "data.json", "tokenizer.json", "metrics.jsonl")], inside=12
    )
    orphan = of(("child_cut/checkpoints", "child_cut/parent.json"), hows=("missing", "folder", "content"))
    resume_run = weighted(
        (2, called("resume_run", line("cut"), on=("cut", *DATA), after=damage("cut"))),
        (1, called("resume_run", line("cut"), on=("cut", *DATA), after=damage("cache"))),
        (2, called("resume_run", line("plain_cut"), on=("plain_cut", *DATA), after=damage("plain_cut"))),
        (2, called("resume_run", line("child_cut"), on=("child_cut", *DATA), after=damage("child_cut"))),
        (2, called("resume_run", line("plain_cut"), on=("plain_cut", *DATA), after=forged)),
        (3, called("resume_run", line("plain_cut"), on=("plain_cut", *DATA), after=told)),
        (1, called("resume_run", line("child_cut"), on=("child_cut", *DATA), after=orphan)),
    )

    def simple(name: str, weight: int, argument: str, on: str, after: Strategy) -> Kind:
        return Kind(name, weight, called(name, line(argument), on=(on,), after=after))

    return [
        Kind("load_recipe", 220, _recipes(pieces)),
        simple("read_run_config", 40, "plain", settings, of((settings,), inside=12)),
        simple("load_checkpoint", 130, last, last, of(checkpoint, inside=12)),
        simple("load_model", 45, "model", "model", damage("model")),
        simple(
            "load_pretrained", 30, "llama", "llama", of(("llama/config.json", "llama/model.safetensors"), inside=12)
        ),
        simple("read_records", 90, metrics_log, metrics_log, of((metrics_log,), inside=12)),
        simple("read_run", 60, "plain", "plain", recorder),
        simple("read_tokenizer", 45, "model", tokenizer, of((tokenizer,), inside=12)),
        Kind("read_file", 90, _data_files(pieces)),
        Kind(
            "prepare_stream",
            30,
            called("prepare_stream", line("run"), on=("run", *DATA), after=damage("cache", "data")),
        ),
        Kind("resume_run", 14, resume_run),
    ]


def _recipes(pieces: Pieces) -> st.SearchStrategy[Case]:
    """Recipes drawn value by value, damaged ones, and whole ones with overrides."""
    sections = st.sampled_from(("model", "stream", "train", "control", "strategy", "budget", "eval", "output", "x"))
    drawn = st.dictionaries(sections, values, max_size=3)
    tasks = st.dictionaries(st.sampled_from(("name", "folder", "steps", "splits", "format", "x")), values, max_size=4)
    stream = st.lists(tasks, max_size=2).map(lambda given: {"stream": {"tasks": given}})
    text = weighted((2, drawn.map(as_json)), (1, stream.map(as_json)), (1, st.sampled_from(TEXTS)))
    written = text.map(lambda told: (("short.yaml", told),))
    damage = pieces.damage_of(("plain.yaml",), inside=12)
    return weighted(
        (2, called("load_recipe", line("short.yaml"), texts=written)),
        (1, called("load_recipe", line("demo", pieces.overrides))),
        (1, called("load_recipe", line("plain.yaml", pieces.overrides), on=RECIPES)),
        (1, called("load_recipe", line("plain.yaml"), on=RECIPES, after=damage)),
    )


def _data_files(pieces: Pieces) -> st.SearchStrategy[Case]:
    """Damaged files of every kind, invalid rows, and small files that become large ones."""
    names = pieces.world.names("files")
    packed = [name for name in names if name.endswith((".gz", ".zst"))]

    def one(name: str, after: Strategy) -> st.SearchStrategy[Case]:
        return called("read_file", line(name), on=(name,), after=after)

    return weighted(
        (30, st.sampled_from(names).flatmap(lambda name: one(name, pieces.damage_of((name,), inside=24)))),
        (20, called("read_file", line("rows.jsonl"), texts=rows.map(lambda told: (("rows.jsonl", told),)))),
        (1, st.sampled_from(packed).flatmap(lambda name: one(name, pieces.damage_of((name,), hows=("bomb",))))),
    )
