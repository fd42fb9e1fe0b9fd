"""Sessions that are confined to directories."""

from pathlib import Path

import pytest

from agentstream.v1 import error_pb2, service_pb2
from agentstreamd.sessions.roots import Roots
from tests.unit.sessions.lab import Lab, Refused, laboratory

PIXEL = b"\x89PNG\r\n\x1a\n" + b"\0" * 16
OUTSIDE = "is in none of the daemon's allowed_roots"


@pytest.fixture
def places(tmp_path: Path) -> Path:
    """A directory with an allowed one, one beside it, and links between them."""
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "inside-not").mkdir()
    (tmp_path / "in" / "out").symlink_to(tmp_path / "inside-not")
    (tmp_path / "way").symlink_to(tmp_path / "in")
    (tmp_path / "in" / "a.png").write_bytes(PIXEL)
    (tmp_path / "inside-not" / "a.png").write_bytes(PIXEL)
    return tmp_path


@pytest.mark.parametrize("path", ["in", "in/deep", "in/deep/..", "way/deep", "in/not/there"])
def test_what_leads_inside_is_inside(places: Path, path: str) -> None:
    assert Roots([places / "in"]).hold(f"{places}/{path}")


@pytest.mark.parametrize(
    "path", ["", "in/..", "inside-not", "in/out", "in/../inside-not", "way/.."]
)
def test_what_leads_outside_is_outside(places: Path, path: str) -> None:
    assert not Roots([places / "in"]).hold(f"{places}/{path}")


def test_a_root_may_be_a_link_and_without_roots_all_is_inside(places: Path) -> None:
    assert Roots([places / "way"]).hold(f"{places}/in/deep")
    assert Roots([]).hold("/")


async def test_sessions_are_made_in_allowed_roots_only(places: Path) -> None:
    async with laboratory(places / "lab", allowed_roots=(places / "in",)) as lab:
        await lab.create("a", working_directory=f"{places}/in/deep")
        for path in ("inside-not", "in/out", "in/../inside-not", "not-there"):
            with Refused(error_pb2.ERROR_REASON_INVALID_FIELD) as refused:
                await lab.create("b", working_directory=f"{places}/{path}")
            assert refused.error.violations == [("config.working_directory", OUTSIDE)]


async def test_pictures_are_read_from_allowed_roots_only(places: Path) -> None:
    async with laboratory(places / "lab", allowed_roots=(places / "in",)) as lab:
        await lab.create("s", working_directory=f"{places}/in")
        await send_picture(lab, f"{places}/in/a.png")
        for path in ("inside-not/a.png", "in/out/a.png", "in/../inside-not/a.png"):
            with Refused(error_pb2.ERROR_REASON_INVALID_FIELD) as refused:
                await send_picture(lab, f"{places}/{path}")
            assert refused.error.violations == [("parts[0].image.path", OUTSIDE)]


async def test_a_directory_that_leads_out_by_now_gets_no_message(places: Path) -> None:
    link = places / "in" / "link"
    link.symlink_to(places / "in" / "deep")
    async with laboratory(places / "lab", allowed_roots=(places / "in",)) as lab:
        await lab.create("s", working_directory=str(link))
        link.unlink()
        link.symlink_to(places / "inside-not")
        with Refused(error_pb2.ERROR_REASON_AGENT_UNAVAILABLE) as refused:
            await send_picture(lab, f"{places}/in/a.png")
        assert OUTSIDE in str(refused.error)


async def send_picture(lab: Lab, path: str) -> None:
    image = service_pb2.InputImage(path=path)
    await lab.manager.send(
        service_pb2.SendMessageRequest(
            session_id="s",
            when_busy=service_pb2.WHEN_BUSY_QUEUE,
            parts=[service_pb2.InputPart(image=image)],
        )
    )
