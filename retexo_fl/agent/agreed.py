"""What an owner's federation file lets its client be added up with, and whether it still may."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from retexo_fl.agent.promises import part_digest
from retexo_fl.agent.settings import AgentSettings
from retexo_fl.channels.federation import Federation
from retexo_fl.channels.identity import Identity
from retexo_fl.channels.owner_secret import OwnerSecret
from retexo_fl.channels.owner_words import Signature, past_in, past_told
from retexo_fl.errors import AgreementError, CheckpointError
from retexo_fl.files import FileStamp, file_stamp
from retexo_fl.line_log import LineLog
from retexo_fl.masking.agreement import Agreement
from retexo_fl.masking.past_cohorts import PastCohort

#: Versions of this client's cohort, a file that only grows: no later roster forgets one.
_LOG: Final = "cohorts.jsonl"


class OwnersFile:
    """The federation file of one agent's owner.

    Args:
        settings: Name it, and the part, which is looked at now.
        identity: This client's.
    """

    def __init__(self, settings: AgentSettings, identity: Identity) -> None:
        self._path = Path(settings.roster)
        self._identity = identity
        self._log = LineLog(Path(settings.state) / _LOG)
        self._part = part_digest(Path(settings.partition))
        self._read: tuple[FileStamp | None, Federation] | None = None

    def agreement(self) -> Agreement:
        """Return what all owners agreed on, if this client may answer by it.

        From then on no other file may set apart a few of those who are in its cohort.

        Raises:
            AgreementError: The file has no agreement, somebody did not sign it, its part is another
                than was promised, or it forgets a cohort in which this client answered.
            IdentityError: The file cannot be used.
            CheckpointError: The log of cohorts cannot be used.
        """
        return self._agreed().agreement

    def brings(self) -> frozenset[str]:
        """Return the uses that this client's owner promised data of.

        Raises:
            AgreementError: As :meth:`agreement`; likewise the others.
        """
        return self._agreed().brought[self._identity.client].uses

    def _agreed(self) -> Federation:
        stamp = file_stamp(self._path)
        if self._read is not None and self._read[0] == stamp:
            return self._read[1]
        federation = self.checked()
        version = next(v for v in federation.versions if self._identity.client in v.members)
        if version not in self._answered_in():
            self._log.add(past_told(version))
        self._read = stamp, federation
        return federation

    def checked(self) -> Federation:
        """Return the file, which this client may answer by.

        Raises:
            AgreementError: As :meth:`agreement`; likewise the others.
        """
        federation = Federation.read(self._path)
        if federation is None:
            raise AgreementError(
                f"client {self._identity.client}: its roster file has no agreement of the owners; "
                "expected one for masked sums (retexo keys member, roster and sign), or "
                "secure-aggregation none"
            )
        # Raises where somebody did not sign.
        _ = federation.agreement
        self._check(federation)
        return federation

    def sign(self, federation: Federation) -> Signature:
        """Sign what is proposed, if this client may answer by it.

        Raises:
            AgreementError: As :meth:`agreement`; or the file does not have this owner's promise.
            IdentityError: The key or the owner's secret cannot be used.
            CheckpointError: As :meth:`agreement`.
        """
        signed = federation.sign(self._identity, OwnerSecret.beside(self._identity.key_path))
        self._check(federation)
        return signed

    def _check(self, federation: Federation) -> None:
        """Check that the owner's promise is of this part, and that no cohort of it is forgotten.

        The file has to know each cohort in which this client answered, in this order.
        """
        client = self._identity.client
        brought = federation.brought.get(client)
        own = OwnerSecret.beside(self._identity.key_path).part(self._part)
        if brought is None or brought.part != own:
            raise AgreementError(
                f"client {client}: its part is another than the one that its owner promised; "
                "expected that one, or a new agreement (retexo keys member)"
            )
        is_signed = federation.signatures.keys() == federation.roster.members.keys()
        later = iter(federation.history if is_signed else federation.past)
        for version in self._answered_in():
            if version not in later:
                members = ", ".join(map(str, sorted(version.members)))
                raise AgreementError(
                    f"client {client}: the roster file does not name the cohort "
                    f"{members}, in which it answered before; expected one that was made with "
                    "--former"
                )

    def _answered_in(self) -> list[PastCohort]:
        """Return the versions of its cohort in which this client answered, the first one first."""
        try:
            return [past_in(line) for line in self._log.read()]
        except AgreementError as error:
            raise CheckpointError(
                f"{self._log.path}: is damaged; expected the cohorts that this client was added up "
                "in"
            ) from error
