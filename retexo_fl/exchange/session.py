"""The receiver's end: bytes in, events out. It owns no socket, no clock and no thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from retexo_fl.errors import (
    LocalProtocolError,
    PartitionError,
    RemoteProtocolError,
    RetexoError,
)
from retexo_fl.exchange.block import (
    MAX_HELLO_BYTES,
    MIN_HELLO_BYTES,
    BlockHeader,
    BlockTraffic,
    check_same_block,
    parse_hello,
)
from retexo_fl.exchange.decoding import RowsShape, decode_rows, parse_coding
from retexo_fl.exchange.events import (
    NEED_DATA,
    BlockAborted,
    BlockDone,
    Event,
    HelloReceived,
    NeedData,
    RowsReceived,
)
from retexo_fl.exchange.frames import (
    DEFAULT_MAX_FRAME_BYTES,
    Buffer,
    Frame,
    FrameHeader,
    FrameReader,
    check_frame_limit,
)
from retexo_fl.exchange.sending import MAX_REASON_BYTES
from retexo_fl.exchange.states import (
    TRANSITIONS,
    Closing,
    FrameKind,
    State,
    Trigger,
    expected_triggers,
)


class ReceivingSession:
    """Reads one block from a stream of bytes that is cut in any way.

    Feed ``receive_data``, then call ``next_event`` until it returns :data:`NEED_DATA`. Sizes and
    counts are compared with the plan and the limit before a payload is kept; the session owns the
    bytes of at most one frame (``buffered_bytes``).

    Args:
        expected: The block as this end knows it.
        max_frame_bytes: Payload limit of a frame.

    Raises:
        LocalProtocolError: The limit is out of range.
    """

    def __init__(
        self, expected: BlockHeader, *, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES
    ) -> None:
        check_frame_limit(max_frame_bytes)
        self._expected = expected
        self._max_frame_bytes = max_frame_bytes
        self._seed = expected.seed()
        self._reader = FrameReader(self._check_header)
        self._sender_closed = False
        self._state = State.HELLO
        self._error: RetexoError | None = None
        self._next_sequence = 0
        self._rows_received = 0
        self._traffic = BlockTraffic()

    @property
    def state(self) -> State:
        """Where the block stands."""
        return self._state

    @property
    def next_sequence(self) -> int:
        """Number of the first missing frame: a broken transfer resumes there."""
        return self._next_sequence

    @property
    def rows_received(self) -> int:
        """Vectors that have been handed out."""
        return self._rows_received

    @property
    def buffered_bytes(self) -> int:
        """Bytes of an incomplete frame that the session owns, its header included."""
        return self._reader.kept_bytes

    @property
    def traffic(self) -> BlockTraffic:
        """Bytes of all frames accepted so far."""
        return self._traffic

    def receive_data(self, data: Buffer) -> None:
        """Give the session bytes of the stream, or ``b""`` when the sender has closed it.

        Args:
            data: Any number of bytes. Not copied at once: they must not change before
                ``next_event`` has returned :data:`NEED_DATA`.

        Raises:
            LocalProtocolError: The last bytes were not read to the end, or the stream was closed.
        """
        if self._state is State.ERROR:
            return
        if self._sender_closed:
            raise LocalProtocolError("data given after the stream was closed")
        if not data:
            self._sender_closed = True
        elif self._reader.is_drained:
            self._reader.give(data)
        else:
            raise LocalProtocolError("data given before next_event returned NEED_DATA")

    def next_event(self) -> Event | NeedData:
        """Return what the bytes so far say next.

        After :class:`BlockDone` or :class:`BlockAborted` only :data:`NEED_DATA` comes, and the
        state is CLOSED once the sender has closed.

        Raises:
            RemoteProtocolError: The sender broke the protocol or the plan; from then on the state
                is ERROR and every call raises the same.
            PartitionError: The two clients do not list the same edges; likewise.
        """
        if self._error is not None:
            raise self._error
        try:
            frame = self._reader.next_frame()
            return self._pause() if frame is None else self._accept(frame)
        except (RemoteProtocolError, PartitionError) as error:
            self._error = self._located(error)
            self._state = State.ERROR
            self._reader.drop()
            raise self._error from error

    def resume(self) -> int:
        """Forget the incomplete frame after the channel broke.

        Returns:
            ``next_sequence``, from which the sender must go on.

        Raises:
            LocalProtocolError: The session is in state ERROR, or its stream was closed.
        """
        if self._state is State.ERROR or self._sender_closed:
            raise LocalProtocolError(
                f"a session in state {self._state.name} has ended and cannot resume"
            )
        self._reader.drop()
        return self._next_sequence

    def _located(self, error: RetexoError) -> RetexoError:
        """Say in which block; what is wrong with the parts is said of the two clients already."""
        if isinstance(error, PartitionError):
            return PartitionError(str(error))
        return RemoteProtocolError(
            f"block of layer {self._expected.layer} from client {self._expected.sender} to "
            f"{self._expected.receiver}, frame {self._next_sequence}: {error}"
        )

    def _pause(self) -> NeedData:
        if self._sender_closed and self._state is not State.CLOSED:
            if self._reader.kept_bytes:
                raise RemoteProtocolError("the stream ends inside a frame")
            self._state = self._after(Closing.CLOSE)
        return NEED_DATA

    def _accept(self, frame: Frame) -> Event:
        if not frame.has_checksum(self._seed):
            raise RemoteProtocolError(
                "checksum differs: the frame was altered, or is of another block"
            )
        event = _READERS[frame.header.kind](self, frame)
        self._state = self._after(frame.header.kind)
        self._next_sequence += 1
        self._traffic += self._expected.traffic_of(frame.header)
        return event

    def _read_hello(self, frame: Frame) -> HelloReceived:
        header = parse_hello(bytes(frame.payload))
        check_same_block(header, self._expected)
        return HelloReceived(header=header)

    def _read_rows(self, frame: Frame) -> RowsReceived:
        shape = RowsShape(
            num_rows=frame.header.num_rows,
            width=self._expected.width,
            dtype=self._expected.dtype,
            max_frame_bytes=self._max_frame_bytes,
        )
        coding = parse_coding(frame.header.positions, frame.header.values)
        event = RowsReceived(
            first=self._rows_received, vectors=decode_rows(coding, frame.payload, shape)
        )
        self._rows_received += frame.header.num_rows
        return event

    def _read_done(self, frame: Frame) -> BlockDone:
        return BlockDone(num_vectors=frame.header.num_rows)

    def _read_abort(self, frame: Frame) -> BlockAborted:
        try:
            reason = bytes(frame.payload).decode("utf-8")
        except UnicodeDecodeError as error:
            raise RemoteProtocolError("the reason of ABORT is not UTF-8") from error
        if not reason.isprintable():
            raise RemoteProtocolError("the reason of ABORT is not one printable line")
        return BlockAborted(reason=reason)

    def _after(self, trigger: Trigger) -> State:
        after = TRANSITIONS.get((self._state, trigger))
        if after is None:
            raise RemoteProtocolError(
                f"{trigger.name} in state {self._state.name}, expected "
                f"{expected_triggers(self._state)}"
            )
        return after

    def _check_header(self, header: FrameHeader) -> None:
        """Refuse a frame that cannot be, before any byte of its payload is kept."""
        self._after(header.kind)
        _demand("sequence", header.sequence, self._next_sequence, self._next_sequence)
        if header.kind is FrameKind.ROWS:
            missing = self._expected.num_vectors - self._rows_received
            if not missing:
                raise RemoteProtocolError("ROWS after the last vector, expected DONE")
            _demand("num_rows", header.num_rows, 1, missing)
            parse_coding(header.positions, header.values)
            dense_bytes = header.num_rows * self._expected.row_bytes
            _demand("payload_bytes", header.payload_bytes, 1, self._max_frame_bytes)
            _demand("payload_bytes", header.payload_bytes, 1, dense_bytes)
            return
        done = header.kind is FrameKind.DONE
        num_rows = self._expected.num_vectors if done else 0
        if done:
            _demand("rows before DONE", self._rows_received, num_rows, num_rows)
        _demand("num_rows", header.num_rows, num_rows, num_rows)
        _demand("positions", header.positions, 0, 0)
        _demand("values", header.values, 0, 0)
        _demand("payload_bytes", header.payload_bytes, *_CONTROL_BYTES[header.kind])


#: Least and most payload of the frames that carry no rows.
_CONTROL_BYTES: Final = {
    FrameKind.HELLO: (MIN_HELLO_BYTES, MAX_HELLO_BYTES),
    FrameKind.DONE: (0, 0),
    FrameKind.ABORT: (1, MAX_REASON_BYTES),
}
_READERS: Final[dict[FrameKind, Callable[[ReceivingSession, Frame], Event]]] = {
    FrameKind.HELLO: ReceivingSession._read_hello,
    FrameKind.ROWS: ReceivingSession._read_rows,
    FrameKind.DONE: ReceivingSession._read_done,
    FrameKind.ABORT: ReceivingSession._read_abort,
}


def _demand(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        expected = f"{least}" if least == most else f"{least} to {most}"
        raise RemoteProtocolError(f"{name} is {value}, expected {expected}")
