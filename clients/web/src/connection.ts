import { type Client, connect } from "@agentstream/client";
import { createGrpcWebTransport } from "@connectrpc/connect-web";

/** Where the daemon is and how to be let in. */
export interface Settings {
  /** URL of the proxy that speaks gRPC-Web. */
  readonly address: string;
  /** The daemon's token; empty where it wants none. */
  readonly token: string;
}

const ADDRESS = "agentstream.address";
const TOKEN = "agentstream.token";

/** What was used last in this tab. The token is forgotten with the tab; `?address=` has the first word. */
export function remembered(): Settings {
  const asked = new URLSearchParams(location.search).get("address");
  return {
    address: asked ?? localStorage.getItem(ADDRESS) ?? location.origin,
    token: sessionStorage.getItem(TOKEN) ?? "",
  };
}

/** Keeps them for the next time. */
export function remember({ address, token }: Settings): void {
  localStorage.setItem(ADDRESS, address);
  sessionStorage.setItem(TOKEN, token);
}

/** A client by gRPC-Web. Throws for an address that is no URL. */
export function connected({ address, token }: Settings): Client {
  const baseUrl = new URL(address).href.replace(/\/$/, "");
  const transport = createGrpcWebTransport({ baseUrl, useBinaryFormat: true });
  return connect(undefined, { transport, ...(token && { token }) });
}
