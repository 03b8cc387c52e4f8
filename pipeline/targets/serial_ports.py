"""Serial ports of this machine: which one is a board's, and why one cannot be opened."""

from __future__ import annotations

import errno
import getpass
from pathlib import Path

from serial.tools import list_ports
from serial.tools.list_ports_common import ListPortInfo

from converters.errors import UserError

ST_VENDOR = 0x0483
# ST-LINKs with a serial port: V2-1, V3E, V3S, V3 with two ports, V3E without a drive (as V3EC), V3PWR. From OpenOCD's
# src/jtag/drivers/stlink_usb.c; 0x3744 and 0x3748 (V1, V2) have none, 0x374D and 0x3755 wait for their own firmware.
ST_LINKS = {0x374B, 0x3752, 0x374E, 0x374F, 0x3753, 0x3754, 0x3757}


def find_st_link() -> str:
    """The serial port of the one ST-LINK that is connected. Raises UserError where there is none, or more than one."""
    ports = sorted(list_ports.comports(), key=lambda port: port.device)
    found = [port for port in ports if port.vid == ST_VENDOR and port.pid in ST_LINKS]
    if len(found) == 1:
        return found[0].device
    if found:
        raise UserError(
            f"there are {len(found)} serial ports of ST-LINKs ({_list(found)}): "
            f"name the board's, --port {found[0].device}, say."
        )
    ports = [port for port in ports if port.vid is not None]  # not those that are soldered in
    others = f"; of the other serial ports ({_list(ports)}) name the board's with --port" if ports else ""
    raise UserError(
        "no ST-LINK is connected, or it has no serial port: "
        f"plug the USB cable into the board's ST-LINK connector{others}."
    )


def _list(ports: list[ListPortInfo]) -> str:
    return "; ".join(_describe(port) for port in ports)


def _describe(port: ListPortInfo) -> str:
    name = port.product or (port.description if port.description != "n/a" else None)
    parts = [part for part in (name, port.serial_number and f"serial number {port.serial_number}") if part]
    return f"{port.device}: {', '.join(parts)}" if parts else port.device


def why_closed(port: str, error: Exception) -> str:
    """Why a port could not be opened and what to do, for the user."""
    number = getattr(error, "errno", None)
    if number == errno.EACCES:
        join = f"sudo usermod -aG {_group(port)} {getpass.getuser()}"
        return f"you may not use the serial port {port}: run {join}, then log out and in again."
    if number in (errno.EBUSY, errno.EAGAIN):
        return f"another program holds the serial port {port}: close it (fuser -v {port} says which one it is)."
    if number in (errno.ENOENT, errno.ENODEV, errno.ENXIO):
        there = _list(sorted(list_ports.comports(), key=lambda found: found.device))
        return (
            f"there is no serial port {port} ({f'there is {there}' if there else 'nor any other'}): "
            "is the board plugged in? Without --port its ST-LINK is looked for."
        )
    return f"{port} cannot be opened as a serial port ({error}): python -m pipeline.doctor lists the ports."


def _group(port: str) -> str:
    """The group that may use the port: dialout on most systems."""
    try:
        name = Path(port).group()
    except (OSError, KeyError, NotImplementedError):
        return "dialout"
    return name if name != "root" else "dialout"
