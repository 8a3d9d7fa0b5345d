"""What every channel must satisfy; a new channel's test inherits :class:`ChannelContract`."""

from __future__ import annotations

from dataclasses import replace

from retexo_fl.channels import BlockKey, Channel

KEY = BlockKey(job="job-1", layer=0, weights_digest=b"d" * 32, sender=0, receiver=1)
FRAMES = (b"first frame", b"", b"second" * 1000)


class ChannelContract:
    """Give ``ends`` in a subclass whose name begins with ``Test``.

    A channel that looks at what it carries needs ``frames_of`` as well.
    """

    def frames_of(self, key: BlockKey) -> tuple[bytes, ...]:
        """Return the frames that are sent under a key."""
        return FRAMES

    def ends(self) -> tuple[Channel, Channel]:
        """Return the sender's and the receiver's end of one fresh transport."""
        raise NotImplementedError

    def test_receive_returns_whole_frames_in_order(self) -> None:
        sender, receiver = self.ends()
        frames = self.frames_of(KEY)
        assert sender.send_block(KEY, frames) == sum(map(len, frames))
        assert receiver.receive_block(KEY) == b"".join(frames)
        assert receiver.receive_block(KEY) == b"".join(frames)

    def test_receive_of_what_was_not_sent_is_none(self) -> None:
        sender, receiver = self.ends()
        sender.send_block(KEY, self.frames_of(KEY))
        for other in (
            replace(KEY, job="job-2"),
            replace(KEY, layer=1),
            replace(KEY, weights_digest=b"e" * 32),
            replace(KEY, sender=2),
            replace(KEY, receiver=0),
        ):
            assert receiver.receive_block(other) is None

    def test_sending_again_moves_nothing(self) -> None:
        sender, receiver = self.ends()
        frames = self.frames_of(KEY)
        sender.send_block(KEY, frames)
        assert sender.send_block(KEY, frames) == 0
        assert receiver.receive_block(KEY) == b"".join(frames)

    def test_senders_are_those_of_one_exchange_and_receiver(self) -> None:
        sender, receiver = self.ends()
        assert self._senders(receiver) == frozenset()
        for key in (
            KEY,
            replace(KEY, sender=12),
            replace(KEY, sender=3, layer=1),
            replace(KEY, sender=4, weights_digest=b"e" * 32),
            replace(KEY, sender=5, receiver=2),
            replace(KEY, sender=6, job="job-2"),
        ):
            sender.send_block(key, self.frames_of(key))
        assert self._senders(receiver) == {0, 12}
        receiver.forget_job("job-1", 1)
        assert self._senders(receiver) == frozenset()

    @staticmethod
    def _senders(end: Channel) -> frozenset[int]:
        return end.senders(KEY.job, KEY.layer, KEY.weights_digest, receiver=KEY.receiver)

    def test_forget_job_drops_one_receivers_blocks_of_one_job(self) -> None:
        sender, receiver = self.ends()
        others = (replace(KEY, job="job-2"), replace(KEY, receiver=2))
        for key in (KEY, *others):
            sender.send_block(key, self.frames_of(key))
        receiver.forget_job("job-1", 1)
        receiver.forget_job("job-1", 1)
        assert receiver.receive_block(KEY) is None
        assert all(receiver.receive_block(key) for key in others)

    def test_channel_satisfies_the_protocol(self) -> None:
        assert all(isinstance(end, Channel) for end in self.ends())
