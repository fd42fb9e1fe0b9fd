import { FileAction, type FileRefPart } from "@agentstream/protocol";
import { h, word } from "./dom.js";

const KINDS: Record<string, string> = { "+": "added", "-": "removed", "@": "hunk", "\\": "hunk" };

/** A file that was read or changed, with its diff. */
export function fileRef(file: FileRefPart): HTMLElement {
  const { path, newPath, diff, action } = file;
  const name = newPath ? `${path} → ${newPath}` : path;
  const title = h(
    "div",
    { class: "file-title" },
    h("span", { class: "chip" }, word(FileAction, action)),
    h("code", {}, name),
  );
  if (!diff) return h("div", { class: "file" }, title);
  return h("div", { class: "file" }, title, unifiedDiff(diff));
}

/** A unified diff, a line each. Added and removed are told by their sign, not by colour alone. */
function unifiedDiff(diff: string): HTMLElement {
  const lines = diff.replace(/\n$/, "").split("\n");
  const shown = lines.filter((line) => !/^(---|\+\+\+) /.test(line));
  return h(
    "pre",
    { class: "diff", tabindex: "0", "aria-label": "changes" },
    ...shown.map((line) => h("span", { class: KINDS[line[0] ?? ""] ?? "same" }, `${line}\n`)),
  );
}
