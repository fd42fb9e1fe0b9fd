"""Talks with an agent on the terminal: shows what it writes and does, and asks you what it asks.

python clients/python/examples/chat.py --agent mock
"""

import argparse
import os
import sys

from agentstream.client import (
    DEFAULT_ADDRESS,
    EventStream,
    RequestAlreadyResolved,
    Session,
    connect,
)
from agentstream.v1 import event_pb2, interaction_pb2, item_pb2, session_pb2


def ask(prompt: str) -> str | None:
    """A line from the keyboard; None at the end of the input."""
    print(prompt, end="", flush=True)
    line = sys.stdin.readline()
    return line.strip() if line else None


def permit(session: Session, request: interaction_pb2.PermissionRequest) -> None:
    """Ask whether the agent may do something."""
    files = "".join(f"\n{file.path}\n{file.diff}" for file in request.files)
    what = f"{request.tool_name} {request.command}{request.plan}{files}".strip()
    decision = {
        "y": interaction_pb2.PERMISSION_DECISION_ACCEPT,
        "a": interaction_pb2.PERMISSION_DECISION_ACCEPT_FOR_SESSION,
    }.get((ask(f"? allow {what} [y/N/a(lways)] ") or "n")[:1].lower())
    answer = interaction_pb2.PermissionAnswer(
        decision=decision or interaction_pb2.PERMISSION_DECISION_REJECT
    )
    session.respond(request.request_id, answer)


def answer(session: Session, request: interaction_pb2.QuestionRequest) -> None:
    """Ask what the agent asks."""
    answers = []
    for question in request.questions:
        print(f"? {question.text}")
        labels = [option.label for option in question.options]
        for number, option in enumerate(question.options, 1):
            print(f"  {number} {option.label} {option.description}")
        text = ask("= ") or ""
        words = [word.strip() for word in text.split(",")]
        numbered = dict(enumerate(labels, 1))
        chosen = [numbered.get(int(word)) if word.isdecimal() else word for word in words]
        known = [label for label in chosen if label in labels]
        answers.append(
            interaction_pb2.SingleAnswer(
                question_id=question.question_id, labels=known, text="" if known else text
            )
        )
    answered = interaction_pb2.AnsweredQuestions(answers=answers)
    session.respond(request.request_id, interaction_pb2.QuestionAnswer(answered=answered))


def turn(session: Session, events: EventStream) -> None:
    """Show events until the turn has ended."""
    for event in events:
        try:
            match event.WhichOneof("payload"):
                case "item_delta" if event.item_delta.kind == event_pb2.DELTA_KIND_TEXT:
                    print(event.item_delta.text, end="", flush=True)
                case "item_completed":
                    item = event.item_completed.item
                    for part in item.content:
                        if part.HasField("tool_call"):
                            print(f"[{part.tool_call.name} {part.tool_call.arguments_json}]")
                    if item.kind == item_pb2.ITEM_KIND_MESSAGE:
                        print()
                case "permission_requested":
                    permit(session, event.permission_requested)
                case "question_requested":
                    answer(session, event.question_requested)
                case "turn_ended":
                    if event.turn_ended.HasField("error"):
                        print(f"! {event.turn_ended.error.message}")
                    return
        except RequestAlreadyResolved:
            pass  # somebody else was faster


def main() -> None:
    """Talk until the input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", default=DEFAULT_ADDRESS)
    parser.add_argument("--agent", default="mock")
    parser.add_argument("--dir", default=os.getcwd())
    options = parser.parse_args()
    with connect(options.address, token=os.environ.get("AGENTSTREAM_TOKEN")) as client:
        config = session_pb2.SessionConfig(agent=options.agent, working_directory=options.dir)
        session = client.create(config)
        with session.follow() as events:
            while (text := ask("> ")) is not None:
                session.send(text)
                turn(session, events)
        session.end()


if __name__ == "__main__":
    main()
