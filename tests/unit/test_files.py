"""Files of one user: never open to others, never written through what others put in their place."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from retexo_fl.agent.state_folder import owned_state
from retexo_fl.errors import ConfigurationError
from retexo_fl.files import new_file, write_whole


@pytest.fixture(autouse=True)
def _open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A file that links lead to."""
    path = tmp_path / "theirs"
    path.write_bytes(b"theirs")
    return path


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.parametrize("is_link", [True, False])
def test_nothing_is_written_through_a_name_that_can_be_foreseen(
    tmp_path: Path, theirs: Path, *, is_link: bool
) -> None:
    """A link, or a file that another keeps open."""
    secret, foreseen = tmp_path / "secret", tmp_path / f"secret.{os.getpid()}.part"
    if is_link:
        foreseen.symlink_to(theirs)
    else:
        foreseen.hardlink_to(theirs)
    write_whole(secret, [b"mine"], private=True)
    assert (secret.read_bytes(), theirs.read_bytes()) == (b"mine", b"theirs")
    assert not secret.is_symlink()
    assert _mode(secret) == 0o600


def test_a_link_in_a_files_place_is_replaced(tmp_path: Path, theirs: Path) -> None:
    secret = tmp_path / "secret"
    secret.symlink_to(theirs)
    write_whole(secret, [b"mine"], private=True)
    assert (secret.read_bytes(), theirs.read_bytes()) == (b"mine", b"theirs")
    assert not secret.is_symlink()


@pytest.mark.parametrize(("private", "mode"), [(True, 0o600), (False, 0o666)])
def test_a_file_has_its_mode_from_the_first_byte(
    tmp_path: Path, *, private: bool, mode: int
) -> None:
    seen: list[int] = []

    def parts() -> Iterator[bytes]:
        for _ in range(2):
            seen.extend(_mode(path) for path in tmp_path.glob("secret*.part"))
            yield b"mine"

    assert write_whole(tmp_path / "secret", parts(), private=private) == 8
    assert [*seen, _mode(tmp_path / "secret")] == [mode] * 3
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def test_a_new_file_stands_in_no_others_place(tmp_path: Path) -> None:
    place = tmp_path / "key"
    place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        new_file(place, mode=0o600)
    assert not (tmp_path / "elsewhere").exists()


def test_a_state_folder_is_locked_by_no_link(tmp_path: Path, theirs: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o777)
    (state / "agent.lock").symlink_to(theirs)
    with pytest.raises(ConfigurationError, match="state: .* cannot be used"), owned_state(state):
        pass
    assert theirs.read_bytes() == b"theirs"
    (state / "agent.lock").unlink()
    with owned_state(state):
        assert (_mode(state), _mode(state / "agent.lock")) == (0o700, 0o600)
