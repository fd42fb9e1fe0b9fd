/** What the client uses of Node, for browsers; the bundler puts it in the place of Node's modules. */

/** `node:crypto` */
export const randomUUID = (): string => crypto.randomUUID();

/** `@connectrpc/connect-node`: a page has a transport of its own. */
export function createGrpcTransport(): never {
  throw new Error("gRPC without gRPC-Web is not for browsers");
}
export const Http2SessionManager = createGrpcTransport;

/** `node:timers/promises` */
export function setTimeout(
  delayMs: number,
  value?: unknown,
  { signal }: { signal?: AbortSignal } = {},
): Promise<unknown> {
  return new Promise((resolve, reject) => {
    const give = () => {
      globalThis.clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = globalThis.setTimeout(() => {
      signal?.removeEventListener("abort", give);
      resolve(value);
    }, delayMs);
    if (signal?.aborted) give();
    else signal?.addEventListener("abort", give, { once: true });
  });
}
