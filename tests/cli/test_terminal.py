"""Commands on a terminal: what people see and type. The daemon is driven from a thread: pexpect
waits where asyncio would have to go on.
"""

import asyncio
import re
import shlex
from collections.abc import Callable

import pexpect
import pytest

from agentstream.client import connect_aio
from agentstream.v1 import service_pb2
from tests.cli.conftest import AGENTSTREAM, Cli

PROMPT = "\u276f"
PERMISSION = 'ask permission command "rm -rf build"'
QUESTION = 'ask question multi "Colours?" Red | Green | Blue ;; secret "Password?"'


async def on_terminal(
    cli: Cli,
    dialogue: Callable[["pexpect.spawn[str]"], object],
    *arguments: str,
    shell: bool = False,
) -> tuple[int | None, str]:
    """Run a command on a terminal and `dialogue` with it; its exit code and what it wrote."""

    def talk() -> tuple[int | None, str]:
        terminal = cli.terminal(*arguments, shell=shell)
        seen: list[str] = []
        terminal.logfile_read = _Log(seen)
        try:
            dialogue(terminal)
            terminal.expect(pexpect.EOF)
        finally:
            terminal.close()
        return terminal.exitstatus, re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", "".join(seen))

    return await asyncio.to_thread(talk)


class _Log:
    def __init__(self, seen: list[str]) -> None:
        self.write = seen.append

    def flush(self) -> None:
        pass


@pytest.mark.parametrize(
    ("typed", "outcome"),
    [
        ({"and stop >": "y"}, "✓ accepted  by client"),
        ({"and stop >": "s"}, "✓ accepted for session  by client"),
        ({"and stop >": "1"}, "✓ accepted  by client"),
        ({"and stop >": "n", "Enter. >": "not now"}, "✗ rejected: not now  by client"),
    ],
)
async def test_a_permission_is_asked_for_and_the_answer_reaches_the_agent(
    cli: Cli, typed: dict[str, str], outcome: str
) -> None:
    def dialogue(terminal: "pexpect.spawn[str]") -> None:
        for prompt, line in typed.items():
            terminal.expect(prompt)
            terminal.send(f"{line}\r")

    code, seen = await on_terminal(cli, dialogue, "run", f"{PERMISSION}\nsay the end")
    assert code == 0
    assert "$ rm -rf build" in seen
    assert outcome in seen
    assert "the end" in seen


async def test_rejecting_and_stopping_ends_the_turn(cli: Cli) -> None:
    def dialogue(terminal: "pexpect.spawn[str]") -> None:
        terminal.expect("and stop >")
        terminal.send("x\r")
        terminal.expect("why")
        terminal.send("\r")

    code, seen = await on_terminal(cli, dialogue, "run", f"{PERMISSION}\nsay not said")
    assert code == 1
    assert "◼ interrupted" in seen
    assert seen.count("not said") == 1  # in the prompt alone


async def test_questions_are_answered_and_a_secret_is_not_shown(cli: Cli) -> None:
    def dialogue(terminal: "pexpect.spawn[str]") -> None:
        terminal.expect("with commas .*>")
        terminal.send("9\r")
        terminal.expect("none of the options")
        terminal.expect("with commas .*>")
        terminal.send("1, blue\r")
        terminal.expect("your answer .*>")
        terminal.send("hunter2\r")

    code, seen = await on_terminal(cli, dialogue, "run", QUESTION)
    assert code == 0
    assert "✓ accepted: Red, Blue" in seen
    assert "hunter2" not in seen


async def test_two_requests_at_once_are_asked_one_after_the_other(cli: Cli) -> None:
    script = 'parallel\nask permission command "first"\nask permission command "second"\nend'

    def dialogue(terminal: "pexpect.spawn[str]") -> None:
        for _ in range(2):
            terminal.expect("and stop >")
            terminal.send("y\r")

    code, seen = await on_terminal(cli, dialogue, "run", script)
    assert code == 0
    assert seen.count("✓ accepted") == 2
    assert "ran first" in seen
    assert "ran second" in seen


async def test_a_request_that_somebody_else_answers_is_not_asked_any_more(cli: Cli) -> None:
    loop = asyncio.get_running_loop()

    async def answer() -> None:
        live = (await cli("sessions", "--live", "--json")).json
        assert (await cli("respond", live[0]["sessionId"], "--accept")).code == 0

    def dialogue(terminal: "pexpect.spawn[str]") -> None:
        terminal.expect("and stop >")
        asyncio.run_coroutine_threadsafe(answer(), loop).result(20)

    code, seen = await on_terminal(cli, dialogue, "run", f"{PERMISSION}\nsay the end")
    assert code == 0
    assert "✓ accepted" in seen
    assert "the end" in seen


async def test_ctrl_c_at_a_prompt_interrupts_the_turn(cli: Cli) -> None:
    def dialogue(terminal: "pexpect.spawn[str]") -> None:
        terminal.expect("and stop >")
        terminal.send("\x03")

    code, seen = await on_terminal(cli, dialogue, "run", PERMISSION)
    assert code == 130
    assert "✗ cancelled" in seen
    assert "◼ interrupted" in seen


