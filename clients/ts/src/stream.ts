import { setTimeout as wait } from "node:timers/promises";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { create } from "@bufbuild/protobuf";
import { Code, type Client as Calls } from "@connectrpc/connect";
import {
  type AgentService,
  type Event,
  type Session,
  StreamEventsRequestSchema,
  type StreamEventsResponse,
} from "@agentstream/protocol";
import { type AgentstreamError, errorFrom } from "./errors.js";
import { type Backoff, Cursor, cut, DEFAULT_BACKOFF } from "./resume.js";

/** How a stream is followed. */
export interface FollowOptions {
  /** When to try again after a cut, and when to give up. */
  readonly backoff?: Backoff;
  /** Ends the stream, as `close` does. */
  readonly signal?: AbortSignal;
  /** Told of each cut, with the error and the milliseconds until the next attempt. */
  readonly onReconnect?: (error: AgentstreamError, delayMs: number) => void;
  /** Waits so many milliseconds, less when the signal is aborted; for tests. */
  readonly sleep?: (delayMs: number, signal: AbortSignal) => Promise<void>;
  /** Source of jitter, random in [0, 1); for tests. */
  readonly random?: () => number;
}

/** What to stream: `StreamEventsRequest`, which follows unless it says otherwise. */
export type FollowRequest = MessageInitShape<typeof StreamEventsRequestSchema>;

/**
 * A session's events, each once, in order, across cut connections and server restarts. For one
 * reader. Leaving a `for await` does not end it: another one goes on where it was.
 */
export class EventStream implements AsyncIterable<Event> {
  readonly #calls: Pick<Calls<typeof AgentService>, "streamEvents">;
  readonly #cursor: Cursor;
  readonly #options: FollowOptions;
  readonly #closing = new AbortController();
  #responses: AsyncIterator<StreamEventsResponse> | undefined;
  #hangUp: AbortController | undefined;
  #ready: Event[] = [];
  #over = false;

  constructor(
    calls: Pick<Calls<typeof AgentService>, "streamEvents">,
    request: FollowRequest,
    options: FollowOptions = {},
  ) {
    this.#calls = calls;
    this.#options = options;
    const made = create(StreamEventsRequestSchema, { follow: true, ...request });
    this.#cursor = new Cursor(
      made,
      options.backoff ?? DEFAULT_BACKOFF,
      options.random ?? Math.random,
    );
    if (options.signal?.aborted) this.close();
    options.signal?.addEventListener("abort", () => this.close(), { once: true });
  }

  /** Sequence up to which events were handed out, or passed by the filter. */
  get lastSequence(): bigint {
    const next = this.#ready[0];
    return next ? next.sequence - 1n : this.#cursor.sequence;
  }

  /**
   * Waits until the stream is open; the session as it then was, or undefined when the stream was
   * closed before. What the session does after that is in the stream, so it is the moment to send
   * a message.
   */
  async open(): Promise<Session | undefined> {
    while (this.#cursor.session === undefined && !this.#over) await this.#advance();
    return this.#cursor.session;
  }

  /**
   * The next event; undefined at the end of the stream. Throws `AgentstreamError` for what can't
   * be resumed: SESSION_DELETED, SESSION_REPLACED, EVENTS_COMPACTED among them, and the last
   * failure when it gave up.
   */
  async next(): Promise<Event | undefined> {
    while (this.#ready.length === 0 && !this.#over) await this.#advance();
    return this.#ready.shift();
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Event, void, undefined> {
    for (let event = await this.next(); event !== undefined; event = await this.next()) yield event;
  }

  /** Ends the stream: a reader that waits is told its end. */
  close(): void {
    this.#over = true;
    this.#ready = [];
    this.#closing.abort();
    this.#drop();
  }

  [Symbol.dispose](): void {
    this.close();
  }

  /** Takes one response, or one step of coming back after a cut. */
  async #advance(): Promise<void> {
    let failure: AgentstreamError;
    try {
      const result = await this.#receive();
      if (this.#over) return;
      if (result.done !== true) {
        this.#ready.push(...this.#take(result.value));
        return;
      }
      if (this.#cursor.finished()) {
        this.#over = true;
        return;
      }
      failure = cut();
    } catch (error) {
      if (this.#closing.signal.aborted && !(error instanceof Broken)) return;
      if (error instanceof Broken) throw error.reason;
      failure = errorFrom(error);
      if (isReset(failure)) failure = cut(failure);
    }
    this.#drop();
    await this.#reconnect(failure);
  }

  #take(response: StreamEventsResponse): Event[] {
    try {
      return this.#cursor.take(response);
    } catch (error) {
      this.close();
      throw new Broken(error);
    }
  }

  #receive(): Promise<IteratorResult<StreamEventsResponse>> {
    if (this.#responses === undefined) {
      this.#hangUp = new AbortController();
      const responses = this.#calls.streamEvents(this.#cursor.nextRequest(), {
        signal: this.#hangUp.signal,
      });
      this.#responses = responses[Symbol.asyncIterator]();
    }
    return this.#responses.next();
  }

  #drop(): void {
    this.#hangUp?.abort();
    this.#hangUp = undefined;
    this.#responses = undefined;
  }

  async #reconnect(failure: AgentstreamError): Promise<void> {
    let delay: number;
    try {
      delay = this.#cursor.failed(failure);
    } catch (error) {
      this.close();
      throw error;
    }
    this.#options.onReconnect?.(failure, delay);
    await (this.#options.sleep ?? sleep)(delay, this.#closing.signal);
  }
}

/**
 * Whether something reset the stream or its connection, which this side did not: it would be over.
 * Connect's transport says CANCELED and ABORTED for that; the daemon says a reason with its codes.
 */
function isReset({ code, reason }: AgentstreamError): boolean {
  return reason === "" && (code === Code.Canceled || code === Code.Aborted);
}

/** Carries what the stream itself is at fault for past the handling of failed calls. */
class Broken {
  constructor(readonly reason: unknown) {}
}

async function sleep(delayMs: number, signal: AbortSignal): Promise<void> {
  try {
    await wait(delayMs, undefined, { signal });
  } catch (error) {
    if (!signal.aborted) throw error;
  }
}
