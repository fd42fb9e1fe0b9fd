/** Everything over `@grpc/grpc-js` instead of HTTP/2 of Node itself. */

import {
  create,
  type DescMessage,
  type DescMethod,
  type DescService,
  fromBinary,
  type Message,
  type MessageShape,
  toBinary,
} from "@bufbuild/protobuf";
import { Code, ConnectError, type Transport } from "@connectrpc/connect";
import {
  type ChannelCredentials,
  type ChannelOptions,
  type ClientReadableStream,
  Client as GrpcClient,
  credentials,
  Metadata,
  type MethodDefinition,
  type ServiceError,
} from "@grpc/grpc-js";
import { StatusSchema } from "@agentstream/protocol/google/rpc/status_pb";

const STATUS_KEY = "grpc-status-details-bin";
const CHANNEL_OPTIONS: ChannelOptions = {
  // grpc-js's own limit of 4 MiB is less than an event with its raw messages may need.
  "grpc.max_receive_message_length": 64 * 1024 * 1024,
  // Its pace of up to two minutes would keep a restarted daemon waiting for its clients.
  "grpc.initial_reconnect_backoff_ms": 100,
  "grpc.max_reconnect_backoff_ms": 3000,
  "grpc.keepalive_time_ms": 20_000,
  "grpc.keepalive_timeout_ms": 10_000,
};

/** A transport over grpc-js, for `connect` and for `createClient` of Connect. */
export interface GrpcJsTransport extends Transport {
  /** Closes the connection. */
  close(): void;
}

/**
 * A transport to `target`, which is what grpc-js takes: `host:port`, `unix:PATH`.
 *
 *     connect(undefined, { transport: grpcJsTransport("127.0.0.1:50051") })
 */
export function grpcJsTransport(
  target: string,
  channelCredentials: ChannelCredentials = credentials.createInsecure(),
  options: ChannelOptions = {},
): GrpcJsTransport {
  const client = new GrpcClient(target, channelCredentials, { ...CHANNEL_OPTIONS, ...options });
  const unary: Transport["unary"] = (method, signal, timeoutMs, header, input) => {
    const { path, requestSerialize, responseDeserialize } = methodDefinition(method);
    const { parent: service } = method;
    const headers = new Headers();
    const trailers = new Headers();
    return new Promise((resolve, reject) => {
      const call = client.makeUnaryRequest(
        path,
        requestSerialize,
        responseDeserialize,
        create(method.input, input),
        metadataOf(header),
        callOptions(timeoutMs),
        (error, message) => {
          signal?.removeEventListener("abort", cancel);
          if (error || !message) reject(error ? connectError(error) : missing("response"));
          else
            resolve({
              stream: false,
              service,
              method,
              header: headers,
              trailer: trailers,
              message,
            });
        },
      );
      const cancel = () => call.cancel();
      call.on("metadata", (got: Metadata) => copy(got, headers));
      call.on("status", (status: { metadata: Metadata }) => copy(status.metadata, trailers));
      if (signal?.aborted) cancel();
      signal?.addEventListener("abort", cancel, { once: true });
    });
  };

  const stream: Transport["stream"] = async (method, signal, timeoutMs, header, input) => {
    if (method.methodKind !== "server_streaming") {
      throw new ConnectError(`${method.methodKind} is not supported`, Code.Unimplemented);
    }
    const { path, requestSerialize, responseDeserialize } = methodDefinition(method);
    const { parent: service } = method;
    const first = await input[Symbol.asyncIterator]().next();
    if (first.done === true) throw missing("request");
    const call = client.makeServerStreamRequest(
      path,
      requestSerialize,
      responseDeserialize,
      create(method.input, first.value),
      metadataOf(header),
      callOptions(timeoutMs),
    );
    const headers = new Headers();
    const trailers = new Headers();
    call.on("metadata", (got) => copy(got, headers));
    call.on("status", (status) => copy(status.metadata, trailers));
    const message = read(call, signal);
    return { stream: true, service, method, header: headers, trailer: trailers, message };
  };

  return { unary, stream, close: () => client.close() };
}

/** The service of protobuf-es as grpc-js knows services, for `makeGenericClientConstructor`. */
export function serviceDefinition(
  service: DescService,
): Record<string, MethodDefinition<Message, Message>> {
  return Object.fromEntries(
    service.methods.map((method) => [
      method.localName,
      methodDefinition(method) as unknown as MethodDefinition<Message, Message>,
    ]),
  );
}

function methodDefinition<I extends DescMessage, O extends DescMessage>(
  method: DescMethod & { input: I; output: O },
): MethodDefinition<MessageShape<I>, MessageShape<O>> {
  const serializer = (schema: DescMessage) => (value: Message) =>
    Buffer.from(toBinary(schema, value));
  return {
    path: `/${method.parent.typeName}/${method.name}`,
    requestStream:
      method.methodKind === "client_streaming" || method.methodKind === "bidi_streaming",
    responseStream:
      method.methodKind === "server_streaming" || method.methodKind === "bidi_streaming",
    requestSerialize: serializer(method.input),
    requestDeserialize: (bytes: Buffer) => fromBinary(method.input, bytes),
    responseSerialize: serializer(method.output),
    responseDeserialize: (bytes: Buffer) => fromBinary(method.output, bytes),
  };
}

function missing(what: string): ConnectError {
  return new ConnectError(`a ${what} is missing`, Code.Internal);
}

async function* read<T>(
  call: ClientReadableStream<T>,
  signal: AbortSignal | undefined,
): AsyncGenerator<T, void, undefined> {
  const cancel = () => call.cancel();
  if (signal?.aborted) cancel();
  signal?.addEventListener("abort", cancel, { once: true });
  try {
    for await (const message of call) yield message as T;
  } catch (error) {
    throw connectError(error as ServiceError);
  } finally {
    signal?.removeEventListener("abort", cancel);
    cancel();
  }
}

function connectError(error: ServiceError): ConnectError {
  const headers = new Headers();
  if (error.metadata) copy(error.metadata, headers);
  const made = new ConnectError(
    error.details ?? error.message,
    error.code as number,
    headers,
    undefined,
    error,
  );
  const packed = error.metadata?.get(STATUS_KEY)[0];
  if (packed instanceof Uint8Array) {
    try {
      made.details = fromBinary(StatusSchema, packed).details.map(({ typeUrl, value }) => ({
        type: typeUrl.slice(typeUrl.lastIndexOf("/") + 1),
        value,
      }));
    } catch {
      // An error must never be replaced by an error about it.
    }
  }
  return made;
}

function callOptions(timeoutMs: number | undefined): { deadline?: Date } {
  return timeoutMs === undefined ? {} : { deadline: new Date(Date.now() + timeoutMs) };
}

function metadataOf(header: HeadersInit | undefined): Metadata {
  const metadata = new Metadata();
  for (const [key, value] of new Headers(header)) metadata.set(key, value);
  return metadata;
}

function copy(metadata: Metadata, into: Headers): void {
  for (const [key, value] of Object.entries(metadata.getMap())) {
    if (typeof value === "string") into.append(key, value);
  }
}
