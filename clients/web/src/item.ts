import {
  type ContentPart,
  DeltaKind,
  DeltaOperation,
  type Item,
  type ItemDelta,
  ItemKind,
  ItemRole,
  ItemStatus,
  ReasoningVisibility,
} from "@agentstream/protocol";
import { fileRef } from "./diff.js";
import { h, pretty } from "./dom.js";
import { prose } from "./markdown.js";

/** An item on the page: its element, which grows by deltas and is filled anew when it completes. */
export class ItemView {
  readonly element: HTMLElement;
  /** Where items go that stand under this one. */
  readonly children = h("div", { class: "children" });
  readonly #body = h("div", { class: "body" });
  readonly #growing = new Map<number, { text: string; element: HTMLElement }>();

  readonly #parent: ItemView | undefined;
  readonly #files = new Set<string>();

  constructor(item: Item, parent?: ItemView) {
    this.#parent = parent;
    this.element = h("article", { class: classOf(item) }, this.#body, this.children);
    this.#fill(item);
  }

  /** Takes a piece of the item's content. */
  grow({ contentIndex, kind, text, operation }: ItemDelta): void {
    let part = this.#growing.get(contentIndex);
    if (part === undefined) {
      part = { text: "", element: growing(kind) };
      this.#growing.set(contentIndex, part);
      this.#body.append(part.element.closest("details") ?? part.element);
    }
    part.text = operation === DeltaOperation.REPLACE ? text : part.text + text;
    if (kind === DeltaKind.TEXT) part.element.replaceChildren(...prose(part.text));
    else part.element.textContent = part.text;
  }

  /** Takes the whole item. */
  complete(item: Item): void {
    this.#growing.clear();
    this.element.className = classOf(item);
    this.#fill(item);
  }

  /** Whether it has a file of this path and diff. */
  shows(file: string): boolean {
    return this.#files.has(file);
  }

  /** Whether a file is one that the item above shows already: of a call and its result, say. */
  #repeats({ part }: ContentPart): boolean {
    if (part.case !== "fileRef") return false;
    const key = `${part.value.path}\n${part.value.diff}`;
    this.#files.add(key);
    return this.#parent?.shows(key) ?? false;
  }

  #fill(item: Item): void {
    this.#files.clear();
    const parts = item.content
      .filter((part) => !this.#repeats(part))
      .map((part) => content(part, item))
      .filter((made) => made !== undefined);
    if (item.supersededBy) parts.unshift(h("p", { class: "note" }, "taken back by the agent"));
    this.#body.replaceChildren(...parts);
  }
}

function classOf(item: Item): string {
  const kind = ItemKind[item.kind]?.toLowerCase().replace("_", "-") ?? "unknown";
  const role = ItemRole[item.role]?.toLowerCase() ?? "";
  const state = ItemStatus[item.status]?.toLowerCase().replace("_", "-") ?? "";
  return `item ${kind} ${role} ${state} ${item.supersededBy ? "superseded" : ""}`;
}

function growing(kind: DeltaKind): HTMLElement {
  if (kind === DeltaKind.REASONING) {
    const text = h("div", { class: "prose" });
    h("details", { class: "reasoning", open: true }, h("summary", {}, "Thinking"), text);
    return text;
  }
  if (kind === DeltaKind.TEXT) return h("div", { class: "prose" });
  return h("pre", { class: "output", tabindex: "0" });
}

function content({ part, external }: ContentPart, item: Item): HTMLElement | undefined {
  const more = external && `… ${external.sizeBytes} bytes in all`;
  switch (part.case) {
    case "text":
      if (!part.value.text) return undefined;
      return h("div", { class: "prose" }, ...prose(part.value.text), more);
    case "reasoning":
      return reasoning(part.value.text, part.value.visibility);
    case "toolCall":
      return toolCall(part.value.name, part.value.argumentsJson);
    case "toolResult":
      return toolResult(part.value.output, part.value.isError, part.value.exitCode, more);
    case "fileRef":
      return fileRef(part.value);
    case "image":
      return picture(part.value);
    case "status":
      return h(
        "p",
        { class: "status-line" },
        h("span", { class: "chip" }, part.value.label.replaceAll("_", " ")),
        part.value.detail,
      );
    case "json":
      return (
        checklist(part.value.json) ??
        folded(
          part.value.label || "details",
          pretty(part.value.json),
          item.kind === ItemKind.UNKNOWN,
        )
      );
    default:
      return undefined;
  }
}

