import { AgentstreamError, type Client } from "@agentstream/client";
import { AgentState, type Session, SessionState } from "@agentstream/protocol";
import { Code } from "@connectrpc/connect";
import { connected, remember, remembered } from "./connection.js";
import { byId, h, word } from "./dom.js";
import { facts, SessionView } from "./session.js";

/** How often the list is read again, in milliseconds: sessions of others come and go. */
const LIST_MS = 5000;
/** How soon it is read again after an event. */
const SOON_MS = 200;
const PAGE = 200;

const settingsForm = byId("settings", HTMLFormElement);
const address = byId("address", HTMLInputElement);
const token = byId("token", HTMLInputElement);
const list = byId("sessions", HTMLUListElement);
const creation = byId("creation", HTMLFormElement);
const agent = byId("agent", HTMLSelectElement);
const directory = byId("directory", HTMLInputElement);
const title = byId("title", HTMLHeadingElement);
const about = byId("about", HTMLParagraphElement);
const link = byId("link", HTMLSpanElement);
const place = byId("timeline", HTMLDivElement);
const composer = byId("composer", HTMLFormElement);
const message = byId("message", HTMLTextAreaElement);
const stop = byId("stop", HTMLButtonElement);
const trouble = byId("trouble", HTMLParagraphElement);
const said = byId("said", HTMLParagraphElement);

let client: Client | undefined;
let view: SessionView | undefined;
let chosen = "";
let timer = 0;
let due = Number.POSITIVE_INFINITY;
let known: readonly Session[] = [];

function complain(error: unknown): void {
  const typed = error instanceof AgentstreamError;
  const code = typed ? `${Code[error.code]}${error.reason && ` · ${error.reason}`}: ` : "";
  trouble.textContent = code + (typed ? error.rawMessage : String(error));
  trouble.hidden = false;
}

function attempt(work: Promise<unknown>): void {
  trouble.hidden = true;
  work.catch(complain);
}

async function start(): Promise<void> {
  const settings = { address: address.value, token: token.value };
  remember(settings);
  client?.close();
  client = connected(settings);
  const { agents } = await client.calls.listAgents({});
  agent.replaceChildren(
    ...agents
      .filter(({ state }) => state === AgentState.AVAILABLE)
      .map(({ name }) => h("option", {}, name)),
  );
  await readList();
  document.body.classList.add("connected");
  const asked = decodeURIComponent(location.hash.slice(1));
  if (asked) open(asked);
}

async function readList(): Promise<void> {
  clearTimeout(timer);
  due = Number.POSITIVE_INFINITY;
  if (!client) return;
  try {
    const sessions: Session[] = [];
    let pageToken = "";
    do {
      const page = await client.calls.listSessions({ pageSize: PAGE, pageToken });
      sessions.push(...page.sessions);
      pageToken = page.nextPageToken;
    } while (pageToken);
    known = sessions.reverse();
    showList();
  } finally {
    readListWithin(LIST_MS);
  }
}

/** Reads the list after so many milliseconds at the latest; never later than it was due before. */
function readListWithin(delayMs: number): void {
  const at = performance.now() + delayMs;
  if (at >= due) return;
  clearTimeout(timer);
  due = at;
  timer = window.setTimeout(() => readList().catch(() => {}), delayMs);
}

function showList(): void {
  list.replaceChildren(...known.map(entry));
  const current = known.find(({ sessionId }) => sessionId === chosen);
  if (current) showHead(current);
}

function entry(session: Session): HTMLLIElement {
  const { sessionId, config, state } = session;
  const made = h(
    "a",
    { href: `#${encodeURIComponent(sessionId)}`, "aria-current": sessionId === chosen && "page" },
    h("span", { class: `dot ${word(SessionState, state)}`, "aria-hidden": "true" }),
    h(
      "span",
      { class: "entry" },
      h("span", { class: "name" }, config?.title || sessionId),
      h("span", { class: "note" }, `${config?.agent ?? ""} · ${word(SessionState, state)}`),
    ),
  );
  return h("li", {}, made);
}

function showHead(session: Session): void {
  title.textContent = session.config?.title || session.sessionId;
  about.textContent = facts(session);
  stop.hidden = session.state !== SessionState.RUNNING && session.state !== SessionState.WAITING;
  composer.hidden = session.state === SessionState.ENDED;
}

function open(sessionId: string): void {
  if (!client || sessionId === chosen) return;
  view?.close();
  chosen = sessionId;
  document.body.classList.add("chosen");
  title.textContent = sessionId;
  about.textContent = "";
  composer.hidden = false;
  trouble.hidden = true;
  const made = new SessionView(client, sessionId, {
    onStream: (state, why) => {
      if (view !== made) return;
      link.className = `link ${state}`;
      link.textContent = { live: "live", away: "reconnecting…", over: "over" }[state];
      link.title = why;
    },
    onChange: () => readListWithin(SOON_MS),
    onError: (error) => view === made && complain(error),
    onSaid: (text) => {
      said.textContent = text;
    },
  });
  view = made;
  place.replaceChildren(made.element);
  void made.run();
  showList();
  readListWithin(SOON_MS);
}

settingsForm.addEventListener("submit", (event) => {
  event.preventDefault();
  chosen = "";
  attempt(start());
});

creation.addEventListener("submit", (event) => {
  event.preventDefault();
  const made = client?.create({ agent: agent.value, workingDirectory: directory.value });
  if (made)
    attempt(
      made.then(({ id }) => {
        location.hash = encodeURIComponent(id);
      }),
    );
});

composer.addEventListener("submit", (event) => {
  event.preventDefault();
  const text = message.value;
  if (!view || !text.trim()) return;
  message.value = "";
  attempt(
    view.send(text).catch((error: unknown) => {
      message.value ||= text;
      throw error;
    }),
  );
});

message.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  composer.requestSubmit();
});

stop.addEventListener("click", () => {
  if (view) attempt(view.interrupt());
});

window.addEventListener("hashchange", () => open(decodeURIComponent(location.hash.slice(1))));

const last = remembered();
address.value = last.address;
token.value = last.token;
if (last.token) attempt(start());
