"""Reports of the doctor: made once for many, ended with who asked, and never a crash."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from warren.doctor.reports import ATTACK_FILE, DoctorReports, read_attack_report, save_attack_report
from warren.model.errors import Unavailable

pytestmark = pytest.mark.anyio

_CHECKS = '{"checks": [{"name": "a", "level": "ok", "found": "", "remedy": ""}], "counts": {"ok": 1}}'


def program(folder: Path, text: str) -> list[str]:
    (folder / "program.py").write_text(text)
    return [sys.executable, str(folder / "program.py")]


async def test_many_askers_share_one_run(tmp_path: Path) -> None:
    command = program(tmp_path, f"open('{tmp_path}/runs', 'a').write('x'); print('''{_CHECKS}'''); raise SystemExit(1)")
    reports = DoctorReports(command, {}, tmp_path)
    found = await asyncio.gather(*(reports.report() for _ in range(5)))
    assert [each["counts"] for each in found] == [{"ok": 1}] * 5
    assert (tmp_path / "runs").read_text() == "x"
    await DoctorReports(command, {}, tmp_path, fresh_s=0).report()
    assert (tmp_path / "runs").read_text() == "xx"


async def test_a_program_that_fails_is_an_error_and_its_end_is_not_waited_for_twice(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="could not be made"):
        await DoctorReports(program(tmp_path, "print('no json')"), {}, tmp_path).report()


async def test_whoever_leaves_ends_the_run(tmp_path: Path) -> None:
    text = f"import os, time; open('{tmp_path}/pid', 'w').write(str(os.getpid())); time.sleep(1000)"
    asking = asyncio.create_task(DoctorReports(program(tmp_path, text), {}, tmp_path).report())
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        await asyncio.sleep(0.01)
    asking.cancel()
    await asyncio.wait([asking])
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text()}").exists()


async def test_the_report_of_an_attack_is_kept_for_this_user_alone(tmp_path: Path) -> None:
    assert read_attack_report(tmp_path) is None
    save_attack_report(tmp_path, {"at": 1.0, "summary": "1 of 2 contained"})
    save_attack_report(tmp_path, {"at": 2.0, "summary": "2 of 2 contained"})
    assert read_attack_report(tmp_path) == {"at": 2.0, "summary": "2 of 2 contained"}
    assert [each.name for each in tmp_path.iterdir()] == [ATTACK_FILE]
    assert (tmp_path / ATTACK_FILE).stat().st_mode & 0o777 == 0o600
    for wrong in ("", "[]", '{"at": "x"}', json.dumps({"summary": 1})):
        (tmp_path / ATTACK_FILE).write_text(wrong)
        assert read_attack_report(tmp_path) is None
    save_attack_report(tmp_path / "nowhere", {"at": 1.0})