const MARKS: Record<string, string> = { completed: "✓", in_progress: "▸", inProgress: "▸" };

/** A to-do list or plan, in the words of any agent; undefined for other data. */
function checklist(json: string): HTMLElement | undefined {
  let entries: unknown;
  try {
    entries = JSON.parse(json);
  } catch {
    return undefined;
  }
  if (!Array.isArray(entries) || entries.length === 0) return undefined;
  const lines: HTMLElement[] = [];
  for (const entry of entries as Record<string, unknown>[]) {
    const text = entry?.["text"] ?? entry?.["content"] ?? entry?.["step"];
    const status = entry?.["status"];
    if (typeof text !== "string" || typeof status !== "string") return undefined;
    const mark = h("span", { class: "tick", "aria-hidden": "true" }, MARKS[status] ?? "○");
    const hint = h("span", { class: "hidden" }, ` (${status.replaceAll("_", " ")})`);
    lines.push(h("li", { class: status }, mark, text, hint));
  }
  return h("ul", { class: "checklist" }, ...lines);
}

function reasoning(text: string, visibility: ReasoningVisibility): HTMLElement {
  if (visibility === ReasoningVisibility.REDACTED || !text) {
    return h("p", { class: "reasoning note" }, "Thinking that the provider keeps to itself");
  }
  const title = visibility === ReasoningVisibility.SUMMARY ? "Thinking, summed up" : "Thinking";
  const shown = h("div", { class: "prose" }, text);
  return h("details", { class: "reasoning", open: true }, h("summary", {}, title), shown);
}

function toolCall(name: string, argumentsJson: string): HTMLElement {
  const title = h("div", { class: "tool-title" }, h("span", { class: "tool-name" }, name));
  const made = h("div", { class: "call" }, title);
  const brief = briefly(argumentsJson);
  if (brief) title.append(h("code", { class: "brief" }, brief));
  else if (argumentsJson && argumentsJson !== "{}") {
    made.append(folded("arguments", pretty(argumentsJson), false));
  }
  return made;
}

/** The one argument that says it all, where there is just one, short and of one line. */
function briefly(argumentsJson: string): string | undefined {
  try {
    const values = Object.values(JSON.parse(argumentsJson) as object);
    const [only] = values;
    if (values.length !== 1 || typeof only !== "string") return undefined;
    return only.includes("\n") || only.length > 160 ? undefined : only;
  } catch {
    return undefined;
  }
}

function toolResult(
  output: string,
  isError: boolean,
  exitCode: number | undefined,
  more: string | undefined,
): HTMLElement {
  const made = h("div", { class: isError ? "result failed" : "result" });
  if (isError) made.append(h("span", { class: "chip bad" }, "failed"));
  if (exitCode) made.append(h("span", { class: "chip bad" }, `exit ${exitCode}`));
  if (output) made.append(h("pre", { class: "output", tabindex: "0" }, output, more));
  return made;
}

function picture(image: Extract<ContentPart["part"], { case: "image" }>["value"]): HTMLElement {
  const { source, mediaType } = image;
  // What is not embedded stays a name: a page must not fetch what an agent tells it to.
  if (source.case !== "data" || !/^image\/(png|jpeg|gif|webp)$/.test(mediaType)) {
    const where = source.case === "url" || source.case === "path" ? source.value : mediaType;
    return h("p", { class: "note" }, `Picture: ${where}`);
  }
  const made = h("img", { alt: "Picture from the agent" });
  const url = URL.createObjectURL(new Blob([new Uint8Array(source.value)], { type: mediaType }));
  made.addEventListener("load", () => URL.revokeObjectURL(url), { once: true });
  made.src = url;
  return made;
}

function folded(title: string, text: string, open: boolean): HTMLElement {
  const shown = h("pre", { class: "output", tabindex: "0" }, text);
  return h(
    "details",
    { class: "folded", open },
    h("summary", {}, title.replaceAll("_", " ")),
    shown,
  );
}
