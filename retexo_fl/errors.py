"""Every error that retexo_fl raises on purpose: one tree, one screen.

An error states what is wrong, where, and what was expected, in one line that its reader can act on.
``exit_code`` is what the command line ends with: 1 a named failure of the run, 2 bad input.
Any other exception is a bug of ours.
"""

from __future__ import annotations

from typing import ClassVar


class RetexoError(Exception):
    """Base of all named failures."""

    exit_code: ClassVar[int] = 1


# ---- bad input: nothing was started, nothing was written ------------------------------------


class InputError(RetexoError):
    """The user's input cannot be used."""

    exit_code: ClassVar[int] = 2


class ConfigurationError(InputError):
    """A configuration key is unknown, of the wrong type, out of range, or contradicts another."""


class DatasetError(InputError):
    """A data set is unknown, absent, or holds values that cannot be trained on."""


class PartitionError(InputError):
    """A partition is missing, damaged, of another version, or disagrees with its peers."""


class TableError(InputError):
    """A table of nodes or edges cannot be read, or its rows contradict each other.

    Attributes:
        problems: One line for each.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class PluginError(InputError):
    """A ``module:attribute`` cannot be imported or does not satisfy the protocol of its kind."""


class RunDirectoryError(InputError):
    """A run directory holds another run, or is not a run that can be resumed or reported."""


class IdentityError(InputError):
    """A key, a certificate or a roster cannot be used, or they do not belong together."""


class AgreementError(InputError):
    """What owners agree on for masked sums hides nobody, or what they signed is something else."""


# ---- failures of a run ------------------------------------------------------------------------


class ProtocolError(RetexoError):
    """The exchange protocol was broken (abstract)."""


class LocalProtocolError(ProtocolError):
    """This side asked the protocol for something it does not allow."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something that the protocol or the shared plan does not allow."""


class ChannelError(RetexoError):
    """A channel could not carry bytes (abstract)."""


class ChannelUnavailable(ChannelError):
    """This machine cannot use the channel; the message says which part is missing."""


class ChannelClosed(ChannelError):
    """The channel was closed, by either side."""


class ChannelTimedOut(ChannelError):
    """The channel did not answer within its time-out."""


class PeerRefused(ChannelError):
    """A peer is not who it claims to be, offered what it may not, or took more than its share."""


class ExchangeIncomplete(RetexoError):
    """An exchange was closed while vectors of a peer were missing."""


class ClientFailed(RetexoError):
    """A client answered with an error, or its process ended."""


class PluginFailed(RetexoError):
    """A ``module:attribute`` raised an exception while the run used it."""


class DeviceFailed(RetexoError):
    """A worker of this machine's devices answered with an error, ended, or hangs."""


class AgentUnreachable(RetexoError):
    """The agent of this machine does not answer on its socket."""


class RoundIncomplete(RetexoError):
    """Clients did not answer a message within its deadline."""


class StaleAttempt(RetexoError):
    """A message belongs to an attempt of the job that was superseded."""


class TrainingDiverged(RetexoError):
    """A loss, gradient or weight is no longer finite."""


class CheckpointError(RetexoError):
    """A checkpoint could not be written, or does not belong to this run."""


class EngineFailed(RetexoError):
    """Flower's own processes could not start or ended early; the message points to their log."""


class NotBegun(EngineFailed):
    """A SuperLink did not take the run."""


class Interrupted(RetexoError):
    """The user stopped the run; it can be resumed."""

    exit_code: ClassVar[int] = 130


class SecureAggregationRefused(RetexoError):
    """A client would reveal more than a sum over enough clients, or a key cannot be believed."""


class MaskingKeysLost(SecureAggregationRefused):
    """A client has no masking keys of the attempt: its process began anew. It gets others."""
