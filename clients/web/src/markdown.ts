import { h } from "./dom.js";

/** Text with fenced code, inline code and bold set apart; all else as it was written. */
export function prose(text: string): Node[] {
  return text.split(/^(```[^\n]*\n[\s\S]*?(?:\n```[^\n]*(?:\n|$)|$))/m).flatMap((piece) => {
    const fenced = /^```([^\n]*)\n([\s\S]*?)(?:\n```[^\n]*\n?)?$/.exec(piece);
    if (!fenced) return inline(piece);
    return [h("pre", { class: "code", tabindex: "0" }, h("code", {}, fenced[2] ?? ""))];
  });
}

function inline(text: string): Node[] {
  return text
    .split(/(`[^`\n]+`|\*\*[^*\n]+\*\*)/)
    .filter((piece) => piece !== "")
    .map((piece) => {
      if (/^`[^`\n]+`$/.test(piece)) return h("code", {}, piece.slice(1, -1));
      if (/^\*\*[^*\n]+\*\*$/.test(piece)) return h("strong", {}, piece.slice(2, -2));
      return document.createTextNode(piece);
    });
}
