import pytest

from agentstream.v1 import event_pb2, service_pb2
from agentstreamd.events import Batch
from agentstreamd.service.stream import encode_batch


def framed(event: event_pb2.Event) -> bytes:
    return service_pb2.EventBatch(events=[event]).SerializeToString()


@pytest.mark.parametrize("text_bytes", [0, 1, 100, 127, 128, 20_000, 3_000_000])
@pytest.mark.parametrize("last_sequence", [1, 127, 128, 2**40])
def test_a_batch_made_of_stored_bytes_is_what_protobuf_makes(
    text_bytes: int, last_sequence: int
) -> None:
    one = event_pb2.Event(sequence=1)
    one.item_delta.text = "x" * text_bytes
    two = event_pb2.Event(sequence=2)
    made = encode_batch(Batch([framed(one), framed(two)], 2, last_sequence))
    batch = service_pb2.EventBatch(events=[one, two], last_sequence=last_sequence)
    assert made == service_pb2.StreamEventsResponse(batch=batch).SerializeToString()
