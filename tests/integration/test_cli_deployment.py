"""What `retexo run --superlink` refuses before anything is started."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from retexo_fl.cli import run_command
from retexo_fl.run_log.events import RoundClosed
from tests.support.runs import train
from tests.support.web import web_proxy, web_server, write_certificate

WITHOUT_MASKS = ("--insecure", "--clients", "2", "--secure-aggregation", "none")


@pytest.fixture
def nowhere() -> Iterator[str]:
    """Return an address at which nothing listens."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{one.getsockname()[1]}"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--insecure"], "insecure: .*expected .*--superlink HOST:PORT"),
        (["--root-certificates", "ca.crt"], "root-certificates: .*expected .*--superlink"),
        (
            ["--superlink", "h:1", "--insecure", "--root-certificates", "ca.crt"],
            "insecure: .*root-certificates.*expected",
        ),
        (["--superlink", "h:1", "--insecure"], "clients: missing; expected"),
        (
            ["--superlink", "h:1", "--insecure", "--engine", "flower"],
            "engine: .*'flower'.*--superlink; expected deployment",
        ),
        (
            ["--superlink", "h:1", "--insecure", "--clients", "2", "--partitions", "parts"],
            "partitions: .*'parts'.*engine deployment",
        ),
        (
            ["--engine", "deployment", "--clients", "2"],
            "engine: .*deployment.*expected --superlink HOST:PORT",
        ),
        (["--superlink", "nonsense", "--insecure", "--clients", "2"], "superlink: "),
        (
            ["--superlink", "2001:db8::1:8000", "--clients", "2"],
            r"superlink: .*expected an IPv6 address in brackets, \[ADDRESS\]:PORT",
        ),
        (["--superlink", "ftp://h:1", "--clients", "2"], "superlink: .*https://HOST:PORT"),
        (["--superlink", "https://h:1", "--insecure"], "insecure: .*https://h:1"),
        (
            ["--superlink", "http://h:1", "--root-certificates", "ca.crt"],
            "http://: .*root-certificates",
        ),
    ],
)
def test_options_that_cannot_be_used_end_in_a_line(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["run", "--out", str(tmp_path / "run"), *arguments]) == 2
    told = capsys.readouterr().err
    assert re.match(f"retexo: error: {sentence}", told)
    assert told.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("security", [["--insecure"], ["--root-certificates", "absent.crt"]])
def test_superlink_that_cannot_be_reached_ends_in_a_line(
    nowhere: str, security: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--superlink", nowhere, *security, "--clients", "2"]
    assert run_command(["run", "--out", str(tmp_path / "run"), *arguments]) == 2
    told = capsys.readouterr().err
    assert told.startswith("retexo: error: superlink: ")
    assert told.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "is_said"),
    [
        ((), True),
        (("--model", "gat", "--boundary-plan", "cover"), True),
        (("--boundary-plan", "cover"), False),
        (("--algorithm", "standard"), False),
        (("--codec", "lossless"), False),
    ],
)
def test_a_plan_that_gives_datagrams_nothing_to_add_is_named(
    nowhere: str,
    options: tuple[str, ...],
    is_said: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    deployed = [*WITHOUT_MASKS, "--superlink", nowhere, "--codec", "fixed"]
    assert run_command(["run", "--out", str(tmp_path / "run"), *deployed, *options]) == 2
    *lines, error = capsys.readouterr().err.splitlines()
    assert error.startswith("retexo: error: superlink: ")
    assert len(lines) == int(is_said)
    for line in lines:
        assert line.startswith("retexo: boundary-plan: rows ")
        assert "expected --boundary-plan cover with gcn, sage or gin" in line
        assert "tcp://" in line


def test_resume_in_a_deployment_takes_no_path_along(
    nowhere: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run was made of a folder of parts; a deployment's clients have theirs."""
    parts, run = tmp_path / "parts", tmp_path / "run"
    assert run_command(["partition", "make", "--clients", "2", "--out", str(parts)]) == 0

    class Stop(Exception):
        pass

    def stop(event: object) -> None:
        if isinstance(event, RoundClosed):
            raise Stop

    with pytest.raises(Stop):
        train(run, stop, partitions=parts, clients=2, rounds=4, hidden=4, layers=1)
    capsys.readouterr()
    assert run_command(["run", "--resume", str(run), "--superlink", nowhere, "--insecure"]) == 2
    assert "nothing listens there" in capsys.readouterr().err


def test_run_says_what_doctor_says_of_a_proxy_and_of_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(superlink: str, *options: str) -> str:
        out = str(tmp_path / "run")
        code = run_command(["run", "--out", out, "--superlink", superlink, *options])
        assert code == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert "checkpoint" not in error
        return error

    with web_server(write_certificate(tmp_path / "ca.pem")) as server:
        address = server.url.partition("://")[2]
        assert f"superlink: {address}: this port uses TLS" in told(address, *WITHOUT_MASKS)
        with web_proxy(b"403 Forbidden") as proxy:
            monkeypatch.setenv("HTTPS_PROXY", proxy.url)
            error = told(server.url, "--clients", "2")
            assert "403" in error
            assert "which HTTPS_PROXY names" in error
            assert "NO_PROXY=127.0.0.1" in error
        monkeypatch.setenv("ALL_PROXY", "socks5h://127.0.0.1:1080")
        assert "ALL_PROXY names socks5h://127.0.0.1:1080" in told(address, *WITHOUT_MASKS)
    assert not (tmp_path / "run").exists()
