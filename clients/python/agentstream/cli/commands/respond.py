"""Answer what a session's agent asks: a permission, questions or a form."""

import argparse
import json

from agentstream.cli import describe
from agentstream.cli.answering import pending_request, respond
from agentstream.cli.context import Context
from agentstream.cli.exits import NOT_FOUND as EXIT_NOT_FOUND
from agentstream.cli.exits import OK, CliError, usage_error
from agentstream.cli.prompts import Answer, Request, parse_answer
from agentstream.client import typed_errors
from agentstream.v1 import interaction_pb2, service_pb2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("session", metavar="SESSION", help="the session")
    parser.add_argument(
        "request", nargs="?", metavar="REQUEST", help="the request; not needed if only one waits"
    )
    answer = parser.add_mutually_exclusive_group()
    answer.add_argument("--accept", action="store_true", help="permission: yes, this once")
    answer.add_argument(
        "--accept-for-session", action="store_true", help="permission: yes, for the session"
    )
    answer.add_argument("--reject", action="store_true", help="no, or no answer")
    answer.add_argument(
        "--answer",
        action="append",
        metavar="ID=LABEL",
        help="questions: the label or number of an option, several with commas, or your own "
        "words; once for each question; ID= may be left out if there is one question",
    )
    answer.add_argument("--form", metavar="JSON", help="form: the content, a JSON object")
    parser.add_argument("--message", default="", help="with --reject: what to tell the agent")
    parser.add_argument("--interrupt", action="store_true", help="with --reject: end the turn too")


async def run(arguments: argparse.Namespace, context: Context) -> int:
    """Run the command."""
    if (arguments.message or arguments.interrupt) and not arguments.reject:
        raise usage_error("--message and --interrupt go with --reject.")
    async with context.connect() as client:
        with typed_errors():
            call = service_pb2.GetSessionRequest(session_id=arguments.session)
            session = (await client.stub.GetSession(call)).session
        waiting = [pending_request(pending) for pending in session.pending_requests]
        request_id, request = _find(waiting, arguments.request)
        answer = _answer(arguments, request)
        if answer is None:
            return _show(waiting, context)
        response = await respond(client, arguments.session, request_id, answer)
    match response.WhichOneof("resolution"):
        case "permission":
            line = describe.resolution(response.permission)
        case "question":
            line = describe.resolution(response.question)
        case _:
            line = describe.resolution(response.form)
    context.out.print(line, soft_wrap=True)
    return OK


def _show(waiting: list[Request], context: Context) -> int:
    """Without an answer: show what waits for one."""
    for request in waiting:
        context.out.print(f"request {request.request_id}", style="dim", soft_wrap=True)
        for line in describe.request_lines(request):
            context.out.print(line, soft_wrap=True)
    return OK


def _find(waiting: list[Request], request_id: str | None) -> tuple[str, Request | None]:
    if request_id is not None:
        found = [request for request in waiting if request.request_id == request_id]
        return request_id, found[0] if found else None
    if not waiting:
        raise CliError("The session waits for no answer.", EXIT_NOT_FOUND)
    if len(waiting) > 1:
        ids = ", ".join(request.request_id for request in waiting)
        raise usage_error(f"Several requests wait, say which: {ids}.")
    return waiting[0].request_id, waiting[0]


def _answer(arguments: argparse.Namespace, request: Request | None) -> Answer | None:
    if arguments.form is not None:
        try:
            json.loads(arguments.form)
        except ValueError as error:
            raise usage_error(f"--form is not JSON: {error}.") from error
        return interaction_pb2.FormAnswer(
            action=interaction_pb2.FORM_ACTION_ACCEPT, content_json=arguments.form
        )
    if arguments.answer:
        return _question_answer(arguments.answer, request)
    if arguments.reject:
        return _rejection(arguments, request)
    decision = (
        interaction_pb2.PERMISSION_DECISION_ACCEPT_FOR_SESSION
        if arguments.accept_for_session
        else interaction_pb2.PERMISSION_DECISION_ACCEPT
    )
    if arguments.accept or arguments.accept_for_session:
        return interaction_pb2.PermissionAnswer(decision=decision)
    return None


def _rejection(arguments: argparse.Namespace, request: Request | None) -> Answer:
    match request:
        case interaction_pb2.QuestionRequest():
            rejected = interaction_pb2.RejectedQuestions(
                message=arguments.message, interrupt=arguments.interrupt
            )
            return interaction_pb2.QuestionAnswer(rejected=rejected)
        case interaction_pb2.FormRequest():
            return interaction_pb2.FormAnswer(action=interaction_pb2.FORM_ACTION_DECLINE)
    return interaction_pb2.PermissionAnswer(
        decision=interaction_pb2.PERMISSION_DECISION_REJECT,
        message=arguments.message,
        interrupt=arguments.interrupt,
    )


def _question_answer(given: list[str], request: Request | None) -> interaction_pb2.QuestionAnswer:
    answered = interaction_pb2.AnsweredQuestions()
    for text in given:
        if not isinstance(request, interaction_pb2.QuestionRequest):
            # Not pending any more: whether this is the same answer again is the daemon's to say.
            question_id, _, label = text.partition("=")
            answered.answers.add(question_id=question_id, labels=label.split(","))
            continue
        questions = {question.question_id: question for question in request.questions}
        question_id, equals, words = text.partition("=")
        if not equals or question_id not in questions:
            if len(questions) > 1:
                ids = ", ".join(questions)
                raise usage_error(f"--answer {text}: say which question: ID=..., of {ids}.")
            question_id, words = next(iter(questions)), text
        try:
            answered.answers.append(parse_answer(questions[question_id], words))
        except ValueError as error:
            raise usage_error(f"--answer {text}: {error}") from error
    return interaction_pb2.QuestionAnswer(answered=answered)
