"""A saved model that is taught documents knows them at once, and forgets them exactly."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
import torch

import trc2
from tests.command import trc2 as command
from tests.conftest import QUIET, write_task
from tests.teaching.conftest import documents
from trc2 import UserError, load_model
from trc2.backbones.shell import Backbone
from trc2.config import TaskConfig
from trc2.continuing.continue_run import continue_run
from trc2.continuing.request import ContinuationRequest, child_config
from trc2.generate.sampling import Sampling, generate_ids
from trc2.recall.gate import MAX_RISE
from trc2.recall.store import read_store, store_path
from trc2.runs.folder import RunFolder
from trc2.runs.lock import lock_folder
from trc2.runs.target import find_target
from trc2.stream.prepare import prepare_stream
from trc2.stream.tokenizer import Tokenizer
from trc2.teaching.fit import MIN_DOCUMENTS
from trc2.training.resume import resume_run

OLD = "apple pear plum fig saw axe drill file 0123456789"
KEEP = [OLD, "plum fig apple pear", "file saw drill axe"]  # else the model samples text, which takes seconds


def opened(folder: Path) -> tuple[Backbone, Tokenizer]:
    net, tokenizer = find_target(str(folder)).trained_model(print)
    return net.eval(), tokenizer


@torch.no_grad()
def loss(folder: Path, texts: list[str]) -> float:
    """Mean loss of texts in nats per token."""
    net, tokenizer = opened(folder)
    total = count = 0.0
    for ids in tokenizer.encode_batch(texts):
        row = torch.tensor([ids[: net.config.max_positions + 1]])
        total += float(net.predict(row[:, :-1], row[:, 1:]).nll.sum())
        count += row.shape[1] - 1
    return total / count


def identity(folder: Path) -> str:
    recall = opened(folder)[0].recall
    assert recall is not None
    return recall.identity


@torch.no_grad()
def logits(folder: Path) -> torch.Tensor:
    net, tokenizer = opened(folder)
    ids = tokenizer.encode_batch([f"{documents(1, seed=9)[0]} {OLD}"])[0]
    return net(torch.tensor([ids[: net.config.max_positions]]))[0]


def test_a_hundred_documents_are_known_at_once_and_forgotten_to_the_bit(saved_model: Path) -> None:
    model, unseen = trc2.load_model(saved_model), documents(20, seed=1)
    files = {path.name: path.read_bytes() for path in saved_model.iterdir()}
    before, first = loss(saved_model, unseen), logits(saved_model)
    begun = time.perf_counter()
    change = model.teach(documents(100), source="reports")
    assert time.perf_counter() - begun < 30  # seconds, on a busy machine too
    assert len(change.documents) + change.known == 100
    assert change.gain is not None
    assert change.gain > 1.0
    assert change.keep_rise is not None
    assert change.keep_rise <= MAX_RISE
    assert loss(saved_model, unseen) < before - 1.0
    assert not torch.equal(logits(saved_model), first)
    assert {path.name: path.read_bytes() for path in saved_model.iterdir() if path.is_file()} == files
    gone = model.forget(source="reports*")
    assert len(gone.documents) == len(change.documents)
    assert torch.equal(logits(saved_model), first)
    assert model.documents() == []


def test_text_that_was_known_before_does_not_get_worse(exported: Path, tiny_data: Path) -> None:
    rows = (tiny_data / "fruit" / "validation.jsonl").read_text().splitlines()
    known = [row[10:-3] for row in rows]
    before = loss(exported, known)
    trc2.load_model(exported).teach(documents(40), keep=tiny_data / "fruit" / "train.jsonl")
    assert loss(exported, known) < before + 2 * MAX_RISE
    store = read_store(exported, 300, opened(exported)[1].fingerprint())
    assert store is not None
    assert store.keep_source == "files"


def test_teaching_in_two_parts_or_forgetting_a_part_gives_the_same_store(exported: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(exported, tmp_path / "other"))
    texts = documents(30)
    one, two = trc2.load_model(exported), trc2.load_model(other)
    one.teach(texts[:20], source="a", keep=KEEP)
    alone = logits(exported)
    one.teach(texts[20:], source="b")
    two.teach([*texts[:20], *texts[20:]], source="a", keep=KEEP)
    assert torch.equal(logits(exported), logits(other))  # gate included
    assert identity(exported) == identity(other)
    one.forget(source="b:*")
    assert torch.equal(logits(exported), alone)
    assert identity(exported) != identity(other)
    assert [d.number for d in one.teach(["a new one"], source="c").documents] == [len(two.documents()) + 1]


def test_forgetting_down_to_a_few_documents_leaves_no_sampled_text(exported: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(exported, tmp_path / "other"))
    texts = documents(12)
    trc2.load_model(exported).teach(texts[:3], source="few")
    trc2.load_model(exported).teach(texts[3:], source="many")
    trc2.load_model(exported).forget(source="many*")
    trc2.load_model(other).teach(texts[:3], source="few")
    stores = [read_store(folder, 300, opened(folder)[1].fingerprint()) for folder in (exported, other)]
    assert [(store.keep, store.keep_source) for store in stores if store is not None] == [((), "")] * 2


def test_few_documents_get_the_default_gate_and_help_all_the_same(exported: Path) -> None:
    text = documents(1)[0]
    before = loss(exported, [text])
    change = trc2.load_model(exported).teach([text])
    assert change.gate is not None
    assert f"1 documents are fewer than the {MIN_DOCUMENTS}" in change.gate.reason
    assert loss(exported, [text]) < before - 0.5


def test_a_document_is_stored_once(exported: Path) -> None:
    model = trc2.load_model(exported)
    model.teach(documents(3))
    content = store_path(exported).read_bytes()
    again = model.teach(documents(3))
    assert (len(again.documents), again.known) == (0, 3)
    assert store_path(exported).read_bytes() == content


def test_generation_is_deterministic_and_equals_the_network_without_a_cache(saved_model: Path) -> None:
    trc2.load_model(saved_model).teach(documents(40), keep=KEEP)
    net, tokenizer = opened(saved_model)
    prompt = tokenizer.encode_batch(["ada met dan"])[0]

    def generated(temperature: float, seed: int = 0) -> list[int]:
        return list(generate_ids(net, prompt, Sampling(12, temperature, 0.9, seed)))

    assert generated(1.0) == generated(1.0)
    ids = list(prompt)
    for token in generated(0.0):
        with torch.no_grad():
            assert token == int(net(torch.tensor([ids]))[0][0, -1].argmax())
        ids.append(token)
    assert tokenizer.decode(ids).startswith("ada met dan in")  # as in every document


def test_beams_and_left_padding_of_transformers_read_the_documents(exported: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    import trc2.hf  # registers the Auto classes

    trc2.load_model(exported).teach(documents(40), keep=KEEP)
    tokenizer, model = AutoTokenizer.from_pretrained(exported), AutoModelForCausalLM.from_pretrained(exported).eval()
    texts = ["ada met", "finn saw ada in"]
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    together = model.generate(**batch, max_new_tokens=6, num_beams=3, do_sample=False)
    for row, text in zip(together, texts, strict=True):
        alone = model.generate(
            **tokenizer(text, return_tensors="pt"), max_new_tokens=6, num_beams=3, do_sample=False
        )[0]  # fmt: skip
        assert row[-6:].tolist() == alone[-6:].tolist()
    assert any(name in tokenizer.decode(together[0]) for name in (" dan", " hana"))  # whom people met
    with torch.no_grad():
        read, off = (model(**batch, memory=memory).logits for memory in ("read", "off"))
    assert not torch.equal(read, off)
    with pytest.raises(UserError, match="inputs_embeds"):
        model(inputs_embeds=torch.zeros(1, 2, model.config.hidden_size))


def test_only_one_process_changes_a_store(exported: Path) -> None:
    with lock_folder(exported / "recall"), pytest.raises(UserError, match="is in use by process"):
        trc2.load_model(exported).teach(["some text"])


def test_a_damaged_store_stops_the_model_with_a_sentence(exported: Path) -> None:
    trc2.load_model(exported).teach(documents(2))
    store_path(exported).write_bytes(store_path(exported).read_bytes()[:-1])
    with pytest.raises(UserError, match=r"store\.safetensors"):
        opened(exported)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda model: model.teach([]), "nothing to teach"),
        (lambda model: model.teach("no such file"), "There is no file or folder"),
        (lambda model: model.teach(["", "a"]), "Text 1 is"),
        (lambda model: model.teach([3]), "Text 1 is 3"),
        (lambda model: model.forget(), "Nothing was named"),
        (lambda model: model.forget(document="1"), "was taught nothing"),
        (lambda model: model.recall("a b"), "was taught no documents"),
        (lambda model: (model.teach(["a b c"]), model.forget(document="7")), "no document '7'"),
        (lambda model: (model.teach(["a b c"]), model.forget(source="x*")), r"matches 'x\*'"),
        (lambda model: (model.teach(["a b c"]), model.recall("")), "The prompt is empty"),
    ],
)
def test_mistakes_are_told_in_a_sentence(exported: Path, act: object, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        act(trc2.load_model(exported))  # type: ignore[operator]
    assert "\n" not in str(caught.value)


def test_runs_versions_and_recipes_are_not_taught(trained: Path, exported: Path, tmp_path: Path) -> None:
    for place, message in ((trained, "trc2 export"), ("demo", "is a recipe")):
        with pytest.raises(UserError, match=message):
            trc2.SavedModel(place).teach(["some text"])
    shutil.copytree(exported, tmp_path / "v1" / "model")
    (tmp_path / "v1" / "version.json").write_text("{}")
    (tmp_path / "versions.jsonl").write_text("")
    for place in (tmp_path, tmp_path / "v1", tmp_path / "v1" / "model"):
        with pytest.raises(UserError, match="never change"):
            trc2.SavedModel(place).teach(["some text"])
    with pytest.raises(UserError, match="export the run first"):
        trc2.load_model(trained)


def test_files_without_a_document_of_the_format_are_named_with_the_reason(exported: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    done = command("teach", str(exported), str(tmp_path / "rows.jsonl"), "--format", "gsm8k")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "2 rows were skipped: 2 without 'question'" in done.err


def test_the_next_continue_replays_what_was_taught(exported: Path, tmp_path: Path) -> None:
    load_model(exported).teach(documents(12))
    write_task(tmp_path, "colours", ["red", "blue"])
    task = TaskConfig(name="colours", folder=str(tmp_path / "colours"), steps=2)
    child = continue_run(exported, tmp_path / "child", task, QUIET)
    stream = RunFolder(child).config().stream
    assert stream is not None
    (seed,) = prepare_stream(stream, tokenizer=RunFolder(child).tokenizer()).seeds
    store = read_store(exported, None, RunFolder(child).tokenizer().fingerprint())
    assert store is not None
    assert seed.tokens("train").tolist() == [token for document in store.documents for token in document.tokens]
    load_model(exported).forget(source="*")
    with pytest.raises(UserError, match="no taught documents any more"):
        resume_run(child, [], QUIET)
    alone = child_config(exported, ContinuationRequest((task,)), tmp_path / "alone").stream
    assert alone is not None
    assert alone.replay_prefill_files == ()


def test_a_limit_in_bytes_holds_from_then_on(exported: Path) -> None:
    model, texts = load_model(exported), documents(40)
    first = model.teach(texts[:20], max_bytes=300)
    assert (len(first.documents) + first.left_out, first.store.num_bytes <= 300) == (20, True)
    second = model.teach(texts[20:])
    assert second.store.num_bytes <= 300
    assert second.left_out > 0
    at_once = load_model(exported)
    at_once.forget(source="*")
    at_once.teach(texts, max_bytes=300)
    assert {d.sha256 for d in at_once.documents()} == {d.sha256 for d in second.store.documents}
    with pytest.raises(UserError, match="has no room for any document: use"):
        model.teach(texts, max_bytes=1)
