import assert from "node:assert/strict";
import { test } from "node:test";
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { Code, ConnectError, createRouterTransport } from "@connectrpc/connect";
import {
  AgentService,
  EventKind,
  EventSchema,
  type StreamEventsRequest,
  StreamEventsResponseSchema,
} from "@agentstream/protocol";
import {
  BadRequestSchema,
  ErrorInfoSchema,
  RetryInfoSchema,
} from "@agentstream/protocol/google/rpc/error_details_pb";
import {
  AgentstreamError,
  type Client,
  connect,
  DEFAULT_BACKOFF,
  type EventStream,
  type FollowOptions,
  type FollowRequest,
} from "../src/index.js";
import { delayOf } from "../src/resume.js";

type Response = MessageInitShape<typeof StreamEventsResponseSchema>;
/** What the server does with one StreamEvents. */
interface Call {
  responses?: Response[];
  error?: ConnectError;
  hang?: boolean;
}

const opened = (uid = "u"): Response => ({
  response: { case: "opened", value: { session: { sessionId: "s", uid } } },
});
const batch = (...sequences: number[]): Response => ({
  response: {
    case: "batch",
    value: {
      events: sequences.map((sequence) => ({ sequence: BigInt(sequence) })),
      lastSequence: BigInt(sequences.at(-1) ?? 0),
    },
  },
});
const progress = (sequence: number): Response => ({
  response: { case: "progress", value: { lastSequence: BigInt(sequence) } },
});
const end = (sequence: number): Response => {
  const event = create(EventSchema, {
    sequence: BigInt(sequence),
    payload: { case: "sessionEnded", value: {} },
  });
  return { response: { case: "batch", value: { events: [event], lastSequence: event.sequence } } };
};
const lost = (code = Code.Unavailable) => new ConnectError("cut", code);
const failure = (code: Code, reason: string, retrySeconds?: number) => {
  const details: ConstructorParameters<typeof ConnectError>[3] = [
    { desc: ErrorInfoSchema, value: { reason, domain: "agentstream", metadata: { k: "v" } } },
    { desc: BadRequestSchema, value: { fieldViolations: [{ field: "f", description: "wrong" }] } },
  ];
  if (retrySeconds !== undefined) {
    details.push({
      desc: RetryInfoSchema,
      value: { retryDelay: { seconds: BigInt(retrySeconds) } },
    });
  }
  return new ConnectError("told", code, undefined, details);
};

/** A client of a server that plays one call after the other, and what the server was asked. */
function play(...calls: Call[]) {
  const requests: StreamEventsRequest[] = [];
  const tokens: (string | null)[] = [];
  const waits: number[] = [];
  const transport = createRouterTransport(({ service }) => {
    service(AgentService, {
      async *streamEvents(request, context) {
        requests.push(request);
        tokens.push(context.requestHeader.get("authorization"));
        const played = calls[requests.length - 1];
        if (!played) throw new ConnectError("more calls than expected", Code.FailedPrecondition);
        for (const response of played.responses ?? []) {
          yield create(StreamEventsResponseSchema, response);
        }
        if (played.hang) {
          await new Promise((resolve) => context.signal.addEventListener("abort", resolve));
        }
        if (played.error) throw played.error;
      },
      getSession() {
        throw failure(Code.NotFound, "SESSION_NOT_FOUND");
      },
    });
  });
  const client: Client = connect(undefined, { transport, token: "secret" });
  const follow = (request: FollowRequest = {}, options: FollowOptions = {}) =>
    client.follow(
      { sessionId: "s", ...request },
      {
        random: () => 0.5,
        sleep: async (delay) => {
          waits.push(delay);
        },
        ...options,
      },
    );
  return { client, follow, requests, tokens, waits };
}

async function drain(stream: EventStream): Promise<number[]> {
  const sequences: number[] = [];
  for await (const event of stream) sequences.push(Number(event.sequence));
  return sequences;
}

// What Connect says when the stream or the connection is reset is CANCELED and ABORTED.
for (const code of [Code.Unavailable, Code.Internal, Code.Canceled, Code.Aborted]) {
  test(`resumes after the last event on ${Code[code]}`, async () => {
    const { follow, requests, tokens, waits } = play(
      { responses: [opened(), batch(1, 2)], error: lost(code) },
      { responses: [opened(), batch(3), end(4)] },
    );
    assert.deepEqual(await drain(follow()), [1, 2, 3, 4]);
    assert.equal(requests[1]?.afterSequence, 2n);
    assert.equal(requests[1]?.expectedSessionUid, "u");
    assert.deepEqual(waits, [100]);
    assert.deepEqual(tokens, ["Bearer secret", "Bearer secret"]);
  });
}

test("events that come again are left out", async () => {
  const { follow } = play({ responses: [opened(), batch(1, 2), batch(2, 3), end(4)] });
  assert.deepEqual(await drain(follow()), [1, 2, 3, 4]);
});

test("a missing event breaks the stream", async () => {
  const stream = play({ responses: [opened(), batch(1), batch(3)] }).follow();
  assert.equal((await stream.next())?.sequence, 1n);
  await assert.rejects(stream.next(), { reason: "STREAM_BROKEN" });
});

