"""What an agent has predicted: a file for each model and form, and beside it which job made it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from retexo_fl.client.api import PredictedRequest, PredictRequest
from retexo_fl.errors import CheckpointError
from retexo_fl.files import write_whole
from retexo_fl.graph.parts.manifest import MANIFEST_NAME
from retexo_fl.methods.predict.files import check_written_form, predictions_name, set_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionSets:
    """Predictions of one client, below a folder that its owner named.

    Attributes:
        folder: It has a folder for each model.
        client: Index.
        part: 64 hex digits of the client's part: of its manifest, which lists all of its content.
    """

    folder: Path
    client: int
    part: str

    @classmethod
    def of(cls, folder: Path, client: int, part: Path) -> Self:
        """Take the client's part as it is on disk."""
        digest = hashlib.sha256((part / MANIFEST_NAME).read_bytes()).hexdigest()
        return cls(folder=folder, client=client, part=digest)

    def note(self, request: PredictRequest) -> None:
        """Note, beside a file that was written, which job made it of which part.

        Raises:
            CheckpointError: That could not be written.
        """
        path = set_folder(self.folder, request.set_name) / self._name(request.form)
        note = path.with_name(f"{path.name}.json")
        text = json.dumps(self._facts(request.ticket.job, path), indent=1)
        try:
            write_whole(note, [f"{text}\n".encode()], durable=True)
        except OSError as error:
            raise CheckpointError(f"{note}: could not be written ({error.strerror})") from error

    def is_there(self, request: PredictedRequest) -> bool:
        """Return whether a job's file is there, as it was written and of the present part.

        Raises:
            LocalProtocolError: There is no such form, or no such name of a set.
        """
        path = set_folder(self.folder, request.set_name) / self._name(request.form)
        try:
            noted = json.loads(path.with_name(f"{path.name}.json").read_bytes())
            return bool(noted == self._facts(request.ticket.job, path))
        except (OSError, ValueError):
            return False

    def _name(self, form: str) -> str:
        # Nothing else that a server writes may become a path.
        check_written_form(form)
        return predictions_name(self.client, form)

    def _facts(self, job: str, path: Path) -> dict[str, Any]:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"job": job, "part": self.part, "file": path.name, "sha256": digest}
