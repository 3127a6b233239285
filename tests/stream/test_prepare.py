from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.chats import CHATML, MARKED, conversations, messages, write_rows, write_tokenizer
from tests.conftest import write_task
from trc2.config import RunConfig, StreamConfig
from trc2.errors import UserError
from trc2.stream.packed import COUNTED, PreparedStream
from trc2.stream.prepare import prepare_stream
from trc2.stream.tokenizer import END_OF_TEXT, train_bpe


def stream(root: Path, **changes: object) -> StreamConfig:
    tasks = [{"name": "one", "folder": "one"}]
    settings = {"tasks": tasks, "data_root": root, "cache": root / "cache", "tokenizer": {"vocab_size": 300}}
    return StreamConfig(**{**settings, **changes})


def text_of(prepared: PreparedStream, task: str, split: str) -> str:
    return prepared.tokenizer.decode(np.asarray(prepared.tasks[task].tokens(split)).tolist())


def test_packed_tokens_are_the_documents_with_an_end_between_them(tmp_path: Path) -> None:
    write_task(tmp_path, "one", ["a", "b"], documents=5)
    prepared = prepare_stream(stream(tmp_path))
    rows = [json.loads(line)["text"] for line in (tmp_path / "one" / "train.jsonl").read_text().splitlines()]
    assert text_of(prepared, "one", "train") == "".join(row + "<|endoftext|>" for row in rows)
    task = prepared.tasks["one"]
    starts = np.asarray(task.document_starts("train"))
    tokens = np.asarray(task.tokens("train"))
    assert len(starts) == task.splits["train"].documents == 5
    assert all(tokens[start - 1] == prepared.tokenizer.end_of_text for start in starts[1:])
    assert task.splits["train"].bytes == sum(len(row.encode()) for row in rows)


def test_nothing_changed_means_nothing_is_done_again(tmp_path: Path) -> None:
    write_task(tmp_path, "one", ["a", "b"])
    told: list[str] = []
    first = prepare_stream(stream(tmp_path), told.append)
    steps = ["reading text for", "training a", "packing one/train", "packing one/validation", "packing one/test"]
    assert [step for step in steps if any(text.startswith(step) for text in told)] == steps
    told.clear()
    again = prepare_stream(stream(tmp_path), told.append)
    assert told == []
    assert again.fingerprint() == first.fingerprint()


def test_the_same_files_in_another_folder_are_not_packed_again(tmp_path: Path) -> None:
    write_task(tmp_path, "one", ["a", "b"])
    first = prepare_stream(stream(tmp_path))
    shutil.copytree(tmp_path / "one", tmp_path / "next week")
    moved = prepare_stream(stream(tmp_path, tasks=[{"name": "one", "folder": "next week"}]))
    assert moved.tasks["one"].folder == first.tasks["one"].folder
    shutil.copyfile(tmp_path / "one" / "test.jsonl", tmp_path / "next week" / "validation.jsonl")
    other = prepare_stream(stream(tmp_path, tasks=[{"name": "one", "folder": "next week"}]))
    assert other.fingerprint() != first.fingerprint()


def test_changed_text_or_format_is_noticed(tmp_path: Path) -> None:
    write_task(tmp_path, "one", ["a", "b"])
    first = prepare_stream(stream(tmp_path))
    other = prepare_stream(stream(tmp_path, tasks=[{"name": "one", "folder": "one", "format": "<{text}>"}]))
    assert other.fingerprint() != first.fingerprint()
    path = tmp_path / "one" / "train.jsonl"
    path.write_text(path.read_text() + '{"text": "more"}\n')
    os.utime(path, ns=(1, 1))
    assert prepare_stream(stream(tmp_path)).fingerprint() != first.fingerprint()


def test_every_task_order_shares_the_tokenizer_and_the_fingerprint(tiny_run: Callable[..., RunConfig]) -> None:
    config = tiny_run().stream
    turned = config.replace(tasks=[task.model_dump() for task in reversed(config.tasks)])
    assert prepare_stream(turned).fingerprint() == prepare_stream(config).fingerprint()


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda root: None, "is not a folder or file: set stream.data_root"),
        (lambda root: (root / "one").mkdir(), "has no train files"),
        (
            lambda root: ((root / "one").mkdir(), (root / "one" / "train.jsonl").write_text("{\n{\n")),
            "has no train text",
        ),
    ],
)
def test_missing_text_is_told_in_a_sentence(tmp_path: Path, prepare: Callable[[Path], object], message: str) -> None:
    prepare(tmp_path)
    with pytest.raises(UserError, match=message):
        prepare_stream(stream(tmp_path, tokenizer={"vocab_size": 300}))


