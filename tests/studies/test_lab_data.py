"""The script that makes the lab's data, against local copies of dataset repositories."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from studies import lab_data
from trc2.config import load_recipe
from trc2.stream.prepare import prepare_stream

pytest.importorskip("datasets")
LESS = ["stream.tokenizer.vocab_size=300", "model.vocab_size=300", "train.batch_size=2", "train.sequence_length=16"]


def write_repository(folder: Path, subset: str, splits: dict[str, list[dict[str, str]]]) -> None:
    """A dataset repository as on the hub: files, and a card that names them."""
    folder.mkdir(parents=True)
    files = "".join(f"      - split: {split}\n        path: {split}.jsonl\n" for split in splits)
    card = f"---\nconfigs:\n  - config_name: {subset}\n    data_files:\n{files}---\n"
    (folder / "README.md").write_text(card)
    for split, rows in splits.items():
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    web = [{"text": f"Document {n} of the web has words enough to fill a window. " * 8} for n in range(60)]
    lines = [{"text": line} for n in range(5) for line in ("", f" = Title {n} = ", "", f" Article {n} . " * 60)]
    sums = [{"question": f"How much is {n} and 1?", "answer": f"{n} + 1 = {n + 1} #### {n + 1}"} for n in range(60)]
    write_repository(tmp_path / "hub" / "allenai" / "c4", "en", {"train": web})
    parts = {"train": lines, "validation": lines[:8], "test": lines[8:16]}
    write_repository(tmp_path / "hub" / "Salesforce" / "wikitext", "wikitext-2-raw-v1", parts)
    write_repository(tmp_path / "hub" / "openai" / "gsm8k", "main", {"train": sums, "test": sums[:20]})
    return tmp_path / "hub"


def test_the_folder_is_what_the_lab_recipes_read(
    hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lab_data, "C4_DOCUMENTS", 50)
    lab_data.main([str(tmp_path / "DATA"), "--hub", str(hub)])
    said = capsys.readouterr().out
    assert "c4: 42 train, 4 validation, 4 test" in said
    assert "gsm8k: 30 train, 30 validation, 20 test" in said
    overrides = [f"stream.data_root={tmp_path / 'DATA'}", f"stream.cache={tmp_path / 'packed'}", *LESS]
    stream = prepare_stream(load_recipe("lab_trc2", overrides).stream)
    assert set(stream.tasks) == {"c4", "wikitext", "gsm8k"}


def test_a_folder_with_files_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "DATA").mkdir()
    (tmp_path / "DATA" / "notes.txt").write_text("mine")
    with pytest.raises(SystemExit) as stopped:
        lab_data.main([str(tmp_path / "DATA")])
    assert stopped.value.code == 2
    assert [path.name for path in (tmp_path / "DATA").iterdir()] == ["notes.txt"]


def test_validation_questions_do_not_depend_on_the_order_of_the_rows() -> None:
    rows = [{"question": f"Question {number}?", "answer": "1"} for number in range(40)]
    first = lab_data.split_gsm8k(rows, 10)
    again = lab_data.split_gsm8k(rows[::-1], 10)
    assert len(first["validation"]) == 10
    assert {row["question"] for row in first["validation"]} == {row["question"] for row in again["validation"]}
    assert not {row["question"] for row in first["train"]} & {row["question"] for row in first["validation"]}
