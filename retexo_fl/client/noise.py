"""The noise that a client adds to its sums before they are masked, so that these are private.

Such sums are updates, or those that a last layer is solved from.

A sum is over a whole cohort. Each honest member adds its share, so that what the server reads has
all of the noise that the run promises, whoever else works with the server.

The noise follows from a secret of the client's own, from all that the numbers are of, and from
these themselves: the same numbers have the same noise, in whatever attempt and under whatever keys,
and of two others nobody can take the difference. So a question that is asked again reveals nothing
more. Each answer with noise that leaves is a release, which is noted before.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from retexo_fl.client.api import BasisRequest, GramRequest, Request, TrainRequest
from retexo_fl.client.masks import NOISED, ClientMasks
from retexo_fl.config import RunConfig
from retexo_fl.errors import CheckpointError, LocalProtocolError
from retexo_fl.files import write_whole
from retexo_fl.gaussian_privacy import NoisedReleases
from retexo_fl.masking.discrete_gaussian import MOST_VARIANCE, discrete_gaussian
from retexo_fl.masking.keys import bound, derived, number
from retexo_fl.masking.streams import Sums
from retexo_fl.training.clipped_products import noised_step
from retexo_fl.units import counted
from retexo_fl.updates.masked import is_noised, steps_changed

if TYPE_CHECKING:
    from retexo_fl.client.client import GraphClient
    from retexo_fl.client.row_noise import RowReleaseLog

SECRET_BYTES: Final = 32
#: Of an agent in its state folder, of a simulation in the run's directory: no other file has it.
KEY_FILE: Final = "noise.key"
#: A sum of discrete Gaussian numbers is one, and one is what can be made of a continuous one whose
#: variance is smaller by this, but for a chance below 2**-100 with 2**20 values: four times the
#: least that is needed (Peikert, CRYPTO 2010, theorem 3.1; Kairouz, Liu and Steinke, ICML 2021,
#: theorem 1). So the exact formula of continuous noise holds.
SPARE_VARIANCE: Final = 16
#: By question that is answered with noise, what this is for, and of how many parts of the answer's
#: numbers the first is of train nodes: products of validation nodes are as many, and one.
_HIDDEN: Final[Mapping[type[Request[Any]], tuple[bytes, int]]] = MappingProxyType(
    {
        TrainRequest: (b"retexo noised update 1", 1),
        BasisRequest: (b"retexo noised basis 1", 1),
        GramRequest: (b"retexo noised products 1", 2),
    }
)
assert _HIDDEN.keys() <= NOISED


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One answer with noise that leaves.

    Attributes:
        job: Of the question; likewise ``stage`` and ``round``.
        mu_squared: What it adds to the mu**2 of its part (:mod:`retexo_fl.gaussian_privacy`).
        identity: 16 hex digits: others have other numbers.
    """

    job: str
    stage: int
    round: int
    mu_squared: float
    identity: str


class ReleaseLog(Protocol):
    """Notes releases before they leave."""

    def enter(self, release: Release, *, most: int) -> None:
        """Note a release; the same one again changes nothing.

        Args:
            release: That is about to leave.
            most: How many its job may have.

        Raises:
            LocalProtocolError: It is one too many.
            CheckpointError: It could not be noted.
        """
        ...


