import { type Answer, AgentstreamError, type Client, EventStream } from "@agentstream/client";
import {
  type Error as AgentError,
  type Event,
  ErrorCode,
  type PendingRequest,
  RequestOutcome,
  type Session,
  SessionEndReason,
  type StreamEventsResponse,
  TurnStatus,
  type Usage,
  WhenBusy,
} from "@agentstream/protocol";
import { h, word } from "./dom.js";
import { ItemView } from "./item.js";
import { formCard, permissionCard, questionCard } from "./requests.js";

/** What a session view tells the page around it. */
export interface SessionNews {
  /** The stream is open, waits to come back (and why), or is over. */
  readonly onStream: (state: "live" | "away" | "over", why: string) => void;
  /** Something happened that changes what lists say of the session. */
  readonly onChange: () => void;
  /** A call failed. */
  readonly onError: (error: unknown) => void;
  /** For those who can't see: what just happened. */
  readonly onSaid: (text: string) => void;
}

/** One session on the page: follows its events from the first, live, across cuts. */
export class SessionView {
  readonly element = h("div", { class: "timeline" });
  readonly #client: Client;
  readonly #id: string;
  readonly #news: SessionNews;
  readonly #events: EventStream;
  readonly #items = new Map<string, ItemView>();
  readonly #keyed = new Map<string, HTMLElement>();
  readonly #requests = new Map<string, HTMLElement>();
  #running = false;

  constructor(client: Client, sessionId: string, news: SessionNews) {
    this.#client = client;
    this.#id = sessionId;
    this.#news = news;
    const { calls } = client;
    // Beneath the iterator, which hides cuts: each response shows that the stream is there.
    async function* streamEvents(
      ...[request, options]: Parameters<typeof calls.streamEvents>
    ): AsyncGenerator<StreamEventsResponse> {
      for await (const response of calls.streamEvents(request, options)) {
        news.onStream("live", "");
        yield response;
      }
    }
    this.#events = new EventStream(
      { streamEvents },
      { sessionId },
      { onReconnect: (error) => news.onStream("away", error.rawMessage) },
    );
  }

  /** Whether a turn runs. */
  get running(): boolean {
    return this.#running;
  }

  /** Shows events until the session ends or the view is closed. */
  async run(): Promise<void> {
    try {
      for await (const event of this.#events) {
        const stick = atBottom();
        this.#take(event);
        if (stick) scrollTo({ top: document.body.scrollHeight });
      }
      this.#news.onStream("over", "");
    } catch (error) {
      this.#news.onStream("over", "");
      this.#news.onError(error);
    }
  }

  /** Stops following. */
  close(): void {
    this.#events.close();
  }

  /** Sends a message; while a turn runs it waits for its end. */
  async send(text: string): Promise<void> {
    await this.#client.calls.sendMessage({
      sessionId: this.#id,
      clientMessageId: crypto.randomUUID(),
      whenBusy: WhenBusy.QUEUE,
      parts: [{ part: { case: "text", value: text } }],
    });
  }

  /** Stops the running turn. */
  async interrupt(): Promise<void> {
    await this.#client.session(this.#id).interrupt();
  }

  #take({ payload, turnId }: Event): void {
    switch (payload.case) {
      case "turnStarted":
        this.#running = true;
        this.#add(h("hr", { class: "turn", "data-turn": turnId }));
        break;
      case "turnEnded":
        this.#running = false;
        this.#add(turnEnd(payload.value.status, payload.value.usage, payload.value.error));
        this.#news.onSaid(`Turn ${word(TurnStatus, payload.value.status)}`);
        break;
      case "itemStarted":
        if (payload.value.item) this.#start(payload.value.item);
        return;
      case "itemDelta":
        this.#items.get(payload.value.itemId)?.grow(payload.value);
        return;
      case "itemCompleted":
        if (payload.value.item)
          this.#items.get(payload.value.item.itemId)?.complete(payload.value.item);
        return;
      case "permissionRequested":
        this.#ask({ case: "permission", value: payload.value });
        break;
      case "questionRequested":
        this.#ask({ case: "question", value: payload.value });
        break;
      case "formRequested":
        this.#ask({ case: "form", value: payload.value });
        break;
      case "permissionResolved":
      case "questionResolved":
      case "formResolved":
        this.#resolve(payload.value.requestId, payload.value.outcome);
        break;
      case "error":
        this.#add(failure(payload.value));
        break;
      case "agentUnparsed":
        this.#add(
          h("p", { class: "failure" }, "Unreadable output: ", h("code", {}, payload.value.preview)),
        );
        break;
      case "sessionEnded":
        this.#running = false;
        this.#add(
          h("p", { class: "end" }, `Session over: ${word(SessionEndReason, payload.value.reason)}`),
        );
        break;
    }
    this.#news.onChange();
  }

  #start(item: Parameters<ItemView["complete"]>[0]): void {
    const parent = this.#items.get(item.parentId);
    const view = new ItemView(item, parent);
    this.#items.set(item.itemId, view);
    const key = item.content
      .map(({ part }) => (part.case === "status" ? part.value.key : ""))
      .join("");
    if (key) {
      // A snapshot takes the place of the one before.
      this.#keyed.get(key)?.remove();
      this.#keyed.set(key, view.element);
    }
    if (parent) parent.children.append(view.element);
    else this.#add(view.element);
  }

  #ask(request: Exclude<PendingRequest["request"], { case: undefined }>): void {
    const { requestId } = request.value;
    const respond = (answer: Answer) => void this.#answer(requestId, answer);
    const card =
      request.case === "permission"
        ? permissionCard(request.value, respond)
        : request.case === "question"
          ? questionCard(request.value, respond)
          : formCard(request.value, respond);
    this.#requests.set(requestId, card);
    this.#add(card);
    this.#news.onSaid("The agent asks something");
  }

  async #answer(requestId: string, answer: Answer): Promise<void> {
    const card = this.#requests.get(requestId);
    setDisabled(card, true);
    try {
      await this.#client.session(this.#id).respond(requestId, answer);
    } catch (error) {
      // Somebody else was faster: the stream tells how it ended.
      if (error instanceof AgentstreamError && error.reason === "REQUEST_ALREADY_RESOLVED") return;
      setDisabled(card, false);
      this.#news.onError(error);
    }
  }

  #resolve(requestId: string, outcome: RequestOutcome): void {
    const card = this.#requests.get(requestId);
    if (!card) return;
    this.#requests.delete(requestId);
    setDisabled(card, true);
    card.classList.add("resolved");
    card
      .querySelector(".actions")
      ?.replaceWith(
        h("p", { class: "outcome" }, h("span", { class: "chip" }, word(RequestOutcome, outcome))),
      );
  }

  #add(element: HTMLElement): void {
    this.element.append(element);
  }
}