def test_a_tokenizer_that_does_not_exist_is_told_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    write_task(tmp_path, "one", ["a"])
    with pytest.raises(UserError, match="There is no tokenizer 'nowhere/nothing'"):
        prepare_stream(stream(tmp_path, tokenizer={"path": "nowhere/nothing"}))


def test_packed_tokens_that_are_not_what_was_written_are_packed_again(tmp_path: Path) -> None:
    write_task(tmp_path, "one", ["a", "b"])
    first = prepare_stream(stream(tmp_path))
    folder = first.tasks["one"].folder
    for name in ("train.tokens", "validation.documents", "test.tokens"):
        path = folder / name
        whole, times = path.read_bytes(), path.stat()
        path.write_bytes(whole[::-1])
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        again = prepare_stream(stream(tmp_path))
        assert path.read_bytes() == whole
        assert again.fingerprint() == first.fingerprint()
        assert again.tasks["one"].messages == (
            "The packed tokens of one in the cache were damaged and are packed again.",
        )
        assert prepare_stream(stream(tmp_path)).tasks["one"].messages == ()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff", b'{"key": 1}', b'{"checksum": "x"}', None])
@pytest.mark.parametrize(
    "name", ["tasks/*/manifest.json", "tasks/*/verified.json", "tokenizers/*.json", "overlap/*.json"]
)
def test_damaged_files_of_the_cache_are_made_again(tmp_path: Path, name: str, content: bytes | None) -> None:
    write_task(tmp_path, "one", ["a", "b"], documents=5)
    first = prepare_stream(stream(tmp_path))
    (path,) = (tmp_path / "cache").glob(name)
    whole = path.read_bytes()
    if content is None:  # still what it was in kind, but not in content
        content = whole.replace(b"1", b"2")
    path.write_bytes(content)
    again = prepare_stream(stream(tmp_path))
    assert again.fingerprint() == first.fingerprint()
    assert again.overlap == first.overlap
    assert json.loads(path.read_bytes()).keys() == json.loads(whole).keys()


def test_the_fingerprint_is_what_it_always_was(tmp_path: Path) -> None:
    write_task(tmp_path, "one", ["a", "b"], documents=20)
    (tmp_path / "one" / "validation.jsonl").unlink()
    prepared = prepare_stream(stream(tmp_path))
    content = {
        "tokenizer": prepared.tokenizer.fingerprint(),
        "tasks": {"one": {split: info.sha256 for split, info in prepared.tasks["one"].splits.items()}},
    }
    assert prepared.fingerprint() == hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    for split, info in prepared.tasks["one"].splits.items():
        tokens = (prepared.tasks["one"].folder / f"{split}.tokens").read_bytes()
        assert info.sha256 == hashlib.sha256(tokens).hexdigest()
    assert prepared.describe()["schema"] == 1


def test_the_cache_follows_the_umask(tmp_path: Path) -> None:
    write_task(tmp_path, "one", ["a", "b"], documents=5)
    earlier = os.umask(0o027)
    try:
        folder = prepare_stream(stream(tmp_path)).tasks["one"].folder
    finally:
        os.umask(earlier)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o750
    assert stat.S_IMODE((folder / "train.tokens").stat().st_mode) == 0o640


def test_a_cache_that_may_only_be_read_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_task(tmp_path, "one", ["a", "b"], documents=5)
    first = prepare_stream(stream(tmp_path))
    (first.tasks["one"].folder / "verified.json").unlink()
    before = sorted((tmp_path / "cache").rglob("*"))

    def refuse(path: Path, content: bytes) -> None:  # root may write anywhere, so permissions cannot be tried out
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("trc2.stream.cache.write_atomically", refuse)
    again = prepare_stream(stream(tmp_path))
    assert again.fingerprint() == first.fingerprint()
    assert sorted((tmp_path / "cache").rglob("*")) == before


