"""The universal model: drafts of events and small builders over the generated messages. Pure."""

from agentstreamd.model.build import (
    completed,
    delta,
    event,
    file_ref_part,
    image_at_part,
    image_part,
    json_part,
    reasoning_part,
    started,
    status_item,
    text_part,
    tool_call_item,
    tool_result_item,
    unknown_item,
    unparsed,
    whole,
)
from agentstreamd.model.draft import Draft, Kind, Redacted

__all__ = [
    "Draft",
    "Kind",
    "Redacted",
    "completed",
    "delta",
    "event",
    "file_ref_part",
    "image_at_part",
    "image_part",
    "json_part",
    "reasoning_part",
    "started",
    "status_item",
    "text_part",
    "tool_call_item",
    "tool_result_item",
    "unknown_item",
    "unparsed",
    "whole",
]