/** The session's figures for its head. */
export function facts(session: Session): string {
  const { config, usage } = session;
  const parts = [config?.agent, config?.model, config?.workingDirectory, figures(usage)];
  return parts.filter((part) => part).join("  ·  ");
}

function figures(usage: Usage | undefined): string {
  if (usage?.inputTokens === undefined && usage?.outputTokens === undefined) return "";
  const cost =
    usage.costMicroUsd === undefined ? "" : `, $${(Number(usage.costMicroUsd) / 1e6).toFixed(4)}`;
  return `${usage.inputTokens ?? 0n} tokens in, ${usage.outputTokens ?? 0n} out${cost}`;
}

function turnEnd(
  status: TurnStatus,
  usage: Usage | undefined,
  error: AgentError | undefined,
): HTMLElement {
  const bad = status === TurnStatus.COMPLETED ? "" : " bad";
  const made = h(
    "p",
    { class: "turn-end" },
    h("span", { class: `chip${bad}` }, word(TurnStatus, status)),
  );
  if (usage) made.append(h("span", { class: "note" }, figures(usage)));
  if (error) made.append(h("span", { class: "message" }, error.message));
  return made;
}

function failure({ code, message, willRetry }: AgentError): HTMLElement {
  const chip = h("span", { class: "chip bad" }, word(ErrorCode, code));
  return h(
    "p",
    { class: "failure" },
    chip,
    message,
    willRetry && h("span", { class: "note" }, " trying again"),
  );
}

function setDisabled(card: HTMLElement | undefined, disabled: boolean): void {
  for (const control of card?.querySelectorAll("button, input, select") ?? []) {
    control.toggleAttribute("disabled", disabled);
  }
}

function atBottom(): boolean {
  return innerHeight + scrollY >= document.body.scrollHeight - 80;
}
