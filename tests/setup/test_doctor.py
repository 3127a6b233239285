from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command import trc2
from trc2.setup import doctor as checkup
from trc2.setup.doctor import check_up


def test_everything_is_looked_at_with_a_line_of_advice_each() -> None:
    findings = {finding.name: finding for finding in check_up(quick=True)}
    assert list(findings)[:9] == [
        "versions", "device", "number format", "compiler", "threads", "load", "memory", "disk, here", "disk, cache",
    ]  # fmt: skip
    assert all(f.value and f.advice.endswith(".") and "\n" not in f.advice for f in findings.values())
    assert "torch" in findings["versions"].value
    assert findings["number format"].value in ("float32", "bfloat16", "float16")
    assert not any(name.startswith("speed") for name in findings)


def test_crowded_cores_and_full_disks_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup, "busy_cores", lambda: 100.0)
    monkeypatch.setattr(checkup.shutil, "disk_usage", lambda place: type("Usage", (), {"free": 1e9}))
    worries = {finding.name for finding in check_up(quick=True) if not finding.fine}
    assert {"load", "disk, here", "disk, cache"} <= worries


def test_the_command_prints_a_table_or_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "number format" in trc2("doctor", "--quick").out
    report = json.loads(trc2("doctor", "--quick", "--json").out)
    assert report["schema"] == 1
    assert {"name", "value", "advice", "fine"} == set(report["findings"][0])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_speed_probe_takes_about_ten_seconds_and_gives_a_rate() -> None:
    found = {finding.name: finding.value for finding in check_up()}
    assert float(found["speed, training"].split()[0].replace(",", "")) > 100
