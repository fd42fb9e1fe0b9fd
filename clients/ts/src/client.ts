import { randomUUID } from "node:crypto";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { type Client as Calls, createClient, type Transport } from "@connectrpc/connect";
import { createGrpcTransport, Http2SessionManager } from "@connectrpc/connect-node";
import {
  AgentService,
  type FormAnswerSchema,
  type InterruptTurnResponse,
  type PermissionAnswerSchema,
  type QuestionAnswerSchema,
  type RespondResponse,
  type SendMessageResponse,
  type Session as SessionState,
  type SessionConfigSchema,
} from "@agentstream/protocol";
import { EventStream, type FollowOptions, type FollowRequest } from "./stream.js";
import { agentstreamTransport } from "./transport.js";

/** Where a daemon listens unless it is told otherwise. */
export const DEFAULT_ADDRESS = "127.0.0.1:50051";

/** How to connect. */
export interface ConnectOptions {
  /** Sent with each call, where the daemon wants one. */
  readonly token?: string;
  /** Turns TLS on; PEM texts. `cert` and `key` are the client's, where the server wants them. */
  readonly tls?: { readonly ca?: string; readonly cert?: string; readonly key?: string };
  /** Used instead of a new gRPC connection by HTTP/2; `address` and `tls` are then not. */
  readonly transport?: Transport;
}

/** A client of the daemon at `address`, `host:port`. It connects at the first call. */
export function connect(address: string = DEFAULT_ADDRESS, options: ConnectOptions = {}): Client {
  if (options.transport) return new Client(agentstreamTransport(options.transport, options.token));
  const baseUrl = `${options.tls ? "https" : "http"}://${address}`;
  // A peer that vanished without a word is noticed.
  const pings = { pingIntervalMs: 20_000, pingTimeoutMs: 10_000 };
  const sessionManager = new Http2SessionManager(baseUrl, pings, options.tls && { ...options.tls });
  const transport = createGrpcTransport({ baseUrl, sessionManager });
  return new Client(agentstreamTransport(transport, options.token), () => sessionManager.abort());
}

/** A connection to a daemon. */
export class Client {
  /** All calls of the daemon; they throw `AgentstreamError`. */
  readonly calls: Calls<typeof AgentService>;
  readonly #hangUp: () => void;

  /** `connect` makes one; `close` is how the transport's connection is closed. */
  constructor(transport: Transport, close: () => void = () => {}) {
    this.calls = createClient(AgentService, transport);
    this.#hangUp = close;
  }

  /** The events that `request` asks for, across cut connections and server restarts. */
  follow(request: FollowRequest, options?: FollowOptions): EventStream {
    return new EventStream(this.calls, request, options);
  }

  /** Short calls for a session. */
  session(sessionId: string): Session {
    return new Session(this, sessionId);
  }

  /** Creates a session; the id, made up where none is given, lets the call be repeated. */
  async create(
    config: MessageInitShape<typeof SessionConfigSchema>,
    sessionId: string = randomUUID(),
  ): Promise<Session> {
    await this.calls.createSession({ sessionId, config });
    return this.session(sessionId);
  }

  /** Closes the connection; calls that run are cancelled. */
  close(): void {
    this.#hangUp();
  }

  [Symbol.dispose](): void {
    this.close();
  }
}

/** An answer to a request, by the request's kind. */
export type Answer =
  | { readonly permission: MessageInitShape<typeof PermissionAnswerSchema> }
  | { readonly question: MessageInitShape<typeof QuestionAnswerSchema> }
  | { readonly form: MessageInitShape<typeof FormAnswerSchema> };

/** A session of the daemon, for short calls. */
export class Session {
  readonly #client: Client;

  constructor(
    client: Client,
    /** The session's id. */
    readonly id: string,
  ) {
    this.#client = client;
  }

  /** The session as it is now. */
  async get(): Promise<SessionState | undefined> {
    return (await this.#client.calls.getSession({ sessionId: this.id })).session;
  }

  /** Its events after a sequence, 0 for all, until it ends. */
  follow(afterSequence = 0n, options?: FollowOptions): EventStream {
    return this.#client.follow({ sessionId: this.id, afterSequence }, options);
  }

  /** Sends text; the message gets an id, so that it is sent once. */
  send(text: string, clientMessageId: string = randomUUID()): Promise<SendMessageResponse> {
    const parts = [{ part: { case: "text" as const, value: text } }];
    return this.#client.calls.sendMessage({ sessionId: this.id, clientMessageId, parts });
  }

  /** Answers a request; returns when the answer is with the agent. */
  respond(requestId: string, answer: Answer): Promise<RespondResponse> {
    const sessionId = this.id;
    const calls = this.#client.calls;
    if ("permission" in answer) {
      const made = { case: "permission" as const, value: answer.permission };
      return calls.respond({ sessionId, requestId, answer: made });
    }
    if ("question" in answer) {
      const made = { case: "question" as const, value: answer.question };
      return calls.respond({ sessionId, requestId, answer: made });
    }
    return calls.respond({ sessionId, requestId, answer: { case: "form", value: answer.form } });
  }

  /** Stops the running turn; returns when it has ended. */
  interrupt(): Promise<InterruptTurnResponse> {
    return this.#client.calls.interruptTurn({ sessionId: this.id });
  }

  /** Ends the session and stops its agent; its events can still be read. */
  async end(): Promise<void> {
    await this.#client.calls.endSession({ sessionId: this.id });
  }
}
