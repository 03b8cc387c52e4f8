"""Results that a later, identical call reuses: a folder of files and a record of what each was made from.

A stage counts as done only when its record has the same key and its file the same SHA-256, so an interrupted or
altered file is made anew. Files and record are replaced atomically.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from converters.errors import UserError
from pipeline.files import write_atomic


@dataclass(frozen=True)
class Stage:
    """What a stage leaves: the bytes of its file and some facts (JSON), and whether they were there already."""

    data: bytes
    facts: Mapping[str, Any]
    reused: bool

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


class Stages:
    def __init__(self, folder: Path):
        self.folder = folder
        self._record = folder / "stages.json"

    def run(self, name: str, file: str, key: Any, make: Callable[[], tuple[bytes, Mapping[str, Any]]]) -> Stage:
        """The stage `name`, whose result depends on `key` (anything whose repr tells it all), in `file`."""
        digest = hashlib.sha256(repr(key).encode()).hexdigest()
        entry = self._read().get(name, {})
        path = self.folder / file
        if entry.get("key") == digest and path.is_file():
            stage = Stage(path.read_bytes(), entry["facts"], True)
            if stage.digest == entry["sha256"]:
                return stage
        stage = Stage(*make(), False)
        write(path, stage.data)
        record = self._read() | {name: {"key": digest, "sha256": stage.digest, "facts": dict(stage.facts)}}
        write(self._record, json.dumps(record, indent=1).encode())
        return stage

    def _read(self) -> dict[str, Any]:
        try:
            return json.loads(self._record.read_text())
        except (OSError, ValueError):
            return {}


def write(path: Path, data: bytes) -> None:
    """write_atomic, with the folder made where it is missing and a sentence where it fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, data)
    except OSError as error:
        raise UserError(
            f"{path} cannot be written ({error.strerror}): free some space or choose another place."
        ) from error
