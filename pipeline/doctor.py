"""What is installed, what is missing, too old or too new, and the command that mends it: python -m pipeline.doctor.

Standard library only: this has to run where nothing else does.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

DISTRIBUTION = "zo-npu"
PYTHON = ">=3.10,<3.12"  # where the distribution itself, which knows better, is not installed
PIP = "{python} -m pip install {what}"
APT = "sudo apt-get install {what}"

OK, MISSING, TOO_OLD, TOO_NEW = "ok", "missing", "too old", "too new"


@dataclass(frozen=True)
class Finding:
    """One thing looked at; mend is what puts it right. Required ones decide the exit code."""

    name: str
    state: str
    found: str
    needed: str
    mend: str
    required: bool = True


def version_of(text: str) -> tuple[int, ...]:
    """The numbers a version starts with: "2.14.0rc1" -> (2, 14, 0)."""
    match = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def judge(version: str, specifier: str) -> str:
    """OK, TOO_OLD or TOO_NEW for a specifier of comma-separated ==X.*, ==X, >=X, >X, <X, <=X, ~=X."""
    found = version_of(version)
    for operator, bound_text in re.findall(r"(==|~=|>=|<=|<|>)\s*([\d.]+)", specifier):
        bound = version_of(bound_text)
        width = len(bound)
        same = (found + (0,) * width)[:width]
        if operator == "~=":  # at least this, and the same up to the last part
            if found < bound:
                return TOO_OLD
            same, bound, operator = same[:-1], bound[:-1], "=="
        if operator == "==" and same != bound:
            return TOO_OLD if same < bound else TOO_NEW
        if (operator == ">=" and same < bound) or (operator == ">" and found <= bound):
            return TOO_OLD
        if (operator == "<" and same >= bound) or (operator == "<=" and same > bound):
            return TOO_NEW
    return OK


def requirements(distribution: str = DISTRIBUTION) -> list[tuple[str, str, bool]] | None:
    """(package, specifier, required) as our own installed metadata pins them; None where it is not installed."""
    try:
        lines = metadata.requires(distribution) or []
    except metadata.PackageNotFoundError:
        return None
    found = []
    for line in lines:
        wanted, _, marker = line.partition(";")
        name, specifier = re.match(r"\s*([\w.-]+)(?:\[[^]]*\])?\s*\(?([^)]*)\)?", wanted).groups()
        if name != distribution:  # an extra that brings another one
            found.append((name, specifier.strip(), "extra" not in marker))
    return found


def check_python() -> Finding:
    found = ".".join(map(str, sys.version_info[:3]))
    try:
        needed = metadata.metadata(DISTRIBUTION)["Requires-Python"] or PYTHON
    except metadata.PackageNotFoundError:
        needed = PYTHON
    mend = "install Python 3.11 (tflite-runtime has no wheels for other ones) and make the environment with it"
    return Finding("python", judge(found, needed), found, needed, mend)


def check_packages() -> Iterator[Finding]:
    wanted = requirements()
    if wanted is None:
        what = PIP.format(python=sys.executable, what="-e '.[test]'")
        yield Finding(DISTRIBUTION, MISSING, "", "", f"{what} (in the project's directory; it brings all packages)")
        return
    for name, specifier, required in wanted:
        mend = PIP.format(python=sys.executable, what=f"'{name}{specifier}'")
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield Finding(name, MISSING, "", specifier, mend, required)
        else:
            yield Finding(name, judge(found, specifier), found, specifier, mend, required)


def check_tool(names: Sequence[str], needed: str, package: str, *, required: bool = True, why: str = "") -> Finding:
    """A program on the path (or beside this Python, where pip puts them), by the first of its names that is there."""
    beside = str(Path(sys.executable).parent)
    path = next((p for name in names if (p := shutil.which(name) or shutil.which(name, path=beside))), None)
    mend = APT.format(what=package) + (f"  ({why})" if why else "")
    if path is None:
        return Finding(names[0], MISSING, "", needed, mend, required)
    found = _tool_version(path)
    return Finding(names[0], judge(found, needed) if found else OK, found or path, needed, mend, required)


def _tool_version(path: str) -> str:
    try:
        reply = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return ""
    match = re.search(r"\d+\.\d+(\.\d+)*", reply.stdout + reply.stderr)
    return match.group() if match else ""


def _st_links(root: Path) -> dict[str, str]:
    """Serial numbers of ST-LINKs by their ports, where the system lists them (Linux, udev)."""
    found = {}
    for link in (root / "serial" / "by-id").glob("usb-STMicroelectronics_*"):
        if match := re.search(r"ST-?LINK.*?_(\w+)-if", link.name, re.IGNORECASE):
            found[str(link.resolve())] = match.group(1)
    return found


def check_serial_ports(root: Path = Path("/dev")) -> Finding:
    ports = sorted(str(p) for pattern in ("ttyACM*", "ttyUSB*", "cu.usbmodem*") for p in root.glob(pattern))
    boards = _st_links(root)
    ports = [f"{port} (ST-LINK {boards[port]})" if port in boards else port for port in ports]
    mend = "connect a board by USB; native, emulated and twin targets need none"
    return Finding("serial port", OK if ports else MISSING, ", ".join(ports), "", mend, required=False)


def examine() -> list[Finding]:
    return [
        check_python(),
        *check_packages(),
        check_tool(["cc", "gcc", "clang"], "", "build-essential"),
        check_tool(["make", "gmake"], "", "make"),
        check_tool(["git"], "", "git", required=False),
        check_tool(
            ["arm-none-eabi-gcc"], ">=10", "gcc-arm-none-eabi", required=False, why="firmware for Cortex-M boards"
        ),
        check_tool(["qemu-system-arm"], ">=7.0", "qemu-system-arm", required=False, why="the emulated Cortex-M55"),
        check_serial_ports(),
    ]


def render(findings: Sequence[Finding]) -> str:
    width = max(len(f.name) for f in findings)
    lines = []
    for f in findings:
        state = f.state if f.state == OK or f.required else f"{f.state} (optional)"
        needed = f"needs {f.needed}" if f.needed else ""
        lines.append(f"{f.name:<{width}}  {state:<19}  {f.found:<12}  {needed}".rstrip())
    wrong = [f for f in findings if f.state != OK]
    if wrong:
        lines += ["", "To mend:", *(f"  {f.name:<{width}}  {f.mend}" for f in wrong)]
    bad = [f.name for f in wrong if f.required]
    lines += ["", f"Not ready: {', '.join(bad)}." if bad else "Everything that is required is there."]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments:
        print(
            "Usage: python -m pipeline.doctor\n\nSays what is installed, missing, too old or too new; and the remedy."
        )
        return 0 if arguments[0] in ("-h", "--help") else 2
    findings = examine()
    print(render(findings))
    return 1 if any(f.required and f.state != OK for f in findings) else 0


if __name__ == "__main__":
    sys.exit(main())
