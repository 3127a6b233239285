"""The rules of the fuzzer say yes and no where they should."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.cases import Case, Cases, Damage, Kind, line, typed
from tests.fuzz.judge import Judge, Ran, snapshot
from tests.fuzz.values import words
from trc2.versions.table import Event, add_event


def broken(case: Case, ran: Ran, folder: Path, before: dict[str, bytes | str] | None = None) -> list[str]:
    """The names of the rules a case broke, judged without a world."""
    judge = Judge(Any, folder, {})  # type: ignore[arg-type]
    return [problem.rule for problem in judge.judge(case, ran, before or {})]


@pytest.mark.parametrize(
    ("command", "code", "out", "err", "rules"),
    [
        ("eval", 0, "a table\n", "", []),
        ("eval", 2, "", "error: There is no file x.\n", []),
        ("eval", 2, "", "step-3 is damaged.\nTrying the one before.\nerror: None is whole.\n", []),
        ("check", 2, "", "x keeps the limit of 5.0% with which it began: a larger one is not used.\nerror: No.\n", []),
        ("eval", 2, "", "Usage: trc2 eval\nan option is missing\n", []),
        ("verify", 1, "", "", []),
        ("continue", 3, "", "gate: too much\n", []),
        ("eval", 2, "", "error: one.\ntwo.\n", ["one sentence"]),
        ("eval", 2, "", "UserWarning: x\nerror: one.\n", ["one sentence"]),
        ("eval", 2, "", "error: \n", ["one sentence"]),
        ("eval", 2, "", "", ["one sentence"]),
        ("eval", 0, "", "Traceback (most recent call last):\n", ["one sentence"]),
        ("eval", 1, "", "Aborted.\n", ["exit code"]),
        ("eval", 3, "", "", ["exit code"]),
        ("eval", 130, "", "", ["exit code"]),
        ("eval", 0, "\x1b[31m", "", ["control characters"]),
        ("eval", 2, "", "error: \x9b31m is not a file.\n", ["control characters"]),
        ("generate", 0, "\x1b[31m", "", []),
    ],
)
def test_an_output_is_right_or_breaks_a_rule(
    command: str, code: int, out: str, err: str, rules: list[str], tmp_path: Path
) -> None:
    assert broken(Case(command, (command,)), Ran(code, out, err), tmp_path) == rules


def test_a_file_that_was_there_must_still_be_there(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("a: 1")
    (tmp_path / "run" / "metrics.jsonl").write_text("1\n2\n3")
    before = snapshot(tmp_path)
    look = Case("eval", ("eval", "run"))
    (tmp_path / "run" / "metrics.jsonl").write_text("1\n2\n4\n")
    assert broken(look, Ran(0, "", ""), tmp_path, before) == []  # a torn line gone, a whole one added
    (tmp_path / "run" / "metrics.jsonl").write_text("1\n")
    assert broken(look, Ran(0, "", ""), tmp_path, before) == ["unchanged"]
    (tmp_path / "run" / "config.yaml").unlink()
    assert broken(look, Ran(0, "", ""), tmp_path, before) == ["unchanged", "unchanged"]


def test_a_refused_command_leaves_nothing_in_its_own_way(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "metrics.jsonl").write_text("")
    refused = Ran(2, "", "error: no.\n")
    assert broken(Case("train", ("train",)), refused, tmp_path) == ["left behind"]


def test_a_model_that_is_no_number_does_not_pass_the_gate(tmp_path: Path) -> None:
    damage = (Damage("plain/checkpoints/step-00000006", "no numbers", 0),)
    gated = Case("continue", ("continue", "plain", "--max-forgetting=0.5"), damage=damage)
    assert broken(gated, Ran(0, "", ""), tmp_path) == ["gate"]
    assert broken(gated, Ran(3, "", ""), tmp_path) == []


def test_damaged_files_do_not_make_a_refused_child_acceptable(tmp_path: Path) -> None:
    def passed(*argv: str, damaged: str, how: str = "content") -> list[str]:
        case = Case(argv[0], argv, parts=("child",), damage=(Damage(damaged, how, 0),))
        return [problem.rule for problem in Judge(Any, tmp_path, {})._passed(case)]  # type: ignore[arg-type]

    assert passed("check", "plain", "child", damaged="child/held_out/fruit.jsonl") == ["gate"]
    assert passed("export", "child", "new", damaged="child/acceptance.json", how="missing") == ["gate"]
    assert passed("promote", "versions", "child", damaged="child/metrics.jsonl") == ["gate"]
    assert passed("export", "child", "new", "--anyway", damaged="child/metrics.jsonl") == []
    assert passed("check", "plain", "child", damaged="child/parent.json", how="missing") == ["gate"]
    assert passed("check", "plain", "child", damaged="child/parent.json") == []  # it holds the limit
    assert passed("export", "child", "new", damaged="child/acceptance.json") == []  # it holds the verdict
    assert passed("diff", "plain", "child", damaged="child/metrics.jsonl") == []


def test_a_table_of_versions_may_only_grow(tmp_path: Path) -> None:
    (tmp_path / "versions").mkdir()
    table = tmp_path / "versions" / "versions.jsonl"
    table.write_text("1\n2\n")
    before = snapshot(tmp_path)
    back = Case("rollback", ("rollback", "versions"))
    table.write_text("1\n2\n3\n")
    assert broken(back, Ran(0, "", ""), tmp_path, before) == []
    assert broken(back, Ran(2, "", "error: There is none.\n"), tmp_path, before) == ["unchanged"]
    table.write_text("1\n3\n")
    assert broken(back, Ran(0, "", ""), tmp_path, before) == ["unchanged"]


def test_files_of_a_version_may_go_if_the_table_says_so(tmp_path: Path) -> None:
    versions = tmp_path / "versions"
    for name in ("0001-a", "0002-b"):
        (versions / name / "model").mkdir(parents=True)
        for file in ("version.json", "model/config.json"):
            (versions / name / file).write_text("{}")
    add_event(versions / "versions.jsonl", Event(1, "promote", "0001-a", "now"))
    before = snapshot(tmp_path)
    add_event(versions / "versions.jsonl", Event(2, "prune", "0001-a", "now", removed="all"))
    (versions / "0001-a" / "model" / "config.json").unlink()
    keep = Case("promote", ("promote", "versions", "model", "--keep-models", "1"))
    assert broken(keep, Ran(0, "", ""), tmp_path, before) == []
    (versions / "0002-b" / "model" / "config.json").unlink()
    assert broken(keep, Ran(0, "", ""), tmp_path, before) == ["unchanged"]


def test_a_number_is_always_the_same_case() -> None:
    kinds = [Kind("a", 2, typed("a", words, words)), Kind("b", 1, typed("b", line(words)))]
    first, second = Cases(kinds, seed=3), Cases(kinds, seed=3)
    drawn = [first[number] for number in range(40)]
    assert [second[number] for number in reversed(range(40))] == drawn[::-1]
    assert {case.kind for case in drawn} == {"a", "b"}
    assert [Cases(kinds, seed=4)[number] for number in range(40)] != drawn
