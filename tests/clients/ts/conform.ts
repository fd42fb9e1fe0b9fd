/**
 * The scenarios by the TypeScript clients: `conform.js connect-node|grpc-js`. Reads the plan from
 * standard input and writes an outcome a line; see tests/clients/test_conformance.py.
 */

import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { json as readJson } from "node:stream/consumers";
import { fromJson, type JsonObject, type JsonValue, toJson } from "@bufbuild/protobuf";
import { type AgentstreamError, type Client, connect, errorFrom } from "@agentstream/client";
import { grpcJsTransport } from "@agentstream/client/grpc-js";
import {
  AgentService,
  type Event,
  EventSchema,
  ReadBlobRequestSchema,
  StreamEventsRequestSchema,
} from "@agentstream/protocol";
import { Code } from "@connectrpc/connect";
import { credentials } from "@grpc/grpc-js";

interface Step {
  call?: string;
  request: JsonObject;
  stream: JsonObject;
  blob?: JsonObject;
  connection?: string;
  timeoutMs?: number;
  remember?: string;
  raw?: boolean;
  announce?: boolean;
  until?: string;
  cancelAfter?: number;
  answers?: Record<string, JsonObject[]>;
}
interface Connection {
  address: string;
  token?: string;
  tls?: { ca: string; client: string };
}
interface Plan {
  connections: Record<string, Connection>;
  scenarios: { name: string; steps: Step[] }[];
}
type Result = { [key: string]: JsonValue };

const emit = (value: JsonValue) => console.log(JSON.stringify(value));

function described(error: unknown): JsonObject {
  const told: AgentstreamError = errorFrom(error);
  const code = Code[told.code].replace(/(?<!^)(?=[A-Z])/g, "_").toUpperCase();
  return {
    code: code === "CANCELED" ? "CANCELLED" : code,
    reason: told.reason,
    metadata: { ...told.reasonMetadata },
    fields: told.violations.map(({ field }) => field),
    retry: told.retryDelayMs !== undefined,
  };
}

async function call(
  client: Client,
  name: string,
  request: JsonObject,
  options: { timeoutMs?: number } = {},
): Promise<Result> {
  const method = AgentService.methods.find((found) => found.name === name);
  if (method?.methodKind !== "unary") throw new Error(`no unary method ${name}`);
  const calls = client.calls as unknown as Record<
    string,
    (request: unknown, options: object) => Promise<never>
  >;
  try {
    const response = await calls[method.localName]?.(fromJson(method.input, request), options);
    return { response: toJson(method.output, response as never) };
  } catch (error) {
    return { error: described(error) };
  }
}

async function blob(client: Client, request: JsonObject): Promise<Result> {
  const digest = createHash("sha256");
  try {
    const pieces = client.calls.readBlob(fromJson(ReadBlobRequestSchema, request));
    for await (const { data } of pieces) digest.update(data);
  } catch (error) {
    return { error: described(error) };
  }
  return { sha256: digest.digest("hex") };
}

/** Yields undefined when the stream is open, then its events. */
async function* eventsOf(
  client: Client,
  step: Step,
  signal: AbortSignal,
): AsyncGenerator<Event | undefined> {
  const request = fromJson(StreamEventsRequestSchema, step.stream);
  if (!step.raw) {
    using events = client.follow(request, { signal });
    await events.open();
    yield undefined;
    yield* events;
    return;
  }
  const timeout = step.timeoutMs === undefined ? {} : { timeoutMs: step.timeoutMs };
  for await (const { response } of client.calls.streamEvents(request, { signal, ...timeout })) {
    if (response.case === "opened") yield undefined;
    if (response.case === "batch") {
      for (const event of response.value.events) if (!signal.aborted) yield event;
    }
  }
}

async function stream(client: Client, step: Step): Promise<Result> {
  const events: JsonValue[] = [];
  const answers: JsonValue[] = [];
  const result: Result = { events };
  const abort = new AbortController();
  try {
    for await (const event of eventsOf(client, step, abort.signal)) {
      if (event === undefined) {
        if (step.announce) emit({ announce: "opened" });
        continue;
      }
      const told = toJson(EventSchema, event) as JsonObject;
      events.push(told);
      for (const [kind, bodies] of Object.entries(step.answers ?? {})) {
        const asked = told[kind] as { requestId: string } | undefined;
        for (const body of asked ? bodies : []) {
          const ids = {
            sessionId: step.stream["sessionId"] ?? "",
            requestId: asked?.requestId ?? "",
          };
          answers.push(await call(client, "Respond", { ...ids, ...body }));
        }
      }
      if (events.length === step.cancelAfter) abort.abort();
      if (step.until !== undefined && step.until in told) break;
    }
  } catch (error) {
    result["error"] = described(error);
  } finally {
    abort.abort();
  }
  if (answers.length > 0) result["answers"] = answers;
  return result;
}

function carryOut(client: Client, step: Step): Promise<Result> {
  if (step.call !== undefined) {
    const { timeoutMs } = step;
    return call(client, step.call, step.request, timeoutMs === undefined ? {} : { timeoutMs });
  }
  return step.blob === undefined ? stream(client, step) : blob(client, step.blob);
}

const plan = (await readJson(process.stdin)) as Plan;
const clients = new Map<string, Client>();
const closing: (() => void)[] = [];
for (const [name, { address, token, tls }] of Object.entries(plan.connections)) {
  const options: { token?: string } = token === undefined ? {} : { token };
  const ca = tls && readFileSync(tls.ca);
  const own = tls && readFileSync(tls.client);
  if (process.argv[2] === "grpc-js") {
    const transport = grpcJsTransport(address, ca && credentials.createSsl(ca, own, own));
    closing.push(transport.close);
    clients.set(name, connect(address, { ...options, transport }));
  } else {
    const pem = ca && own && { ca: `${ca}`, cert: `${own}`, key: `${own}` };
    const client = connect(address, { ...options, ...(pem && { tls: pem }) });
    closing.push(() => client.close());
    clients.set(name, client);
  }
}
for (const { name, steps } of plan.scenarios) {
  const remembered = new Map<string, string>();
  for (const [number, step] of steps.entries()) {
    let text = JSON.stringify(step);
    for (const [key, value] of remembered) text = text.replaceAll(`$${key}`, value);
    const client = clients.get(step.connection ?? "main");
    if (client === undefined) throw new Error(`no connection ${step.connection}`);
    const result = await carryOut(client, JSON.parse(text) as Step);
    if (step.remember !== undefined) {
      const response = result["response"] as JsonObject;
      remembered.set(step.remember, String(response[step.remember]));
    }
    emit({ scenario: name, step: number, result });
  }
}
for (const close of closing) close();
