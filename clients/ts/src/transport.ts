import type { DescMessage } from "@bufbuild/protobuf";
import type { StreamResponse, Transport } from "@connectrpc/connect";
import { errorFrom } from "./errors.js";

/** `transport`, failing with `AgentstreamError`, and with a token where there is one. */
export function agentstreamTransport(transport: Transport, token?: string): Transport {
  return {
    async unary(method, signal, timeoutMs, header, input, contextValues) {
      const headers = withToken(header, token);
      try {
        return await transport.unary(method, signal, timeoutMs, headers, input, contextValues);
      } catch (error) {
        throw errorFrom(error);
      }
    },
    async stream(method, signal, timeoutMs, header, input, contextValues) {
      const headers = withToken(header, token);
      try {
        const response = await transport.stream(
          method,
          signal,
          timeoutMs,
          headers,
          input,
          contextValues,
        );
        return { ...response, message: typed(response.message) } as typeof response;
      } catch (error) {
        throw errorFrom(error);
      }
    },
  };
}

async function* typed<I extends DescMessage, O extends DescMessage>(
  messages: StreamResponse<I, O>["message"],
): StreamResponse<I, O>["message"] {
  try {
    yield* messages;
  } catch (error) {
    throw errorFrom(error);
  }
}

function withToken(header: HeadersInit | undefined, token: string | undefined): Headers {
  const headers = new Headers(header);
  if (token) headers.set("authorization", `Bearer ${token}`);
  return headers;
}
