"""The trainings that an agent takes part in, and their files: they outlive the process.

``jobs/JOB/job.json`` says what a job is, ``jobs/JOB/answers.jsonl`` what was answered in it,
``jobs/JOB/store/`` is what its client keeps, and ``jobs/JOB/answer`` is the last answer of one that
is over, which may be asked for again.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from retexo_fl.agent import wire
from retexo_fl.agent.carrier_path import CarrierPath
from retexo_fl.agent.epsilon_log import EpsilonBudget, EpsilonLog, RowEpsilonLog
from retexo_fl.agent.job_configuration import check_same, settles
from retexo_fl.agent.limits import Limits
from retexo_fl.agent.predictions import PredictionSets
from retexo_fl.agent.promises import check_promise
from retexo_fl.agent.question_log import QuestionLog
from retexo_fl.answer_book import AnswerBook
from retexo_fl.channels.key_signing import RosterSigner
from retexo_fl.client.api import (
    MODEL_DIGITS,
    PREDICTION_PREFIX,
    HelloRequest,
    PredictedAnswer,
    PredictedRequest,
    Ticket,
)
from retexo_fl.client.log_lines import line
from retexo_fl.config import RunConfig, Scalar, config_values
from retexo_fl.errors import (
    CheckpointError,
    ConfigurationError,
    LocalProtocolError,
    RetexoError,
    StaleAttempt,
)
from retexo_fl.files import write_whole
from retexo_fl.graph.parts.partition import GraphPartition
from retexo_fl.line_log import LineLog
from retexo_fl.process_memory import return_unused

if TYPE_CHECKING:
    from retexo_fl.agent.job import AgentDepot, AgentJob

logger = logging.getLogger(__name__)

#: As the server names jobs; nothing else may become a folder.
_NAME: Final = re.compile(r"(job|predict)-[0-9a-f]{12}")
#: Jobs that predict with one model have names which begin alike.
_OF_MODEL: Final = len(PREDICTION_PREFIX) + MODEL_DIGITS
_MOST_JOBS: Final = 16
#: What is asked before keys that follow from the graph are settled.
_OPENING: Final = frozenset({"hello", "introduce", "keys", "counts"})
#: Attempts of a job that this client may have been away for.
_MOST_MISSED: Final = 1000
#: Exchanges may be open for weeks, and a client with all of its vectors is not asked meanwhile.
_MOST_IDLE_S: Final = 60 * 86_400.0
_IDENTITY_BYTES: Final = 32


class AgentJobs:
    """All jobs of one agent; its methods are called in the compute thread.

    Args:
        partition: The client's part.
        depot: Its blocks.
        state: Folder for everything that is kept.
        predictions: Where predictions go; None where the client makes none.
        limits: What a run may ask.
        questions: That were answered about the part.
        carrier: Lets jobs exchange in another way than by blocks.
        signer: Signs masking keys; None where the owner has no roster file.

    Raises:
        CheckpointError: The log of noised sums cannot be read.
    """

    def __init__(  # noqa: PLR0913 - an agent has so much
        self,
        partition: GraphPartition,
        depot: AgentDepot,
        *,
        state: Path,
        predictions: PredictionSets | None = None,
        limits: Limits,
        questions: QuestionLog,
        carrier: CarrierPath | None = None,
        signer: RosterSigner | None = None,
    ) -> None:
        self._partition = partition
        self._depot = depot
        self._state = state
        self._predictions = predictions
        self._limits = limits
        self.questions = questions
        budget = EpsilonBudget(most=limits.max_epsilon, delta=limits.max_epsilon_delta)
        self._releases = EpsilonLog(state, questions.part, budget, client=partition.client)
        self._row_releases = RowEpsilonLog(
            state, questions.part, limits.max_row_epsilon, client=partition.client
        )
        self._carrier = carrier
        self._signer = signer
        #: Whether sums of a job were masked since this process began.
        self.had_masked = False
        #: Whether a job is over whose memory is not returned yet.
        self.has_left = False
        self._jobs: dict[str, AgentJob] = {}
        #: By job, the last configuration that was found to be the one that it began with.
        self._asked_with: dict[str, Mapping[str, Scalar]] = {}

    @property
    def epsilon(self) -> dict[str, Any]:
        """What noised sums have given away (:attr:`.EpsilonLog.facts`)."""
        return self._releases.facts

    @property
    def row_epsilon(self) -> dict[str, float]:
        """What noised rows have given away: ``spent``, and ``most``, which is 0 for any."""
        return {"spent": self._row_releases.epsilon, "most": self._limits.max_row_epsilon}

    @property
    def running(self) -> list[AgentJob]:
        """Jobs that are under way."""
        return list(self._jobs.values())

    def restore(self) -> None:
        """Continue what an earlier process left."""
        for path in sorted(self._folder().glob("*/job.json")):
            name = path.parent.name
            if not _NAME.fullmatch(name):
                continue
            if (path.parent / "answer").exists():
                # The process may have ended between the answer and what follows it.
                self._clear(name)
                continue
            try:
                config, is_open = self._noted(name)
                self._jobs[name] = self._make(name, config, is_open=is_open)
            except RetexoError as error:
                # One training that cannot continue must not stop the others.
                logger.warning(line("lost", job=name, reason=str(error)))
            else:
                logger.info(line("restored", job=name, attempt=self._jobs[name].attempt))

    def expect(self, ticket: Ticket, message: str) -> None:
        """Refuse a message of no job that is here; from any thread, as it only looks.

        Raises:
            LocalProtocolError: Its name is none, or there is no such job and it begins none; or as
                :meth:`.AnswerBook.check_attempt`.
            StaleAttempt: A later attempt was seen.
        """
        name = ticket.job
        if not _NAME.fullmatch(name):
            raise LocalProtocolError(
                f"job {name[:64]!r}: expected job- or predict- and 12 hexadecimal digits"
            )
        job = self._jobs.get(name)
        if job is not None:
            job.answers.check_attempt(name, ticket.attempt, client=self._partition.client)
        elif message != "hello" and not self._answer(name).exists():
            raise self._unknown(name)

    def find(self, request: wire.Request) -> AgentJob | wire.Parts:
        """Return the job of a message, which ``hello`` begins, or what was answered at its end.

        Raises:
            LocalProtocolError: As :meth:`expect`, likewise ``StaleAttempt``; or as
                :meth:`.QuestionLog.check`.
            ConfigurationError: It has begun with another configuration, or asks for more than the
                client's owner allows.
        """
        self.expect(request.ticket, request.message)
        name = request.ticket.job
        if name not in self._jobs:
            ended = self._ended(name)
            if ended is not None and ended[0] == request.identity:
                return [ended[1]]
            self._jobs[name] = self._begin(request)
        job = self._settled(self._jobs[name], request)
        if self._asked_with.get(name) != request.config:
            check_same(name, config_values(job.config), request.config)
            job.client.follow(self._admitted(name, request.config))
            self._asked_with[name] = request.config
        self.questions.check(request, client=self._partition.client)
        job.begin(request)
        os.utime(self._file(name))
        return job

    def predicted(self, request: PredictedRequest) -> PredictedAnswer:
        """Return whether what a job predicted is there.

        Raises:
            ConfigurationError: The client makes no predictions.
            LocalProtocolError: The form is none, or the name of the set.
        """
        is_there = self._prediction_sets().is_there(request)
        return PredictedAnswer(client=self._partition.client, is_there=is_there)

    def end(self, job: AgentJob, request: wire.Request, parts: wire.Parts) -> None:
        """Keep an answer; if it is the job's last, drop everything else of the job.

        Raises:
            StaleAttempt: The job was forgotten meanwhile.
            LocalProtocolError: As :meth:`.QuestionLog.check`.
            CheckpointError: It, or the question, could not be written.
        """
        if self._jobs.get(job.name) is not job:
            raise StaleAttempt(
                f"client {self._partition.client}: job {job.name} was deleted during this message; "
                "resume the run with `retexo run --resume`"
            )
        masked = job.client.tells_sums_alone
        self.questions.enter(request, client=self._partition.client, masked=masked)
        if not job.client.is_last(request.asked):
            job.keep(request, parts)
            return
        job.book.write()
        _write(self._answer(job.name), [request.identity, *map(bytes, parts)])
        self._let_go(job.name)
        self._clear(job.name)
        logger.info(line("finished", job=job.name, attempt=job.attempt))

    def forget(self, name: str) -> bool:
        """Drop everything of a job but its account of bytes; return whether there was one."""
        folder = self._folder() / name
        if not _NAME.fullmatch(name) or not folder.is_dir():
            return False
        self._let_go(name)
        self._forget_vectors(name)
        shutil.rmtree(folder, ignore_errors=True)
        return True

    def return_memory(self) -> None:
        """Return to the system what jobs have taken that are over; nobody may hold one."""
        self.has_left = False
        # A client and its mailboxes know each other.
        gc.collect()
        return_unused()

    def write_traffic(self) -> None:
        """Put the account of every job's bytes on disk."""
        for job in self._jobs.values():
            job.book.write()

    # ---- pieces -------------------------------------------------------------------------------

    def _begin(self, request: wire.Request) -> AgentJob:
        name, ticket = request.ticket.job, request.ticket
        if request.message != "hello":
            raise self._unknown(name)
        if name.startswith(PREDICTION_PREFIX):
            self._prediction_sets()
            self._forget_earlier(name)
        has_ended = self._answer(name).exists()
        answers = self._answers(name)
        if has_ended and ticket.attempt <= answers.attempt:
            raise StaleAttempt(
                f"client {self._partition.client}: got attempt {ticket.attempt} of job {name}, "
                f"which finished in attempt {answers.attempt}; expected a later one"
            )
        answers.check_attempt(name, ticket.attempt, client=self._partition.client)
        if has_ended:
            self._answer(name).unlink()
        else:
            self._drop_old()
        asked = request.asked
        is_open = isinstance(asked, HelloRequest) and bool(asked.sizes)
        job = self._make(name, request.config, is_open=is_open)
        self._write_job(name, request.config, is_open=is_open)
        logger.info(
            line(
                "begun",
                job=name,
                attempt=ticket.attempt,
                **job.training,
            )
        )
        return job

    def _settled(self, job: AgentJob, request: wire.Request) -> AgentJob:
        """Return a job with the keys that its server has settled, which is done at most once.

        What it was asked under the earlier ones is who the client is and what it counts. So it is
        as if it had begun with these, by which it is admitted anew.
        """
        if not job.is_open:
            return job
        settles_now = settles(config_values(job.config), request.config)
        if not settles_now and request.message in _OPENING:
            return job
        name = job.name
        if settles_now:
            made = self._make(name, request.config)
            made.client.masks.go_on_from(job.client.masks)
            job.client.close()
            self._jobs[name] = job = made
            self._asked_with.pop(name, None)
            logger.info(line("settled", job=name, attempt=request.ticket.attempt, **job.training))
        else:
            job.close_keys()
        self._write_job(name, request.config)
        return job

    def _write_job(self, name: str, config: Mapping[str, Scalar], *, is_open: bool = False) -> None:
        facts = {"job": name, "config": dict(config), **({"open": True} if is_open else {})}
        _write(self._file(name), [json.dumps(facts, indent=1).encode()])

    def _prediction_sets(self) -> PredictionSets:
        if self._predictions is None:
            raise ConfigurationError(
                f"client {self._partition.client}: makes no predictions; expected a folder for "
                "them, predictions, in its agent.toml, where its owner wants that"
            )
        return self._predictions

    def _forget_earlier(self, name: str) -> None:
        """Drop earlier predictions with the same model: their server ended, or has begun again."""
        for path in self._folder().glob(f"{name[:_OF_MODEL]}*/job.json"):
            if path.parent.name != name:
                self.forget(path.parent.name)

    def _make(self, name: str, config: Mapping[str, Any], *, is_open: bool = False) -> AgentJob:
        # All that computes, PyTorch with it, comes with the first job: an agent that waits for one
        # takes half the memory.
        from retexo_fl.agent.job import AgentJob, JobFolders
        from retexo_fl.client.noise import KEY_FILE, add_noise, releases_of, secret_in

        admitted = self._admitted(name, config)
        if (noise := releases_of(admitted)) is not None:
            self._releases.check_fits(name, noise)
        if admitted.secure_aggregation == "masked":
            self._check_signed(admitted)
        job = AgentJob(
            name,
            admitted,
            self._partition,
            self._depot,
            folders=JobFolders(
                store=self._folder() / name / "store",
                answers=self._answers(name),
                traffic=self._state / "traffic" / f"{name}.csv",
                predictions=self._predictions,
            ),
            limits=self._limits,
            carrier=self._carrier,
            is_open=is_open,
        )
        job.client.masks.sign_by(self._signer, least_clients=self._limits.least_clients)
        secret = partial(secret_in, self._state / KEY_FILE)
        add_noise(job.client, admitted, secret, log=self._releases, row_log=self._row_releases)
        job.client.least_validation = self._limits.least_train_nodes
        self.had_masked |= job.client.tells_sums_alone
        # Of libraries that were loaded for it.
        return_unused()
        return job

    def _check_signed(self, config: RunConfig) -> None:
        """Check that masking keys can be signed, and that the part has what its owner promised."""
        if self._signer is None:
            raise ConfigurationError(
                f"client {self._partition.client}: secure-aggregation: masked needs a roster file; "
                "expected roster in this client's agent.toml, not introductions"
            )
        check_promise(self._signer.brings(), config, self._partition)

    def _admitted(self, name: str, config: Mapping[str, Any]) -> RunConfig:
        from retexo_fl.agent.admission import admit

        predicts = name.startswith(PREDICTION_PREFIX)
        return admit(config, self._partition, self._limits, predicts=predicts)

    def _let_go(self, name: str) -> None:
        job = self._jobs.pop(name, None)
        if job is not None:
            job.client.close()
            self.has_left = True
        self._asked_with.pop(name, None)

    def _clear(self, name: str) -> None:
        """Drop what only a job that is under way needs."""
        self._forget_vectors(name)
        shutil.rmtree(self._folder() / name / "store", ignore_errors=True)

    def _forget_vectors(self, name: str) -> None:
        if self._carrier is not None:
            self._carrier.forget_job(name)
        self._depot.forget_job(name, self._partition.client)

    def _drop_old(self) -> None:
        """Make room for a new job: drop those that are idle for long, and the oldest."""
        now = time.time()
        found = [
            path for path in self._folder().glob("*/job.json") if _NAME.match(path.parent.name)
        ]
        by_use = sorted((path.stat().st_mtime, path.parent.name) for path in found)
        surplus = len(by_use) - _MOST_JOBS + 1
        for place, (used, name) in enumerate(by_use):
            if place < surplus or now - used > _MOST_IDLE_S:
                logger.warning(line("dropped", job=name, idle_s=now - used))
                self.forget(name)

    def _ended(self, name: str) -> tuple[bytes, bytes] | None:
        """Return the identity of a finished job's last question, and its answer."""
        try:
            content = self._answer(name).read_bytes()
        except FileNotFoundError:
            return None
        return content[:_IDENTITY_BYTES], content[_IDENTITY_BYTES:]

    def _noted(self, name: str) -> tuple[Mapping[str, Any], bool]:
        """Return the configuration of a job, and whether its server may still settle keys."""
        try:
            noted = json.loads(self._file(name).read_bytes())
            return {**noted["config"]}, noted.get("open") is True
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{self._file(name)}: is damaged; drop the job with `retexo agent forget {name}`"
            ) from error

    def _folder(self) -> Path:
        return self._state / "jobs"

    def _file(self, name: str) -> Path:
        return self._folder() / name / "job.json"

    def _answers(self, name: str) -> AnswerBook:
        log = LineLog(self._folder() / name / "answers.jsonl")
        book = AnswerBook(log, most_missed=_MOST_MISSED)
        book.read()
        return book

    def _answer(self, name: str) -> Path:
        return self._folder() / name / "answer"

    def _unknown(self, name: str) -> LocalProtocolError:
        return LocalProtocolError(
            f"client {self._partition.client}: job {name} is unknown here; expected hello first; "
            "resume the run with `retexo run --resume`"
        )


def _write(path: Path, parts: list[bytes]) -> None:
    try:
        write_whole(path, parts, durable=True)
    except OSError as error:
        raise CheckpointError(f"{path}: could not be written ({error.strerror})") from error
