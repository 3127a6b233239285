"""Invalid words, numbers, paths and settings, as hypothesis strategies."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

TITLE = "\x1b]0;owned\x07"  # sets a terminal's title
LONG = "x" * 300  # longer than a file's name may be
ODD_RUN = "[bold]\x1b[31m | `run`"  # a finished run's folder

WORDS = (
    "", " ", "-", "--", "x", "nan", "null", "true", "off", "~", "[]", "{}", "[/red]", "[bold]x", "[link=x]y[/link]",
    ":smile:", "\x1b[31mred", TITLE, "\x07", "\x9b31m", "\x85", "\u202eevil", "\u2028", "a\nb", "a\tb", "\r", "\udcff",
    "é漢字🦊", "🦊" * 80, LONG, "a/" * 2500, "../x", "%s%n", "{0}", "{text}", "{", "*x", "&a",
    "!!python/name:os.system", "<|endoftext|>", "`x`", "$(x)", "|", "#", "'", '"', "\\", "2024-13-45", "=", "a=b",
    "'''", "\ufeff", "text", "none",
)  # fmt: skip
NUMBERS = (
    "nan", "inf", "-inf", ".nan", ".inf", "-.inf", "-1", "-0", "0", "1", "2", "3", "0.5", "1.5", "1e400", "1e-400",
    "-1e308", "1e308", "4294967296", "2147483648", "9223372036854775807", "9223372036854775808", "18446744073709551616",
    "-9223372036854775809", "1" + "0" * 30, "1" * 5000, "0x10", "1_000", "٣", "", " 5", "5 ", "1:30", "1e", "+", "∞",
)  # fmt: skip


def weighted(*choices: tuple[int, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    """One of several strategies, by weight. `one_of` would take equal ones for one."""
    urn = [strategy for weight, strategy in choices for _ in range(weight)]
    return st.sampled_from(urn).flatmap(lambda drawn: drawn)


any_text = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=12)
words = weighted((6, st.sampled_from(WORDS)), (1, any_text))
numbers = weighted(
    (6, st.sampled_from(NUMBERS)),
    (1, st.integers(-3, 99).map(str)),
    (1, st.integers().map(str)),
    (1, st.floats().map(repr)),
)

# Every command runs in a scratch folder that holds the parts of the world its case asks for, and these oddities.
ODDITIES = ("loop", "dangling", "empty", "empty.txt", "[bold]x", "\x1b[31mred.jsonl", "🦊", "nothing.yaml")
TO_READ = (
    "run", "cut", "plain", "child", "versions", "model", "data", "data/fruit", "recipe.yaml", "missing", ".",
    "..", "", "/", "/dev/null", "/dev/zero", "run/config.yaml", "run/checkpoints", "run/checkpoints/step-00000006",
    "run/../run/.", "recipe.yaml/x", LONG, "a/" * 2500, "\udcff", "-", "~", "~/x", *ODDITIES,
)  # fmt: skip
TO_WRITE = (
    "new", "new/deep/er", "run", "model", "data", "recipe.yaml", "recipe.yaml/x", "/dev/null", "/dev/null/x",
    "/dev/full", "/proc/none/x", LONG, "new/" + LONG, "a/" * 2500, "", ".", "..", "a\nb", "\udcff", "~", "~/x", TITLE,
    "run/summary.md", "new/", "./new", "run/new", *ODDITIES,
)  # fmt: skip
FILES = (
    "files/rows.jsonl", "files/rows.jsonl", "files/rows.jsonl.gz", "files/rows.jsonl.zst", "files/lines.txt",
    "files/lines.txt.gz", "files/lines.txt.zst", "files/rows.parquet", "data/fruit/test.jsonl",
)  # fmt: skip

paths_to_read = weighted((3, st.sampled_from(TO_READ)), (1, st.sampled_from(FILES)), (1, words))
paths_to_write = weighted((3, st.sampled_from(TO_WRITE)), (1, words))

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.integers(-2, 40), st.floats(), st.sampled_from(WORDS),
)  # fmt: skip
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.sampled_from(("name", "1", "text", "")), st.text(max_size=5)), inner, max_size=3),
    ),
    max_leaves=5,
)


# Rows of a data file: what a careless export, a crawl or somebody's joke puts there.
ROWS = (
    '{"text": "an apple a day"}', '{"text": "an apple a day"}', '{"text": ""}', '{"text": " "}', '{"text": null}',
    '{"text": 3}', '{"text": ["a"]}', "{}", "[]", "3", "null", '"text"', "", "   ", "{", '{"text": "a"',
    '{"text": "\\ud800"}', "\ufeff{}", '{"text": "\\u0000"}', '{"text": "<|endoftext|>"}',
    '{"text": "a<|endoftext|>b"}', '{"text": "\\u001b[31m"}', "[" * 3000, '{"text": "' + "🦊" * 50 + '"}',
    '{"text": "' + "e\u0301" * 200 + '"}', '{"text": "a\u2028b\u0085c"}', '{"text": "a"}\r', '{"text": NaN}',
    '{"text": "a", "text": "b"}', '{"text": ' + "1" * 5000 + "}", '{"question": "a", "answer": "b"}',
)  # fmt: skip
LONG_ROWS = (
    '{"text": "' + "x" * 200_000 + '"}',
    '{"text": "' + "ab " * 60_000 + '"}',
    '{"text": "' + "\u0301" * 100_000 + '"}',
)
told_rows = any_text.map(lambda text: json.dumps({"text": text}))
few_rows = st.lists(weighted((3, st.sampled_from(ROWS)), (1, told_rows)), max_size=6)
huge_rows = st.lists(st.sampled_from((*ROWS, *LONG_ROWS)), max_size=3)
rows = st.builds(
    lambda lines, end: "\n".join(lines) + end,
    weighted((20, few_rows), (1, huge_rows)),
    st.sampled_from(("\n", "", "\n\n", "\r\n", "\0")),
)


def as_json(value: object) -> str:
    """JSON is YAML too, except for infinite numbers and NaN, which stay as Python writes them."""
    return json.dumps(value)


# Settings whose large values only make a run long, which is allowed. So are 40 s of compiling.
LONG_BY_RIGHT = ("steps", "micro_batches", "compile")

MALFORMED = (
    "", "=", "a", "=3", ".=1", "..=1", "model", "model.d_model", "model..d_model=3", ".model.d_model=3", "model.=3",
    "model=", "model=null", "model=3", "model=[1]", "model={1: 2}", "model={}", "model=trc3", "model=transformer",
    "model.name=[1]", "model.name={}", "model.name=null", "model.name=trc3", "model.d_modell=3", "stream=null",
    "stream=[]", "stream={1: 2}", "stream.tasks=[]", "stream.tasks=null", "stream.tasks=[1]", "stream.tasks=[{}]",
    "stream.tasks.0.steps=1", "stream.tasks.0.x=1", "stream.tasks.9.steps=1", "stream.tasks.-1.steps=1",
    "stream.tasks.x.steps=1", "stream.tasks.fruit.steps=1", "stream.only=[]", "stream.only=[x]", "stream.only=fruit",
    "strategy=ewc", "strategy=x", "strategy=null", "strategy=[1]", "strategy.name=[1]", "strategy={1: 2}",
    "control=off", "control.mode=off", "control.mode=on", "control.mode=null", "train=null", "train=[]", "train={1: 2}",
    "train.seed=2024-13-45", "train.seed=4294967296", "train.seed=-1", "train.seed=true", "train.betas=[1]",
    "train.betas=[0.9, 0.9, 0.9]", "train.betas={}", "control.coefficient_range=[1, 0]", "control.batch_range=[6, 2]",
    "budget.match=flops", "budget.match=tokens", "budget.reference=x", "budget={match: flops, reference: '[/red]'}",
    "budget={match: flops, reference: recipe.yaml}", "eval=null", "output=null", "output.folder=null",
    "output.folder=[1]", "output.device=cuda", "output.device=x", "output.device='[/red]'", "output.device=cuda:99",
    "output.device=meta", "output.report_to=[x]", "output.report_to=tensorboard", "output.report_to=[wandb]",
    "base=demo", "base=x", "x=1", "x.y.z=1", "[/red]=1", "model.[/red]=1", "\x1b[31m=1", "model.d_model=\x1b[31m",
    "model.d_model='[/red]'", "model.d_model=!!python/object:x", "model.d_model=!!binary x", "model.d_model=*a",
    "model.d_model=&a 3", "model.d_model=[", "model.d_model={", "model.d_model='", "model.d_model=%", "model.d_model=@",
    "model.d_model=" + "[" * 3000, "model.d_model=" + "{a: " * 500, "model." * 2000 + "x=1", "x" * 5000 + "=1",
    "stream.tokenizer.path=x", "stream.tokenizer.path=data", "stream.tokenizer.path=/dev/null",
    "stream.tokenizer.path=model", "stream.tokenizer.path=''", "stream.tokenizer.path='[/red]'",
    f"stream.tokenizer.path={LONG}", "stream.tokenizer.vocab_size=1", "stream.tokenizer.vocab_size=257",
    "stream.data_root=x", "stream.data_root=/dev/null", f"stream.data_root={LONG}", "stream.data_root=''",
    "stream.data_root=loop", "stream.cache=recipe.yaml", "stream.cache=/dev/null", f"stream.cache={LONG}",
    "stream.cache=loop", "stream.cache=/proc/none", "stream.cache=''", "stream.cache=empty", "stream.cache=null",
)  # fmt: skip

SPLITS = (
    "/etc/hostname", "../x", "/", "", "*", "**", "[", "[]", "?" * 300, LONG, "train*", "\x1b[31m", "..", ".", "a/**",
)  # fmt: skip
NAMES = ("''", "A", "x" * 250, "'[/red]'", "'..'", "'a/b'", "null", "1", "[1]", "'\\e[31m'", "-a", "'é'", "fruit\n")
TASKS = tuple(
    f"stream.tasks=[{{name: fruit, steps: 1, folder: {folder}}}]"
    for folder in ("fruit", "x", "''", "/", "..", LONG, "'[/red]'", "loop", "/dev/null", "null", "[1]", "'\\e[31m'")
) + tuple(
    f"stream.tasks=[{{name: {name}, steps: 1, folder: fruit}}]"
    for name in NAMES
) + tuple(
    f"stream.tasks=[{{name: fruit, steps: 1, folder: fruit, splits: {{{split}: {json.dumps(pattern)}}}}}]"
    for split in ("train", "validation", "test")
    for pattern in SPLITS
) + tuple(
    f"stream.tasks=[{{name: fruit, steps: 1, folder: fruit, {setting}}}]"
    for setting in (
        "format: ''", "format: '{'", "format: '{x}'", "format: '{text!r}'", "format: '{text.__class__}'",
        "format: '[/red]'", "holdout: .nan", "holdout: 1", "holdout: 0", "max_document_bytes: 1",
        "max_train_bytes: 1",
        "max_eval_bytes: 1", "license: '[/red]'", "license: '\\e[31m'", "dataset: x", "dataset: '../..'",
        "builtin: code",
        "streaming: true", "subset: x", "max_document_bytes: 18446744073709551616", "steps: 1.5",
    )
)  # fmt: skip
