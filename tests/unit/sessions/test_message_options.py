"""What a message brings beside its text: images by their path, a model and effort of its own."""

import os
from pathlib import Path
from typing import Any

import pytest

from agentstream.v1 import error_pb2, service_pb2
from agentstreamd.adapters.base import Prompt
from agentstreamd.sessions.prompts import MAX_IMAGE_BYTES
from tests.support.scripted_adapter import Script, ScriptedDriver
from tests.unit.sessions.lab import Lab, Refused, until

INVALID = error_pb2.ERROR_REASON_INVALID_FIELD
PNG = b"\x89PNG\r\n\x1a\n and so on"
IMAGES = {
    "image/png": PNG,
    "image/jpeg": b"\xff\xd8\xff\xe0 and so on",
    "image/gif": b"GIF89a and so on",
    "image/webp": b"RIFF\x04\x00\x00\x00WEBP and so on",
}


@pytest.fixture
def prompts(script: Script) -> list[Prompt]:
    """The messages that the agent was sent."""
    taken: list[Prompt] = []

    async def on_send(driver: ScriptedDriver, prompt: Prompt) -> None:
        taken.append(prompt)

    script.on_send = on_send
    return taken


def picture(path: object, media_type: str = "", **fields: Any) -> service_pb2.SendMessageRequest:
    image = service_pb2.InputImage(path=str(path), media_type=media_type)
    return service_pb2.SendMessageRequest(
        session_id="s", parts=[service_pb2.InputPart(image=image)], **fields
    )


@pytest.mark.parametrize("media_type", IMAGES)
@pytest.mark.parametrize("said", [True, False])
async def test_an_image_by_its_path_is_read_when_the_message_is_accepted(
    lab: Lab, prompts: list[Prompt], media_type: str, said: bool, tmp_path: Path
) -> None:
    file = tmp_path / "picture"
    file.write_bytes(IMAGES[media_type])
    await lab.create()
    await lab.manager.send(picture(file, media_type if said else ""))
    file.unlink()
    await until(lambda: prompts)
    [part] = prompts[0].parts
    assert (part.image.media_type, part.image.data) == (media_type, IMAGES[media_type])
    (completed,) = await lab.only("item_completed")
    assert completed.item.content[0].image.data == IMAGES[media_type]


async def test_the_same_message_again_is_the_same_although_its_file_is_gone(
    lab: Lab, prompts: list[Prompt], tmp_path: Path
) -> None:
    file = tmp_path / "picture"
    file.write_bytes(PNG)
    await lab.create()
    sent = await lab.manager.send(picture(file, client_message_id="c"))
    file.unlink()
    assert await lab.manager.send(picture(file, client_message_id="c")) == sent


async def test_what_is_no_image_is_refused(lab: Lab, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("not an image")
    png = tmp_path / "png"
    png.write_bytes(PNG)
    large = tmp_path / "large"
    large.write_bytes(PNG)
    os.truncate(large, MAX_IMAGE_BYTES + 1)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    await lab.create()
    for path in ("relative.png", tmp_path / "missing", tmp_path, fifo, text, large):
        with Refused(INVALID) as refused:
            await lab.manager.send(picture(path))
        assert refused.fields == ["parts[0].image.path"]
    with Refused(INVALID) as refused:
        await lab.manager.send(picture(png, "image/gif"))
    assert refused.fields == ["parts[0].image.path"]
    with Refused(INVALID) as refused:
        await lab.manager.send(picture(png, "text/plain"))
    assert refused.fields == ["parts[0].image.media_type"]
    assert await lab.kinds() == ["session_started"]


async def test_a_message_has_a_model_and_an_effort_of_its_own_also_when_it_waits(
    lab: Lab, prompts: list[Prompt]
) -> None:
    await lab.create(model="usual")
    await lab.send("first", model="other", effort="high")
    queued = service_pb2.WHEN_BUSY_QUEUE
    await lab.send("second", when_busy=queued, model="third", effort="low")
    await lab.send("third", when_busy=queued)
    await until(lambda: prompts)
    await lab.crash()
    await until(lambda: len(prompts) == 2)
    await lab.script.driver.end_turn()
    await until(lambda: len(prompts) == 3)
    assert [(one.model, one.effort) for one in prompts] == [
        ("other", "high"),
        ("third", "low"),
        ("", ""),
    ]


@pytest.mark.parametrize("field", ["model", "effort"])
async def test_a_message_that_steers_has_no_model_or_effort_of_its_own(
    lab: Lab, field: str
) -> None:
    await lab.create()
    with Refused(INVALID) as refused:
        await lab.send(when_busy=service_pb2.WHEN_BUSY_STEER, **{field: "other"})
    assert refused.fields == [field]


@pytest.mark.parametrize("field", ["model", "effort"])
async def test_a_model_or_effort_that_looks_like_an_argument_is_refused(
    lab: Lab, field: str
) -> None:
    await lab.create()
    with Refused(INVALID) as refused:
        await lab.send(**{field: "--yolo"})
    assert refused.fields == [field]
