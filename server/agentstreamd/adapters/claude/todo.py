"""To-do lists: what TodoWrite and the Task tools have made of them."""

from typing import Any

import msgspec

from agentstream.v1 import item_pb2
from agentstreamd.adapters.claude.threads import call_item_id
from agentstreamd.model import json_part, status_item

_TOOLS = frozenset({"TodoWrite", "TaskCreate", "TaskUpdate", "TaskList", "TaskGet"})
_COPIED = ("subject", "status", "activeForm", "description", "owner")


class TodoLists:
    """The to-do list of each thread, as a status item whenever it changes.

    The item's JSON part is `{"todos": [{"id"?, "content", "status", "activeForm"?, ...}]}`, the
    statuses being `pending`, `in_progress` and `completed`.
    """

    def __init__(self) -> None:
        self._tasks: dict[str, dict[str, dict[str, Any]]] = {}

    def on_result(
        self,
        tool_use_id: str,
        tool: str,
        arguments: dict[str, Any],
        result: object,
        thread: str,
    ) -> item_pb2.Item | None:
        """The list after a call that succeeded; None where it changes nothing."""
        if tool not in _TOOLS:
            return None
        said = result if isinstance(result, dict) else {}
        if tool == "TodoWrite":
            todos = said.get("newTodos", arguments.get("todos"))
            return self._item(tool_use_id, todos, thread)
        tasks = self._tasks.setdefault(thread, {})
        before = msgspec.json.encode(tasks)
        self._change(tasks, tool, arguments, said)
        if msgspec.json.encode(tasks) == before:
            return None
        return self._item(tool_use_id, list(tasks.values()), thread)

    def _change(
        self,
        tasks: dict[str, dict[str, Any]],
        tool: str,
        arguments: dict[str, Any],
        said: dict[str, Any],
    ) -> None:
        match tool:
            case "TaskCreate":
                made = said.get("task")
                task_id = str(made.get("id", "")) if isinstance(made, dict) else ""
                task_id = task_id or str(len(tasks) + 1)
                tasks[task_id] = _task(task_id, {"status": "pending", **arguments})
            case "TaskUpdate":
                task_id = str(arguments.get("taskId", ""))
                if arguments.get("status") == "deleted":
                    tasks.pop(task_id, None)
                elif task_id:
                    known = tasks.get(task_id, {"subject": f"Task {task_id}", "status": "pending"})
                    tasks[task_id] = _task(task_id, {**known, **arguments})
            case "TaskList":
                listed = said.get("tasks")
                for task in listed if isinstance(listed, list) else ():
                    if isinstance(task, dict) and "id" in task:
                        task_id = str(task["id"])
                        tasks[task_id] = _task(task_id, {**tasks.get(task_id, {}), **task})
            case _:
                pass

    def _item(self, tool_use_id: str, todos: object, thread: str) -> item_pb2.Item | None:
        if not isinstance(todos, list):
            return None
        todos = [todo for todo in todos if isinstance(todo, dict)]
        done = sum(todo.get("status") == "completed" for todo in todos)
        detail = f"{done} of {len(todos)} done"
        current = next((todo for todo in todos if todo.get("status") == "in_progress"), None)
        if current is not None:
            detail += f": {current.get('activeForm') or current.get('content') or ''}".rstrip(": ")
        return status_item(
            f"todo:{tool_use_id}",
            "todo",
            detail,
            key=f"todo:{thread}" if thread else "todo",
            parent_id=call_item_id(tool_use_id),
            more=[json_part("todo", msgspec.json.encode({"todos": todos}).decode())],
        )


def _task(task_id: str, source: dict[str, Any]) -> dict[str, Any]:
    task = {"id": task_id, "content": source.get("subject") or source.get("content") or ""}
    task.update({key: source[key] for key in _COPIED if key != "subject" and source.get(key)})
    return task