test("a stream that does not begin with opened is broken", async () => {
  const { follow } = play({ responses: [batch(1)] });
  await assert.rejects(drain(follow()), { reason: "STREAM_BROKEN" });
});

test("OK before the end of the session is a cut", async () => {
  const { follow } = play({ responses: [opened(), batch(1)] }, { responses: [opened(), end(2)] });
  const told: Code[] = [];
  const stream = follow({}, { onReconnect: (error) => told.push(error.code) });
  assert.deepEqual(await drain(stream), [1, 2]);
  assert.deepEqual(told, [Code.Unavailable]);
});

test("the server's RetryInfo is waited for", async () => {
  const { follow, waits } = play(
    { error: failure(Code.Unavailable, "SERVER_DRAINING", 7) },
    { responses: [opened(), end(1)] },
  );
  await drain(follow());
  assert.deepEqual(waits, [7000]);
});

test("a limit is waited for by a stream that was open, and refuses one that was not", async () => {
  const full = failure(Code.ResourceExhausted, "LIMIT_EXCEEDED");
  const { follow } = play(
    { responses: [opened(), batch(1)], error: lost() },
    { error: full },
    { responses: [opened(), end(2)] },
    { error: full },
  );
  assert.deepEqual(await drain(follow()), [1, 2]);
  await assert.rejects(drain(follow()), { code: Code.ResourceExhausted });
});

test("waits grow until there is news", async () => {
  const { follow, waits } = play(
    { error: lost() },
    { responses: [opened()], error: lost() }, // only opened: no news
    { responses: [opened(), progress(0)], error: lost() },
    { responses: [opened(), end(1)] },
  );
  await drain(follow());
  assert.deepEqual(waits, [100, 200, 100]);
});

test("gives up with the last failure after so many attempts", async () => {
  const { follow, requests } = play({ error: lost() }, { error: lost() }, { error: lost() });
  const stream = follow({}, { backoff: { ...DEFAULT_BACKOFF, attempts: 2 } });
  await assert.rejects(drain(stream), { code: Code.Unavailable });
  assert.equal(requests.length, 3);
  assert.equal(await stream.next(), undefined);
});

for (const [code, reason] of [
  [Code.NotFound, "SESSION_DELETED"],
  [Code.FailedPrecondition, "SESSION_REPLACED"],
  [Code.OutOfRange, "EVENTS_COMPACTED"],
] as const) {
  test(`${reason} can't be resumed and is a typed error`, async () => {
    const { follow, requests } = play({
      responses: [opened(), batch(1)],
      error: failure(code, reason),
    });
    const stream = follow();
    assert.equal((await stream.next())?.sequence, 1n);
    await assert.rejects(stream.next(), { reason, code, reasonMetadata: { k: "v" } });
    assert.equal(requests.length, 1);
  });
}

test("progress moves the cursor over what a filter left out", async () => {
  const { follow, requests } = play(
    { responses: [opened(), batch(5), progress(9)], error: lost() },
    { responses: [opened(), batch(12)] },
  );
  assert.deepEqual(await drain(follow({ kinds: [EventKind.TURN_ENDED] })), [5, 12]);
  assert.equal(requests[1]?.afterSequence, 9n);
});

test("leaving a loop does not end the stream", async () => {
  const stream = play({ responses: [opened(), batch(1, 2), end(3)] }).follow();
  for await (const event of stream) if (event.sequence === 1n) break;
  assert.equal(stream.lastSequence, 1n);
  assert.deepEqual(await drain(stream), [2, 3]);
});

test("close ends a reader that waits", async () => {
  const stream = play({ responses: [opened(), batch(1)], hang: true }).follow();
  assert.equal((await stream.open())?.uid, "u");
  assert.equal((await stream.next())?.sequence, 1n);
  const waiting = stream.next();
  stream.close();
  assert.equal(await waiting, undefined);
});

test("a signal ends a stream that waits to come back", async () => {
  const abort = new AbortController();
  const { client } = play({ error: lost() });
  const stream = client.follow(
    { sessionId: "s" },
    {
      signal: abort.signal,
      backoff: { ...DEFAULT_BACKOFF, initialMs: 3_600_000, maximumMs: 3_600_000 },
      onReconnect: () => setImmediate(() => abort.abort()),
    },
  );
  assert.equal(await stream.next(), undefined);
});

test("calls fail with typed errors", async () => {
  const { client } = play();
  await assert.rejects(client.calls.getSession({ sessionId: "x" }), (error) => {
    assert.ok(error instanceof AgentstreamError);
    assert.equal(error.reason, "SESSION_NOT_FOUND");
    assert.deepEqual(error.violations, [{ field: "f", description: "wrong" }]);
    return true;
  });
});

test("jitter spreads the wait on both sides", () => {
  assert.equal(delayOf(DEFAULT_BACKOFF, 1, 0, 0), 80);
  assert.equal(delayOf(DEFAULT_BACKOFF, 20, 0, 1), 6000);
});
