"""Who the peers are: from a roster file, or from the server where there is none.

A server that introduces clients could introduce itself in their place. So a roster file wins over
what the server says, and without one the agent must be set to trust it (``introductions``).
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from retexo_fl.agent.agreed import OwnersFile
from retexo_fl.agent.counters import CounterFile
from retexo_fl.agent.question_log import questions_in
from retexo_fl.agent.settings import AgentSettings
from retexo_fl.agent.transports import reachable_at
from retexo_fl.channels.identity import Identity, fingerprint
from retexo_fl.channels.key_signing import RosterSigner
from retexo_fl.channels.network import PeerNetwork
from retexo_fl.channels.roster import Member, Roster
from retexo_fl.client.log_lines import line
from retexo_fl.errors import CheckpointError, IdentityError
from retexo_fl.files import write_whole

logger = logging.getLogger(__name__)

#: The server's roster, kept for a restart.
_FILE: Final = "introduced.toml"


class Introductions:
    """What one agent believes of the others.

    Args:
        settings: Name the roster file, or permit introductions.
        identity: This client's.
    """

    def __init__(self, settings: AgentSettings, identity: Identity) -> None:
        self._settings = settings
        self._identity = identity
        #: Gets every roster that is believed.
        self.network: PeerNetwork | None = None

    def roster(self) -> Roster:
        """Return who the peers are as far as is known.

        Raises:
            IdentityError: The roster file cannot be used.
        """
        if self._has_file:
            return Roster.read(Path(self._settings.roster))
        kept = self._kept
        return Roster.read(kept) if kept.exists() else Roster.of(())

    def signer(self) -> RosterSigner | None:
        """Return what signs by this client's key and checks by the roster file; None without it.

        It counts as a start of this client.

        Raises:
            CheckpointError: As :meth:`.CounterFile.begun`.
        """
        if not self._has_file:
            return None
        state = Path(self._settings.state)
        owners = OwnersFile(self._settings, self._identity)
        counters = CounterFile.begun(state, lambda: questions_in(state))
        return RosterSigner(
            identity=self._identity,
            roster=self.roster,
            agreement=owners.agreement,
            brings=owners.brings,
            counters=counters.own,
            others=counters.remember,
        )

    def own_entry(self) -> str:
        """Return this client's entry for the rosters of others, TOML."""
        client = self._identity.client
        known = self.roster().members.get(client)
        addresses = self._settings.addresses or (known.addresses if known else ())
        member = Member(
            client=client,
            certificate_pem=self._identity.certificate_pem,
            addresses=addresses or reachable_at(self._settings.listen),
        )
        return Roster.of([member]).text()

    def take(self, text: str) -> int:
        """Take the clients that the server introduces; return how many are accepted.

        Raises:
            IdentityError: It is no roster, it has another certificate for this client, or this
                agent neither has a roster file nor believes the server.
            CheckpointError: It could not be kept.
        """
        introduced = Roster.parse(text)
        if self._has_file:
            return len(self._compare(introduced).members)
        if not self._settings.introductions:
            raise IdentityError(
                f"client {self._identity.client}: no roster file and introductions = false; "
                "expected a roster, or introductions = true, in its agent.toml"
            )
        assert self.network is not None
        self.network.replace_roster(introduced)
        try:
            write_whole(self._kept, [introduced.text().encode()])
        except OSError as error:
            raise CheckpointError(
                f"{self._kept}: could not be written ({error.strerror})"
            ) from error
        logger.info(line("introduced", members=len(introduced.members)))
        return len(introduced.members)

    def _compare(self, introduced: Roster) -> Roster:
        """Name those whom the server introduces with another certificate than the file has."""
        believed = self.roster()
        for client, member in introduced.members.items():
            known = believed.members.get(client)
            if known is None:
                logger.warning(line("unknown", peer=client, reason="not in the roster file"))
            elif known.digest != member.digest:
                logger.warning(
                    line(
                        "impostor",
                        peer=client,
                        reason="the server sent another certificate than the roster file has; the "
                        "file's is used",
                        shown=fingerprint(member.certificate_pem),
                        believed=fingerprint(known.certificate_pem),
                    )
                )
        return believed

    @property
    def _has_file(self) -> bool:
        settings = self._settings
        return bool(settings.roster) and (
            Path(settings.roster).exists() or not settings.introductions
        )

    @property
    def _kept(self) -> Path:
        return Path(self._settings.state) / _FILE
