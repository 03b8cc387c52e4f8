"""The doctor: judges versions, runs where nothing is installed, and says what mends."""

import subprocess
import sys
from importlib import metadata

import pytest
import tiny_run

from pipeline import doctor
from pipeline.doctor import MISSING, OK, TOO_NEW, TOO_OLD, Finding


@pytest.mark.parametrize(
    ("version", "specifier", "state"),
    [
        ("2.21.0", "==2.21.*", OK),
        ("2.22.0", "==2.21.*", TOO_NEW),
        ("2.3", "==2.21.*", TOO_OLD),
        ("3.11.7", ">=3.10,<3.12", OK),
        ("3.12.0", "<3.12,>=3.10", TOO_NEW),
        ("3.9.18", ">=3.10,<3.12", TOO_OLD),
        ("8.1.7", ">=8.1", OK),
        ("8", ">=8.0", OK),
        ("4.4.5", "<4,>=3.25", TOO_NEW),
        ("1.26.4", "~=1.26.1", OK),
        ("1.27.0", "~=1.26.1", TOO_NEW),
        ("1.26.0", "~=1.26.1", TOO_OLD),
        ("2.0.0rc1", "<=2.0", OK),
        ("1.0", "", OK),
    ],
)
def test_judge(version, specifier, state):
    assert doctor.judge(version, specifier) == state


def test_requirements_are_read_from_the_metadata(monkeypatch):
    lines = ["numpy==1.26.*", "pyserial>=3.5", 'pytest>=8; extra == "test"', "cmake<4,>=3.25"]
    monkeypatch.setattr(metadata, "requires", lambda name: lines)
    assert doctor.requirements() == [
        ("numpy", "==1.26.*", True),
        ("pyserial", ">=3.5", True),
        ("pytest", ">=8", False),
        ("cmake", "<4,>=3.25", True),
    ]


def test_packages(monkeypatch):
    monkeypatch.setattr(
        doctor, "requirements", lambda: [("a", "==1.*", True), ("b", ">=2", True), ("c", "", False), ("d", "<3", True)]
    )
    installed = {"a": "1.5", "b": "1.9", "d": "3.0"}

    def version(name):
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(metadata, "version", version)
    findings = list(doctor.check_packages())
    assert [f.state for f in findings] == [OK, TOO_OLD, MISSING, TOO_NEW]
    assert "-m pip install 'b>=2'" in findings[1].mend


def test_not_installed_at_all(monkeypatch):
    monkeypatch.setattr(doctor, "requirements", lambda: None)
    (finding,) = doctor.check_packages()
    assert finding.state == MISSING and finding.required and "pip install -e" in finding.mend


def test_tools():
    assert doctor.check_tool(["no-such-tool-here"], "", "tool").state == MISSING
    assert doctor.check_tool(["no-such-tool-here", "git"], "", "git").state == OK
    assert doctor.check_tool(["git"], ">=999", "git").state == TOO_OLD


def test_serial_ports(tmp_path):
    assert doctor.check_serial_ports(tmp_path).state == MISSING
    (tmp_path / "ttyACM0").touch()
    assert doctor.check_serial_ports(tmp_path).found == str(tmp_path / "ttyACM0")


def test_serial_ports_of_st_links_are_named(tmp_path):
    links = tmp_path / "serial" / "by-id"
    links.mkdir(parents=True)
    for port, name in (
        ("ttyACM0", "usb-STMicroelectronics_STLINK-V3_004100323033510733353533-if02"),
        ("ttyACM1", "usb-STMicroelectronics_STM32_STLink_066DFF515055657867144025-if02"),
        ("ttyACM2", "usb-Arduino__www.arduino.cc__0043_75833353035351F0F1A1-if00"),
    ):
        (tmp_path / port).touch()
        (links / name).symlink_to(tmp_path / port)
    assert doctor.check_serial_ports(tmp_path).found.split(", ") == [
        f"{tmp_path}/ttyACM0 (ST-LINK 004100323033510733353533)",
        f"{tmp_path}/ttyACM1 (ST-LINK 066DFF515055657867144025)",
        f"{tmp_path}/ttyACM2",
    ]


def test_only_required_things_decide(monkeypatch, capsys):
    good = Finding("python", OK, "3.11", ">=3.10", "")
    optional = Finding("qemu", MISSING, "", "", "apt-get install qemu", required=False)
    monkeypatch.setattr(doctor, "examine", lambda: [good, optional])
    assert doctor.main([]) == 0
    assert "missing (optional)" in capsys.readouterr().out
    monkeypatch.setattr(doctor, "examine", lambda: [good, Finding("make", MISSING, "", "", "apt-get install make")])
    assert doctor.main([]) == 1
    output = capsys.readouterr().out
    assert "Not ready: make." in output and "apt-get install make" in output


def test_runs_with_the_standard_library_alone():
    """-I -S: no site-packages, so neither this project nor anything that it needs is installed."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); from pipeline import doctor; sys.exit(doctor.main([]))"
    command = [sys.executable, "-I", "-S", "-c", code, str(tiny_run.ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and "Not ready: " in done.stdout, done.stderr


def test_usage():
    assert doctor.main(["--help"]) == 0 and doctor.main(["x"]) == 2
