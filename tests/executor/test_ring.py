"""Messages come out of a ring as they went in, however large, and no reader is overtaken."""

from __future__ import annotations

import random
import threading

from fathom.executor.ring import CHUNK_BYTES, SLOTS, MessageReader, Ring, chunks, ring_bytes


def make_ring(num_readers: int) -> tuple[Ring, list[MessageReader], memoryview]:
    """A writer's view of a ring, its readers' with views of their own, and the memory."""
    memory = memoryview(bytearray(ring_bytes(num_readers)))
    readers = [MessageReader(Ring(memory, num_readers), index) for index in range(num_readers)]
    return Ring(memory, num_readers), readers, memory


def put(ring: Ring, frames: list[bytes]) -> None:
    for chunk, more in chunks(frames):
        while not ring.has_room():
            pass
        ring.put(chunk, more)


def test_every_reader_gets_every_message_whole() -> None:
    """Some messages are larger than the ring: their beginning is read while their end is written."""
    chance = random.Random(0)
    sizes = [0, 1, CHUNK_BYTES - 12, CHUNK_BYTES, 3 * CHUNK_BYTES, (SLOTS + 5) * CHUNK_BYTES]
    messages = [[chance.randbytes(chance.choice(sizes)) for _ in range(chance.randint(1, 3))] for _ in range(40)]
    ring, readers, _ = make_ring(2)
    found: list[list[list[bytes]]] = [[], []]

    def read(index: int) -> None:
        while len(found[index]) < len(messages):
            frames = readers[index].read()
            if frames is not None:
                found[index].append([bytes(frame) for frame in frames])

    threads = [threading.Thread(target=read, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for message in messages:
        put(ring, message)
    for thread in threads:
        thread.join()
    assert found == [messages, messages]


def test_there_is_room_until_the_slowest_reader_is_a_ring_behind() -> None:
    ring, (fast, slow), _ = make_ring(2)
    for number in range(SLOTS):
        put(ring, [b"%d" % number])
        assert fast.read() == [b"%d" % number]
    assert not ring.has_room()
    assert slow.read() == [b"0"]
    assert ring.has_room()


def test_a_slot_whose_bytes_have_not_all_arrived_is_not_read() -> None:
    """As on a processor whose stores another core may see in another order."""
    ring, (reader,), memory = make_ring(1)
    put(ring, [b"as it should be"])
    place = bytes(memory).index(b"should")
    memory[place : place + 6] = b"\0" * 6
    assert reader.read() is None
    memory[place : place + 6] = b"should"
    assert reader.read() == [b"as it should be"]
