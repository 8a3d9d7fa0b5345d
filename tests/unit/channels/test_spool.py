from __future__ import annotations

from pathlib import Path

import pytest

from retexo_fl.channels import Channel, SpoolChannel
from retexo_fl.errors import ChannelUnavailable
from tests.support.channel_contract import FRAMES, KEY, ChannelContract


class TestSpoolChannel(ChannelContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def ends(self) -> tuple[Channel, Channel]:
        return SpoolChannel(self.folder), SpoolChannel(self.folder)


def test_send_leaves_no_part_files(tmp_path: Path) -> None:
    SpoolChannel(tmp_path).send_block(KEY, FRAMES)
    assert [path.suffix for path in tmp_path.rglob("*") if path.is_file()] == [".frames"]


def test_a_failed_write_names_the_receiver_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / KEY.job).write_text("a file where a folder is needed")
    with pytest.raises(ChannelUnavailable, match="block for client 1 could not be written"):
        SpoolChannel(tmp_path).send_block(KEY, FRAMES)
    assert [path.name for path in tmp_path.rglob("*")] == [KEY.job]


def test_senders_that_cannot_be_listed_name_the_receiver(tmp_path: Path) -> None:
    (tmp_path / KEY.job).mkdir()
    (tmp_path / KEY.job / "1").write_text("a file where a folder is needed")
    with pytest.raises(ChannelUnavailable, match="blocks for client 1 cannot be listed"):
        SpoolChannel(tmp_path).senders(KEY.job, KEY.layer, KEY.weights_digest, receiver=1)


def test_senders_are_not_read_from_what_is_no_block(tmp_path: Path) -> None:
    channel = SpoolChannel(tmp_path)
    channel.send_block(KEY, FRAMES)
    (block,) = tmp_path.rglob("*.frames")
    for name in (f"{block.name}.7.part", block.name.replace("-0.", "-x.")):
        block.with_name(name).write_bytes(b"")
    assert channel.senders(KEY.job, KEY.layer, KEY.weights_digest, receiver=1) == {0}
