import { Code, ConnectError } from "@connectrpc/connect";
import {
  BadRequestSchema,
  ErrorInfoSchema,
  RetryInfoSchema,
} from "@agentstream/protocol/google/rpc/error_details_pb";
import type { ErrorReason } from "@agentstream/protocol";

/** Domain of the daemon's reasons in `google.rpc.ErrorInfo`. */
export const DOMAIN = "agentstream";

/** A name of `ErrorReason`; `STREAM_BROKEN` is of this client: the server sent a stream that is none. */
export type Reason = Exclude<keyof typeof ErrorReason, "UNSPECIFIED"> | "STREAM_BROKEN";

/** A field of the request that is at fault. */
export interface FieldViolation {
  /** Path of the field. */
  readonly field: string;
  /** What is wrong with it, for people. */
  readonly description: string;
}

/** A call that failed, with what the server's `google.rpc.Status` says. */
export class AgentstreamError extends ConnectError {
  // ConnectError's own takes every ConnectError for an instance, by its name. The name stays, so
  // that ConnectError.from still knows this for one.
  static override [Symbol.hasInstance](value: unknown): boolean {
    return Function.prototype[Symbol.hasInstance].call(AgentstreamError, value);
  }

  /**
   * Empty when the server gave none: it was not reached, or something between answered for it. A
   * newer server may send a reason that is not listed here.
   */
  readonly reason: Reason | "";
  /** The dynamic parts of the reason, see `ErrorReason`. */
  readonly reasonMetadata: Readonly<Record<string, string>>;
  /** The fields at fault. */
  readonly violations: readonly FieldViolation[];
  /** Milliseconds after which the server asks to try again; undefined when it does not say. */
  readonly retryDelayMs: number | undefined;

  constructor(message: string, code: Code, from?: ConnectError, reason: Reason | "" = "") {
    super(message, code, from?.metadata, undefined, from?.cause ?? from);
    this.details = from?.details ?? [];
    const info = this.findDetails(ErrorInfoSchema).find((found) => found.domain === DOMAIN);
    this.reason = (info?.reason as Reason | undefined) ?? reason;
    this.reasonMetadata = info?.metadata ?? {};
    this.violations = this.findDetails(BadRequestSchema).flatMap((bad) =>
      bad.fieldViolations.map(({ field, description }) => ({ field, description })),
    );
    const delay = this.findDetails(RetryInfoSchema)[0]?.retryDelay;
    this.retryDelayMs = delay && Number(delay.seconds) * 1000 + delay.nanos / 1e6;
  }
}

/** Whether `error` is a failed call with this reason. */
export function isReason(error: unknown, reason: Reason): error is AgentstreamError {
  return error instanceof AgentstreamError && error.reason === reason;
}

/** The `AgentstreamError` that says what `error`, raised by a call, says. */
export function errorFrom(error: unknown): AgentstreamError {
  if (error instanceof AgentstreamError) return error;
  const known = ConnectError.from(error, Code.Unknown);
  return new AgentstreamError(known.rawMessage, known.code, known);
}
