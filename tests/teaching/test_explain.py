"""Which documents a model recalls, as a table, as JSON and as a page."""

from __future__ import annotations

import html
import json
from pathlib import Path

import pytest

import trc2
from tests.command import trc2 as command
from tests.teaching.conftest import WriteRows, documents
from trc2.recall.store import store_path

FACT = "the code of the vault is zebra nine"


def test_a_recalled_token_names_its_documents(exported: Path) -> None:
    model = trc2.load_model(exported)
    model.teach([FACT, "the code of the door is apple two", "nothing about it"], source="facts")
    tokens = model.recall("the code of the vault is", max_new_tokens=12)
    made = "".join(token.text for token in tokens if not token.is_prompt)
    assert made.startswith(" zebra")  # greedy, from the one document that has this context
    zebra = [token for token in tokens if not token.is_prompt][1]
    assert zebra.from_store > 0.5
    assert [origin.source for origin in zebra.origins] == ["facts:1"]
    assert zebra.context == 4
    shared = [token for token in tokens if {o.source for o in token.origins} == {"facts:1", "facts:2"}]
    assert "cod" in "".join(token.text for token in shared)
    assert all(sum(origin.part for origin in token.origins) == pytest.approx(1.0) for token in shared)
    assert all(0 <= token.from_store <= 1 and 0 < token.probability <= 1 for token in tokens)


def test_shares_and_probabilities_are_those_of_the_model(exported: Path) -> None:
    import torch

    from trc2.runs.target import find_target

    model = trc2.load_model(exported)
    model.teach(documents(12), keep=["plum fig"])
    tokens = model.recall("eve met hana in", max_new_tokens=0)
    net, tokenizer = find_target(str(exported)).trained_model(print)
    ids = torch.tensor(tokenizer.encode_batch(["eve met hana in"]))
    with torch.no_grad():
        nll = net.eval().predict(ids[:, :-1], ids[:, 1:]).nll[0]
    assert [token.probability for token in tokens] == pytest.approx(nll.neg().exp().tolist(), rel=1e-4)
    assert "".join(token.text for token in tokens) == "ve met hana in"


def test_the_commands_teach_list_explain_and_forget(exported: Path, write_rows: WriteRows, tmp_path: Path) -> None:
    rows, model = write_rows("reports.jsonl", documents(12)), str(exported)
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "fact.md").write_text(FACT)
    keep = write_rows("keep.jsonl", ["plum fig apple", "saw axe"])
    assert "was taught no documents" in command("recall", model).out
    done = command("teach", model, str(rows), str(notes), "--keep", str(keep))
    assert done.code == 0, done.err
    assert "Taught 13 documents" in done.out
    assert "Loss of the text to keep" in done.out
    listed = json.loads(command("recall", model, "--json").out)["documents"]
    assert len(listed) == 13
    assert listed[-1]["source"].endswith("notes/fact.md:1")
    page = tmp_path / "page.html"
    shown = command("recall", model, "--prompt", "the code of the vault is", "--html", str(page))
    assert shown.code == 0, shown.err
    assert "fact.md" in shown.out
    assert "fact.md" in page.read_text()
    gone = json.loads(command("forget", model, "--source", "*/fact.md", "--json").out)
    assert [document["source"] for document in gone["documents"]] == [listed[-1]["source"]]
    assert gone["stored"]["documents"] == 12
    done = command("forget", model, "--document", listed[0]["id"], "--document", "2")
    assert "Forgot 2 documents. 10 are left. The weights are untouched" in done.out
    assert command("forget", model, "--source", "*").code == 0
    assert not store_path(exported).exists()
    for wrong in (["teach", model, "nowhere"], ["forget", model], ["recall", model, "--html", str(page)]):
        assert command(*wrong).code == 2


def test_generate_and_eval_use_what_was_taught(exported: Path, write_rows: WriteRows) -> None:
    model, unseen = str(exported), write_rows("unseen.jsonl", documents(6, seed=3))

    def perplexity(*options: str) -> float:
        done = command("eval", model, "--file", str(unseen), "--json", *options)
        assert done.code == 0, done.err
        return float(json.loads(done.out)[str(unseen)]["perplexity"])

    before = perplexity()
    trc2.load_model(exported).teach([*documents(30), FACT], keep=["plum fig apple"])
    assert perplexity() < 0.7 * before
    asked = ("generate", model, "--prompt", "the code of the vault is", "--temperature", "0", "--max-new-tokens", "6")
    assert " zebra" in command(*asked).out
    assert " zebra" not in command(*asked, "--memory", "off").out


def test_nothing_from_outside_becomes_part_of_the_page(exported: Path) -> None:
    from trc2.teaching.explain import explanation_page

    hostile = "<script>alert(1)</script>"
    model = trc2.load_model(exported)
    model.teach([f"{hostile} is a text"], source='"><img src=x>')
    tokens = model.recall(hostile, max_new_tokens=3)
    page = explanation_page(hostile, tokens)
    assert hostile not in page
    assert "<img" not in page
    assert html.escape('"><img src=x>:1') in page


@pytest.mark.slow
def test_an_export_takes_taught_documents_along_only_if_asked(exported: Path, tmp_path: Path) -> None:
    from tests.conftest import write_task

    trc2.load_model(exported).teach(documents(12), keep=["plum fig apple"])
    write_task(tmp_path, "colours", ["red", "blue"])
    run = trc2.continue_from(
        exported, {"colours": tmp_path / "colours"}, steps=2, folder=tmp_path / "child", quiet=True
    )  # fmt: skip
    plain, whole = run.export(tmp_path / "plain"), run.export(tmp_path / "whole", with_store=True)
    assert not (plain / "recall").exists()
    assert "recall/" not in (plain / "README.md").read_text()
    assert len(trc2.load_model(whole).documents()) == len(trc2.load_model(exported).documents())
    assert "`recall/` holds 12 documents" in (whole / "README.md").read_text()
    trc2.load_model(exported).forget(source="*")
    with pytest.raises(trc2.UserError, match="leave --with-store out"):
        run.export(tmp_path / "again", with_store=True)