def test_what_was_skipped_and_ignored_is_in_the_messages_also_the_second_time(tmp_path: Path) -> None:
    write_task(tmp_path, "one", ["a", "b"], documents=5)
    with (tmp_path / "one" / "train.jsonl").open("a") as file:
        file.write("no json\n")
    for name in ("a.txt", "training.txt"):
        (tmp_path / "one" / name).touch()
    for _ in range(2):
        messages = prepare_stream(stream(tmp_path)).tasks["one"].messages
        assert messages == (
            "one/train: 1 row was skipped: 1 not JSON (first at train.jsonl:6).",
            "one: 2 files are in no split and were ignored (first: a.txt): name them by splits.train, "
            "e.g. splits.train='*.txt'.",
        )
    (tmp_path / "one" / "b.txt").touch()  # does not pack again, but is reported
    assert "one: 3 files" in prepare_stream(stream(tmp_path)).tasks["one"].messages[1]


def test_a_damaged_source_file_is_told_in_a_sentence_and_leaves_nothing_behind(tmp_path: Path) -> None:
    write_task(tmp_path, "one", ["a", "b"], documents=5)
    content = gzip.compress((tmp_path / "one" / "train.jsonl").read_bytes())
    (tmp_path / "one" / "train.jsonl").unlink()
    (tmp_path / "one" / "train.jsonl.gz").write_bytes(content[:-9])
    tokenizer = train_bpe(["one two three"], 300)
    with pytest.raises(UserError, match=r"train.jsonl.gz cannot be read"):
        prepare_stream(stream(tmp_path), tokenizer=tokenizer)
    assert [path.suffix for path in (tmp_path / "cache" / "tasks").iterdir()] == [".lock"]


@pytest.mark.parametrize("brings_tokenizer", [False, True])
def test_the_stream_says_how_special_tokens_are_read_and_the_cache_knows(
    tmp_path: Path, brings_tokenizer: bool
) -> None:
    write_task(tmp_path, "one", ["a", "b"], documents=4)
    with (tmp_path / "one" / "train.jsonl").open("a") as file:
        file.write(json.dumps({"text": f"one {END_OF_TEXT} two"}) + "\n")
    mine = train_bpe(["one two three"], 300) if brings_tokenizer else None
    ends = {}
    for special in (False, True, False):
        config = stream(tmp_path, tokenizer={"vocab_size": 300, "special_in_text": special})
        prepared = prepare_stream(config, tokenizer=mine)
        ends[special] = int((prepared.tasks["one"].tokens("train") == prepared.tokenizer.end_of_text).sum())
        assert prepared.tokenizer.special_in_text == special
    assert ends == {False: 5, True: 6}


def test_other_words_of_the_same_size_and_time_are_other_data(tmp_path: Path) -> None:
    write_task(tmp_path, "one", ["a", "b"])
    first = prepare_stream(stream(tmp_path))
    path = tmp_path / "one" / "train.jsonl"
    times = path.stat()
    path.write_bytes(path.read_bytes().replace(b"a b", b"b a"))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert prepare_stream(stream(tmp_path)).fingerprint() != first.fingerprint()


def test_packed_tokens_that_change_while_they_are_read_are_noticed(tmp_path: Path) -> None:
    write_task(tmp_path, "one", ["a", "b"])
    task = prepare_stream(stream(tmp_path)).tasks["one"]
    task.check_unchanged()
    path = task.folder / "train.tokens"
    whole = path.read_bytes()
    path.write_bytes(whole[::-1])
    with pytest.raises(UserError, match="were changed while they were read"):
        task.check_unchanged()
    for cut in (10, 9):
        path.write_bytes(whole[:cut])
        with pytest.raises(UserError, match="were changed while they were read"):
            task.tokens("train")


def test_a_builtin_task_that_is_found_in_the_cache_has_no_files_that_are_gone(tmp_path: Path) -> None:
    tasks = [{"name": "sums", "builtin": "arithmetic", "steps": 1, "max_train_bytes": 9000, "max_eval_bytes": 900}]
    settings = stream(tmp_path, tasks=tasks, tokenizer={"vocab_size": 300})
    first = prepare_stream(settings)
    again = prepare_stream(settings, tokenizer=first.tokenizer, known=first.describe()["tasks"])
    assert again.tasks["sums"].notes == ()
    assert again.fingerprint() == first.fingerprint()