async def test_ctrl_c_twice_quits_and_ends_the_session(cli: Cli) -> None:
    def dialogue(terminal: "pexpect.spawn[str]") -> None:
        terminal.expect("ready to")  # in the prompt
        terminal.expect("ready to")
        terminal.send("\x03")
        terminal.expect("once more to quit")
        terminal.send("\x03")

    # An agent that does not listen: the first Ctrl-C alone would take the daemon's patience.
    code, _ = await on_terminal(
        cli, dialogue, "run", "refuse interrupt\nsay ready to wait\ndelay 60s"
    )
    assert code == 130
    session = (await cli("sessions", "--json")).json[0]["sessionId"]
    done = await cli("events", session, "--follow", "--json")
    assert done.kinds[-1] == "sessionEnded"


async def test_json_stays_on_standard_output_while_a_person_is_asked(cli: Cli) -> None:
    line = f"{shlex.join((*AGENTSTREAM, 'run', '--json', PERMISSION))} > events; echo code $?"

    def dialogue(terminal: "pexpect.spawn[str]") -> None:
        terminal.expect(r"\$ rm -rf build")
        terminal.expect("and stop >")
        terminal.send("y\r")

    _, seen = await on_terminal(cli, dialogue, line, shell=True)
    assert "code 0" in seen
    assert "sessionStarted" not in seen
    assert "sessionEnded" in (cli.directory / "events").read_text()


async def test_a_chat_has_turns_commands_and_stays(cli: Cli) -> None:
    def dialogue(terminal: "pexpect.spawn[str]") -> None:
        terminal.expect(PROMPT)
        terminal.send("say first answer\r")
        terminal.expect("completed")
        terminal.expect(PROMPT)
        terminal.send("/model mock-2\r")
        terminal.expect("model mock-2")
        terminal.expect(PROMPT)
        terminal.send("/nonsense\r")
        terminal.expect("There is no command /nonsense")
        terminal.expect(PROMPT)
        terminal.send(f"{PERMISSION}\r")
        terminal.expect("and stop >")
        terminal.send("y\r")
        terminal.expect("completed")
        terminal.expect(PROMPT)
        terminal.send("\x04")

    code, seen = await on_terminal(cli, dialogue, "chat")
    assert code == 0
    session = re.search(r"agentstream chat --session (chat-\w+)", seen)
    assert session is not None
    assert session[1] in (await cli("sessions", "--live")).out

    def again(terminal: "pexpect.spawn[str]") -> None:
        terminal.expect("first answer")
        terminal.expect(PROMPT)
        terminal.send("/end\r")

    code, _ = await on_terminal(cli, again, "chat", "--session", session[1], "--history")
    assert code == 0
    assert session[1] not in (await cli("sessions", "--live")).out


async def test_a_request_takes_the_line_from_what_is_being_typed_and_gives_it_back(
    cli: Cli,
) -> None:
    loop = asyncio.get_running_loop()

    def dialogue(terminal: "pexpect.spawn[str]") -> None:
        terminal.expect(PROMPT)
        terminal.send("say first\r")
        terminal.expect("completed")
        terminal.expect(PROMPT)
        terminal.send("say half typed")
        terminal.expect("half typed")
        asyncio.run_coroutine_threadsafe(send_to_live(cli, PERMISSION), loop).result(20)
        terminal.expect("and stop >")
        terminal.send("y\r")
        terminal.expect("ran rm -rf build")
        terminal.expect("half typed")
        terminal.send(" and sent\r")
        terminal.expect("half typed and sent")
        terminal.expect("completed")
        terminal.expect(PROMPT)
        terminal.send("/quit\r")

    code, seen = await on_terminal(cli, dialogue, "chat")
    assert code == 0
    assert "✓ accepted  by client" in seen


async def send_to_live(cli: Cli, text: str) -> None:
    """Another client sends a message to the one session that is not over."""
    live = (await cli("sessions", "--live", "--json")).json
    async with connect_aio(cli.address) as client:
        part = service_pb2.InputPart(text=text)
        request = service_pb2.SendMessageRequest(session_id=live[0]["sessionId"], parts=[part])
        await client.stub.SendMessage(request)


async def test_ctrl_c_interrupts_a_turn_of_a_chat_and_twice_leaves_an_idle_one(cli: Cli) -> None:
    def dialogue(terminal: "pexpect.spawn[str]") -> None:
        terminal.expect(PROMPT)
        terminal.send("say ready then wait\r")
        terminal.expect("completed")
        terminal.expect(PROMPT)
        terminal.send("delay 60s\r")
        terminal.expect("delay 60s")
        terminal.expect("delay 60s")
        terminal.send("\x03")
        terminal.expect("interrupted")
        terminal.expect(PROMPT)
        terminal.send("\x03")
        terminal.expect("leaves")
        terminal.send("\x03")

    code, seen = await on_terminal(cli, dialogue, "chat")
    assert code == 130
    assert "The session stays" in seen


async def test_a_chat_without_a_terminal_is_wrong_usage(cli: Cli) -> None:
    done = await cli("chat")
    assert done.code == 2
    assert "`agentstream run` works without one" in done.err
