import type { Answer } from "@agentstream/client";
import {
  FormAction,
  type FormRequest,
  PermissionDecision,
  PermissionKind,
  type PermissionRequest,
  type Question,
  type QuestionRequest,
} from "@agentstream/protocol";
import { fileRef } from "./diff.js";
import { button, h, pretty, word } from "./dom.js";
import { schemaFields } from "./form.js";
import { prose } from "./markdown.js";

/** Takes a person's answer to a request. */
export type Respond = (answer: Answer) => void;

/** A permission, with the buttons that it allows. */
export function permissionCard(request: PermissionRequest, respond: Respond): HTMLElement {
  const { kind, toolName, command, cwd, plan, reason, files, argumentsJson } = request;
  const card = frame(`Permission: ${word(PermissionKind, kind)}`, toolName);
  if (reason) card.append(h("p", {}, reason));
  if (command) card.append(h("pre", { class: "code", tabindex: "0" }, h("code", {}, command)));
  if (cwd) card.append(h("p", { class: "note" }, "in ", h("code", {}, cwd)));
  if (plan) card.append(h("div", { class: "prose" }, ...prose(plan)));
  card.append(...files.map(fileRef));
  if (!command && !plan && !files.length && argumentsJson) {
    card.append(h("pre", { class: "output", tabindex: "0" }, pretty(argumentsJson)));
  }
  const grants = request.suggestions.map(({ suggestionId, description }) => ({
    id: suggestionId,
    ...choice("checkbox", "suggestion", description, "allow from now on"),
  }));
  card.append(...grants.map(({ label }) => label));
  const message = h("input", {
    type: "text",
    placeholder: "What to tell the agent when you refuse",
    "aria-label": "What to tell the agent when you refuse",
  });
  if (request.takesMessage) card.append(message);
  const decide = (decision: PermissionDecision) => () => {
    const rejects = decision === PermissionDecision.REJECT;
    const suggestionIds = grants.filter(({ input }) => input.checked).map(({ id }) => id);
    respond({
      permission: rejects
        ? { decision, message: request.takesMessage ? message.value : "" }
        : { decision, suggestionIds },
    });
  };
  const labels: [PermissionDecision, string, string][] = [
    [PermissionDecision.ACCEPT, "Allow once", "primary"],
    [PermissionDecision.ACCEPT_FOR_SESSION, "Allow for the session", "plain"],
    [PermissionDecision.REJECT, "Refuse", "danger"],
  ];
  const offered = labels.filter(([decision]) => request.allowedDecisions.includes(decision));
  card.append(
    actions(offered.map(([decision, label, kind]) => button(label, kind, decide(decision)))),
  );
  return card;
}

/** Questions, with what can be chosen and written. */
export function questionCard(request: QuestionRequest, respond: Respond): HTMLElement {
  const asked = request.questions.map((question) => questionField(question));
  const form = frame("Question", "");
  form.append(
    ...asked.map(({ element }) => element),
    actions([
      h("button", { type: "submit", class: "primary" }, "Answer"),
      button("Do not answer", "danger", () =>
        respond({ question: { answer: { case: "rejected", value: {} } } }),
      ),
    ]),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const answers = asked
      .map(({ read }) => read())
      .filter(({ labels, text }) => labels.length || text);
    respond({ question: { answer: { case: "answered", value: { answers } } } });
  });
  return form;
}

function questionField(question: Question) {
  const { questionId, multiSelect, options } = question;
  const element = h("fieldset", {}, h("legend", {}, question.header || "Question"));
  element.append(h("p", { class: "question" }, question.text));
  const name = `${questionId}-${crypto.randomUUID()}`;
  const inputs = options.map(({ label, description }) => {
    const made = choice(multiSelect ? "checkbox" : "radio", name, label, description);
    element.append(made.label);
    return { label, input: made.input };
  });
  const own = h("input", {
    type: question.secret ? "password" : "text",
    autocomplete: "off",
    placeholder: options.length ? "Or in your own words" : "Your answer",
    "aria-label": `Your own answer to: ${question.text}`,
  });
  if (question.freeText) element.append(own);
  const read = () => ({
    questionId,
    labels: inputs.filter(({ input }) => input.checked).map(({ label }) => label),
    text: question.freeText ? own.value : "",
  });
  return { element, read };
}

/** A form: fields from its schema, or a page to go to. */
export function formCard(request: FormRequest, respond: Respond): HTMLElement {
  const card = frame("Form", request.serverName);
  card.append(h("p", {}, request.message));
  const fields = schemaFields(request.schemaJson);
  if (request.url) card.append(outside(request.url));
  card.append(...fields.elements);
  card.append(
    actions([
      h("button", { type: "submit", class: "primary" }, request.url ? "I have done it" : "Send"),
      button("Decline", "danger", () => respond({ form: { action: FormAction.DECLINE } })),
      button("Dismiss", "plain", () => respond({ form: { action: FormAction.CANCEL } })),
    ]),
  );
  card.addEventListener("submit", (event) => {
    event.preventDefault();
    const contentJson = request.schemaJson ? JSON.stringify(fields.read()) : "";
    respond({ form: { action: FormAction.ACCEPT, contentJson } });
  });
  return card;
}

/** A link where the address is one of the web; else the address as text. */
function outside(url: string): HTMLElement {
  if (!/^https?:\/\//i.test(url)) return h("p", {}, h("code", {}, url));
  return h("p", {}, h("a", { href: url, target: "_blank", rel: "noreferrer noopener" }, url));
}

function frame(title: string, about: string): HTMLFormElement {
  const head = h("h3", {}, title);
  if (about) head.append(" ", h("span", { class: "tool-name" }, about));
  return h("form", { class: "request", "aria-label": title }, head);
}

function actions(buttons: HTMLElement[]): HTMLElement {
  return h("div", { class: "actions" }, ...buttons);
}

function choice(type: string, name: string, label: string, description: string) {
  const input = h("input", { type, name });
  const text = h("span", {}, h("strong", {}, label));
  if (description) text.append(h("span", { class: "note" }, ` ${description}`));
  return { input, label: h("label", { class: "choice" }, input, text) };
}