def chat_stream(root: Path, **task: object) -> StreamConfig:
    tasks = [{"name": "one", "folder": "one", "holdout": 0.3, **task}]
    return stream(root, tasks=tasks, tokenizer={"path": str(root / "tokenizer")})


def counted_text(prepared: PreparedStream, task: str, split: str) -> str:
    packed = prepared.tasks[task]
    labels, tokens = packed.labels(split), np.asarray(packed.tokens(split))
    chosen = tokens if labels is None else tokens[np.asarray(labels) & COUNTED > 0]
    return prepared.tokenizer.decode(chosen.tolist())


def test_a_folder_may_mix_documents_and_conversations(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "tokenizer")
    rows = [{"text": "the sky is blue"}, messages("one", "two"), {"prompt": "red", "completion": "green"}]
    write_rows(tmp_path / "one" / "train.jsonl", [*rows, rows[1], {"text": "one\ntwo"}])
    (tmp_path / "one" / "validation.txt").write_text("only text here")
    prepared = prepare_stream(chat_stream(tmp_path))
    expected = "the sky is blue<|endoftext|>two<|im_end|><|endoftext|>green<|im_end|><|endoftext|>one\ntwo<|endoftext|>"
    assert counted_text(prepared, "one", "train") == expected
    info = prepared.tasks["one"].splits["train"]
    assert (info.documents, info.chats, info.bad_rows["duplicate"]["rows"]) == (4, 2, 1)
    assert prepared.tasks["one"].is_chat("train").tolist() == [False, True, True, False]
    assert info.counted == len(prepared.tokenizer.with_settings(True, False).encode_batch([expected])[0])
    assert prepared.tasks["one"].labels("validation") is None
    assert "chats" not in prepared.describe()["tasks"]["one"]["splits"]["validation"]
    assert any("2 of 4 documents are conversations" in note for note in prepared.tasks["one"].notes)


def test_labels_change_the_fingerprint_and_damaged_labels_are_packed_again(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "tokenizer")
    write_rows(tmp_path / "one" / "train.jsonl", conversations(20))
    first, every = (prepare_stream(chat_stream(tmp_path, loss_on=loss)) for loss in ("answers", "all"))
    again = prepare_stream(chat_stream(tmp_path))
    assert first.fingerprint() == again.fingerprint() != every.fingerprint()
    assert first.tasks["one"].splits["train"].sha256 == every.tasks["one"].splits["train"].sha256
    info = every.tasks["one"].splits["train"]
    assert info.counted == info.tokens
    path = first.tasks["one"].folder / "train.labels"
    content = path.read_bytes()
    path.write_bytes(b"\3" * len(content))
    repaired = prepare_stream(chat_stream(tmp_path))
    assert any("damaged" in message for message in repaired.tasks["one"].messages)
    assert path.read_bytes() == content


def test_another_template_is_another_entry_of_the_cache(tmp_path: Path) -> None:
    write_rows(tmp_path / "one" / "train.jsonl", conversations(20))
    folders = []
    for template in (CHATML, MARKED, CHATML):
        write_tokenizer(tmp_path / "tokenizer", template)
        folders.append(prepare_stream(chat_stream(tmp_path)).tasks["one"].folder)
    assert folders[0] == folders[2] != folders[1]


def test_a_single_conversation_is_not_cut_for_validation(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "tokenizer")
    write_rows(tmp_path / "one" / "train.jsonl", [messages("one", "two")])
    with pytest.raises(UserError, match="only one conversation of train text"):
        prepare_stream(chat_stream(tmp_path))


def test_a_seed_file_of_conversations_has_labels(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "tokenizer")
    write_task(tmp_path, "one", ["a", "b"])
    write_rows(tmp_path / "old.jsonl", conversations(5))
    settings = chat_stream(tmp_path).replace(replay_prefill_files=(str(tmp_path / "old.jsonl"),))
    (seed,) = prepare_stream(settings).seeds
    assert seed.splits["train"].chats == 5


def test_a_trained_tokenizer_takes_prompts_and_completions(tmp_path: Path) -> None:
    rows = [{"prompt": f"{number} plus one is", "completion": f" {number + 1}"} for number in range(30)]
    write_rows(tmp_path / "one" / "train.jsonl", rows)
    prepared = prepare_stream(stream(tmp_path))
    assert counted_text(prepared, "one", "train").startswith(" ")
    assert any("no chat template" in message for message in prepared.tasks["one"].messages)
