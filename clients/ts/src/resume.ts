import { clone, create } from "@bufbuild/protobuf";
import { Code } from "@connectrpc/connect";
import {
  type Event,
  type Session,
  SessionState,
  type StreamEventsRequest,
  StreamEventsRequestSchema,
  type StreamEventsResponse,
} from "@agentstream/protocol";
import { AgentstreamError } from "./errors.js";

/** How long to wait before a stream is opened again, and when to give up. */
export interface Backoff {
  /** Milliseconds before the first attempt. */
  readonly initialMs: number;
  /** Each further attempt waits this times longer. */
  readonly multiplier: number;
  /** The longest wait before jitter, unless the server asks for a longer one. */
  readonly maximumMs: number;
  /** Spread the wait by up to this fraction, so that clients do not come back at once. */
  readonly jitter: number;
  /** Attempts in a row that bring nothing new before the error is raised. */
  readonly attempts: number;
}

/** Used unless `FollowOptions.backoff` says otherwise. */
export const DEFAULT_BACKOFF: Backoff = {
  initialMs: 100,
  multiplier: 2,
  maximumMs: 5000,
  jitter: 0.2,
  attempts: 12,
};

/** Milliseconds before attempt `attempt` (from 1); `uniform` is random in [0, 1). */
export function delayOf(backoff: Backoff, attempt: number, asked: number, uniform: number): number {
  const grown = Math.min(
    backoff.maximumMs,
    backoff.initialMs * backoff.multiplier ** (attempt - 1),
  );
  return Math.max(grown * (1 + backoff.jitter * (2 * uniform - 1)), asked);
}

/**
 * Where a reader of a session's stream is, across any number of calls: the decisions about
 * resuming, without I/O.
 */
export class Cursor {
  /** Everything up to this sequence was seen, or passed by the filter. */
  sequence: bigint;
  /** The session as the newest call opened; undefined before the first. */
  session: Session | undefined;
  readonly #request: StreamEventsRequest;
  readonly #backoff: Backoff;
  readonly #uniform: () => number;
  #uid: string;
  #failures = 0;
  #ended = false;

  constructor(request: StreamEventsRequest, backoff: Backoff, uniform: () => number) {
    this.#request = clone(StreamEventsRequestSchema, request);
    this.#backoff = backoff;
    this.#uniform = uniform;
    this.sequence = request.afterSequence;
    this.#uid = request.expectedSessionUid;
  }

  /** The request of the next call: it goes on after what was seen, in the same session. */
  nextRequest(): StreamEventsRequest {
    return create(StreamEventsRequestSchema, {
      ...this.#request,
      afterSequence: this.sequence,
      expectedSessionUid: this.#uid,
    });
  }

  /** The events of `response` that were not seen yet. Throws STREAM_BROKEN for a gap. */
  take({ response }: StreamEventsResponse): Event[] {
    if (response.case === "opened") {
      this.session = response.value.session;
      this.#uid = this.session?.uid ?? this.#uid;
      return [];
    }
    if (this.session === undefined) throw broken("the stream did not begin with opened");
    if (response.case === "batch") {
      const fresh = this.#fresh(response.value.events);
      this.#reach(response.value.lastSequence);
      return fresh;
    }
    if (response.case === "progress") this.#reach(response.value.lastSequence);
    return [];
  }

  /** Whether a call that ended with OK was the end of the stream; else it was a cut. */
  finished(): boolean {
    if (this.session === undefined) return false;
    const ended = this.#ended || this.session.state === SessionState.ENDED;
    return ended || !this.#request.follow || this.#request.kinds.length > 0;
  }

  /** Milliseconds to wait before the next call; throws `error` when there should be none. */
  failed(error: AgentstreamError): number {
    this.#failures += 1;
    // INTERNAL is what Envoy makes of a backend that died in mid-stream.
    const gone = error.code === Code.Unavailable || error.code === Code.Internal;
    // A server that has not noticed yet that the call before was cut still counts its stream.
    const counted = error.reason === "LIMIT_EXCEEDED" && this.session !== undefined;
    const resumable = gone || counted;
    if (!resumable || this.#failures > this.#backoff.attempts) throw error;
    return delayOf(this.#backoff, this.#failures, error.retryDelayMs ?? 0, this.#uniform());
  }

  #fresh(events: readonly Event[]): Event[] {
    const fresh: Event[] = [];
    for (const event of events) {
      if (event.sequence <= this.sequence) continue;
      if (event.sequence !== this.sequence + 1n && this.#request.kinds.length === 0) {
        throw broken(
          `event ${this.sequence + 1n} is missing: ${event.sequence} came after ${this.sequence}`,
        );
      }
      fresh.push(event);
      this.#ended ||= event.payload.case === "sessionEnded";
      this.#reach(event.sequence);
    }
    return fresh;
  }

  #reach(sequence: bigint): void {
    // Only news shows that the trouble is over: a server that opens the stream and then fails,
    // again and again, must not be asked for ever.
    this.#failures = 0;
    if (sequence > this.sequence) this.sequence = sequence;
  }
}

/** The error of a call that ended, with OK or by a reset, but not at the end of the stream. */
export function cut(reset?: AgentstreamError): AgentstreamError {
  return new AgentstreamError("the stream ended before the session did", Code.Unavailable, reset);
}

function broken(message: string): AgentstreamError {
  return new AgentstreamError(message, Code.DataLoss, undefined, "STREAM_BROKEN");
}
