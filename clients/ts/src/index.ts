/**
 * Client of the agentstream daemon: typed calls, typed errors, a stream that survives cuts.
 *
 *     const client = connect("127.0.0.1:50051");
 *     const session = await client.create({ agent: "mock", workingDirectory: "/tmp" });
 *     for await (const event of session.follow()) { ... }
 */

export * from "./client.js";
export {
  AgentstreamError,
  DOMAIN,
  errorFrom,
  type FieldViolation,
  isReason,
  type Reason,
} from "./errors.js";
export { type Backoff, DEFAULT_BACKOFF } from "./resume.js";
export { EventStream, type FollowOptions, type FollowRequest } from "./stream.js";