class MemoryReleases:
    """A :class:`ReleaseLog` of one client of one job, while its process lives."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def enter(self, release: Release, *, most: int) -> None:
        """See :class:`ReleaseLog`."""
        if release.identity in self._known:
            return
        check_count(len(self._known), most)
        self._known.add(release.identity)


def check_count(done: int, most: int) -> None:
    """Refuse one release more than a job promised.

    Raises:
        LocalProtocolError: It is.
    """
    if done >= most:
        raise LocalProtocolError(
            f"update-dp: {counted(done, 'noised sum')} left in this job; expected no more, "
            "since epsilon is for as many"
        )


class UpdateNoise:
    """Adds the noise of one client of one job.

    Args:
        noise: What the run promises.
        job: Name of the job.
    """

    def __init__(self, noise: NoisedReleases, job: str) -> None:
        self._noise = noise
        self._job = job
        drawn = os.urandom(SECRET_BYTES)
        self._secret: Callable[[], bytes] = lambda: drawn
        self._log: ReleaseLog = MemoryReleases()

    def follow_from(self, secret: Callable[[], bytes], log: ReleaseLog | None = None) -> None:
        """Draw from a secret that outlives the process, and note releases where it says.

        Args:
            secret: Returns 32 bytes of this client alone, from its first update on.
            log: Of its releases; None to keep them in memory.
        """
        self._secret = secret
        self._log = self._log if log is None else log

    def added(self, request: Request[Any], numbers: Sums, told: bytes, honest: int) -> Sums:
        """Return the numbers of an answer with this client's share of the noise.

        Args:
            request: What was asked.
            numbers: Of the answer, in the clear.
            told: Digest of what else it was computed with.
            honest: Members of the cohort that do not work with the server, at least.

        Raises:
            LocalProtocolError: There is no noise for what was asked, steps are not of noised
                sums; or as :meth:`ReleaseLog.enter`.
            CheckpointError: As :meth:`ReleaseLog.enter`.
        """
        ring, ticket = numbers.form.ring, request.ticket
        if type(request) not in _HIDDEN:
            raise LocalProtocolError(
                "asked for sums of train nodes that have no noise; expected none under update-dp"
            )
        label, parts = _HIDDEN[type(request)]
        size = len(numbers.narrow) // parts
        _check_steps(request, size, self._noise)
        hidden, clear = np.split(numbers.narrow, [size])
        variance = share_of_variance(self._noise, size, honest)
        place = f"{self._job} {ticket.stage}/{ticket.round} {variance} {ring.bits}"
        update = hashlib.sha256(hidden.tobytes()).digest()
        what = bound(label, place.encode(), told, update)
        secret = self._secret()
        self._log.enter(
            Release(
                job=self._job,
                stage=ticket.stage,
                round=ticket.round,
                mu_squared=self._noise.mu_squared,
                identity=derived(secret, b"release", what).hex()[:16],
            ),
            most=self._noise.count,
        )
        noise = discrete_gaussian(size, variance, derived(secret, b"noise", what))
        narrow = np.concatenate([ring.cut(hidden + ring.wrapped(noise)), clear])
        return replace(numbers, narrow=narrow)


def _check_steps(request: Request[Any], size: int, noise: NoisedReleases) -> None:
    """Check that numbers are of the steps that the noise is for.

    Raises:
        LocalProtocolError: They are not.
    """
    steps = getattr(request, "steps", None) or b""
    if isinstance(request, TrainRequest):
        if not is_noised(steps):
            raise LocalProtocolError("steps are of updates without noise; expected update-dp's")
    elif steps != noised_step(noise.clip, size).told:
        raise LocalProtocolError("the step is of sums without noise; expected update-dp's")


def releases_of(config: RunConfig) -> NoisedReleases | None:
    """Return what noise promises, for all of a training's rounds or sums; None without any."""
    if not config.update_dp:
        return None
    return NoisedReleases(
        epsilon=config.update_dp,
        delta=config.update_dp_delta,
        clip=config.update_dp_clip,
        count=_releases(config),
        solves=not config.has_rounds,
    )


def _releases(config: RunConfig) -> int:
    blocks = config.basis_blocks if config.basis != "none" else 0
    return sum(config.stage_rounds) + blocks


def add_noise(
    made: GraphClient,
    config: RunConfig,
    secret: Callable[[], bytes],
    *,
    log: ReleaseLog | None = None,
    row_log: RowReleaseLog | None = None,
) -> None:
    """Have a client add noise to its updates, and to its first rows, where its run wants that.

    Args:
        made: The client.
        config: Of its run.
        secret: As for :meth:`UpdateNoise.follow_from`; likewise ``log``.
        log: Of releases of noised sums.
        row_log: Of noised rows; None to keep them in memory.
    """
    if (row_noise := made.crossing.row_noise) is not None:
        row_noise.follow_from(secret, row_log)
    noise, masks = releases_of(config), made.masks
    if noise is None or not isinstance(masks, ClientMasks):
        return
    adding = UpdateNoise(noise, masks.job)
    adding.follow_from(secret, log)
    masks.noise = adding.added


def share_of_variance(noise: NoisedReleases, size: int, honest: int) -> int:
    """Return the variance of one client's noise, in steps of (size,) updates.

    Args:
        noise: Of the run.
        size: P.
        honest: How many clients add as much.
    """
    of_all = (noise.sigma * steps_changed(noise.clip, size)) ** 2
    variance = math.ceil(of_all / honest) + SPARE_VARIANCE
    assert variance <= MOST_VARIANCE, "keys of a run keep it below"
    return variance


def secret_in(path: Path) -> bytes:
    """Return the 32 bytes of a file, which is made with new ones where there is none.

    Raises:
        CheckpointError: It cannot be read or written, or has another length.
    """
    try:
        if not path.exists():
            write_whole(path, [os.urandom(SECRET_BYTES)], durable=True, private=True)
        secret = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be used ({error.strerror})") from error
    if len(secret) != SECRET_BYTES:
        raise CheckpointError(
            f"{path}: has {len(secret)} bytes; expected {SECRET_BYTES}, from which noise follows"
        )
    return secret


def client_secret(secret: bytes, client: int) -> bytes:
    """Return the secret of one of many clients that have one together: in a simulation."""
    return derived(secret, b"client", number(client))
