"""WikiText is one corpus, whether it comes as lines or as articles."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from trc2.config import StreamConfig, load_recipe
from trc2.stream.document import BadRows, Document, join_articles
from trc2.stream.packed import PreparedStream
from trc2.stream.prepare import prepare_stream


def article(title: str, *paragraphs: str) -> str:
    """As the original files have it: blank lines are a space, an article ends with two of them."""
    lines = [f" = {title} = ", " "]
    for number, paragraph in enumerate(paragraphs):
        lines += [" ", f" = = Part {number} = = ", " ", f" {paragraph} ", " See also the others . "]
    return "\n".join([*lines, " ", " "])


ARTICLES = [
    article("Lobster", "A clawed animal .", "It is blue ."),
    article("Filter", "The plots have ω\n = 1 rad / s and k = \n 1 Ω ."),  # a formula that was broken into lines
    article("Book", "Source :\n \n = From despair to hope = \n a report ."),  # a blank line before it, none after
    article("Highway"),
    article("M @-@ 82 ( Michigan ) = longer", "A title with its sign inside ."),
]
LINES = ["", *(line for text in ARTICLES for line in text.split("\n"))]
ROWS = [{"text": "" if not line.strip() else f"{line}\n"} for line in LINES]  # as the hub has it


def documents(rows: Iterator[Document] | list[Document], limit: int = 100_000) -> tuple[list[str], BadRows]:
    bad = BadRows()
    return [document.text for document in join_articles(rows, limit, bad)], bad


def as_rows(lines: list[dict[str, str]]) -> list[Document]:
    return [Document(row["text"], f"row:{number}") for number, row in enumerate(lines)]


def write_splits(folder: Path, kind: str) -> None:
    import pyarrow
    import pyarrow.parquet

    folder.mkdir()
    for split in ("train", "validation", "test"):
        if kind == "articles":
            text = "".join(json.dumps({"text": text, "title": "…"}) + "\n" for text in ARTICLES)
            (folder / f"{split}.jsonl").write_text(text)
        elif kind == "raw":
            (folder / f"{split}.txt").write_text("\n".join(LINES).replace("\n\n", "\n \n") + "\n")
        elif kind == "sharded":  # an article may go on in the next file
            for shard, rows in enumerate((ROWS[:9], ROWS[9:])):
                path = folder / f"{split}-{shard:05d}-of-00002.parquet"
                pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        else:
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), folder / f"{split}.parquet")


def packed(root: Path, kind: str, *, from_hub: bool = False, streaming: bool = False) -> PreparedStream:
    write_splits(root / kind, kind)
    source = {"dataset": str(root / kind), "streaming": streaming} if from_hub else {"folder": kind}
    task = {"name": "wikitext", "format": "wikitext", **source}
    stream = {"tasks": [task], "tokenizer": {"vocab_size": 300}, "cache": root / f"cache {kind}"}
    return prepare_stream(StreamConfig(**stream, data_root=None if from_hub else root))


@pytest.mark.parametrize(
    ("kind", "from_hub", "streaming"),
    [("lines", True, False), ("lines", True, True), ("lines", False, False), ("sharded", True, False),
     ("sharded", False, False), ("raw", False, False)],
)  # fmt: skip
def test_lines_and_articles_give_the_same_tokens(tmp_path: Path, kind: str, from_hub: bool, streaming: bool) -> None:
    articles = packed(tmp_path, "articles")
    lines = packed(tmp_path, kind, from_hub=from_hub, streaming=streaming)
    assert lines.fingerprint() == articles.fingerprint()
    found, known = lines.tasks["wikitext"], articles.tasks["wikitext"]
    assert found.splits["train"].documents == len(ARTICLES)
    assert found.splits["train"].bad_rows == {}  # blank rows are not faults, repeated lines are not duplicates
    for split in ("train", "validation", "test"):
        assert (found.document_starts(split) == known.document_starts(split)).all()


def test_articles_in_rows_of_their_own_are_left_as_they_are() -> None:
    rows = [*(Document(text, "") for text in ARTICLES), Document("no title\nand no blank line", "")]
    found, bad = documents(rows)
    assert found == [*ARTICLES, "no title\nand no blank line"]
    assert bad.counts == {}


def test_no_more_than_one_article_is_held() -> None:
    taken = []

    def rows() -> Iterator[Document]:
        for row in as_rows(ROWS):
            taken.append(row)
            yield row

    articles = join_articles(rows(), 100_000, BadRows())
    assert next(articles).text == ARTICLES[0]
    assert len(taken) == 1 + len(ARTICLES[0].split("\n")) + 2  # the next title, and the line that shows it is one


def test_an_article_beyond_the_limit_is_told_and_the_next_one_is_read() -> None:
    long = [{"text": " = Long = \n"}, {"text": ""}, *({"text": " word \n"} for _ in range(1000)), {"text": ""}]
    found, bad = documents(as_rows([*long, *ROWS]), limit=500)
    assert found == ARTICLES
    assert bad.counts == {"over-long": 1}
    assert bad.examples["over-long"] == ["row:0"]
    edge = len(ARTICLES[0].encode())
    assert ARTICLES[0] in documents(as_rows(ROWS), edge)[0]
    assert ARTICLES[0] not in documents(as_rows(ROWS), edge - 1)[0]


@pytest.mark.parametrize("recipe", ["lab_trc2", "paper_d768_l4"])
def test_the_recipes_read_wikitext_by_article(recipe: str) -> None:
    stream = load_recipe(recipe).stream
    assert stream is not None
    assert {task.name: task.format for task in stream.tasks} == {"c4": "text", "wikitext": "wikitext", "gsm8k": "gsm8k"}
