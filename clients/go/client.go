// Package client is the client of the agentstream daemon: typed calls, typed errors, and an event
// stream that survives cut connections and server restarts.
//
//	c, err := client.Connect("127.0.0.1:50051")
//	...
//	session := c.Session("my-session")
//	events := session.Follow(ctx, 0)
//	defer events.Close()
//	for event, err := range events.All() {
//		...
//	}
package client

import (
	"context"
	"crypto/tls"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	agentstreamv1 "agentstream.dev/go/agentstream/v1"
)

// DefaultAddress is where a daemon listens unless it is told otherwise.
const DefaultAddress = "127.0.0.1:50051"

// MaxReceiveBytes is the largest message that is received: gRPC's default of 4 MiB is less than an
// event with its raw messages may need.
const MaxReceiveBytes = 64 * 1024 * 1024

// Client is a connection to a daemon. All calls of the contract are its methods; the unary ones
// return *Error when they fail. It is safe for concurrent use.
type Client struct {
	agentstreamv1.AgentServiceClient
	conn *grpc.ClientConn
}

type settings struct {
	token string
	tls   *tls.Config
	dial  []grpc.DialOption
}

// Option changes how Connect connects.
type Option func(*settings)

// WithToken sends a bearer token with each call, where the daemon wants one.
func WithToken(token string) Option {
	return func(s *settings) { s.token = token }
}

// WithTLS turns TLS on. A client certificate, where the server wants one, is part of the config.
func WithTLS(config *tls.Config) Option {
	return func(s *settings) { s.tls = config }
}

// WithDialOptions adds options of the gRPC connection; they have the last word.
func WithDialOptions(options ...grpc.DialOption) Option {
	return func(s *settings) { s.dial = append(s.dial, options...) }
}

// Connect makes a client of the daemon at address: `host:port` or `unix:PATH`. It connects at the
// first call; the error is about the address or the options.
func Connect(address string, options ...Option) (*Client, error) {
	var s settings
	for _, option := range options {
		option(&s)
	}
	transport := insecure.NewCredentials()
	if s.tls != nil {
		transport = credentials.NewTLS(s.tls)
	}
	// gRPC's own pace of up to two minutes would keep a restarted daemon waiting for its clients.
	pace := backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 3 * time.Second}
	dial := []grpc.DialOption{
		grpc.WithTransportCredentials(transport),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxReceiveBytes)),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: pace, MinConnectTimeout: 5 * time.Second}),
		// A peer that vanished without a word is noticed.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 10 * time.Second}),
		grpc.WithChainUnaryInterceptor(typedErrors),
	}
	if s.token != "" {
		dial = append(dial,
			grpc.WithChainUnaryInterceptor(unaryToken(s.token)),
			grpc.WithChainStreamInterceptor(streamToken(s.token)))
	}
	conn, err := grpc.NewClient(address, append(dial, s.dial...)...)
	if err != nil {
		return nil, err
	}
	return &Client{AgentServiceClient: agentstreamv1.NewAgentServiceClient(conn), conn: conn}, nil
}

// Conn is the gRPC connection, for other services such as health.
func (c *Client) Conn() *grpc.ClientConn { return c.conn }

// Close closes the connection; calls that run are cancelled.
func (c *Client) Close() error { return c.conn.Close() }

func typedErrors(
	ctx context.Context, method string, request, reply any, conn *grpc.ClientConn,
	invoke grpc.UnaryInvoker, options ...grpc.CallOption,
) error {
	if err := invoke(ctx, method, request, reply, conn, options...); err != nil {
		return ErrorFrom(err)
	}
	return nil
}

// Not per-RPC credentials: gRPC refuses those without TLS, and a daemon on loopback or behind a
// mesh's own encryption has none.
func withToken(ctx context.Context, token string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
}

func unaryToken(token string) grpc.UnaryClientInterceptor {
	return func(
		ctx context.Context, method string, request, reply any, conn *grpc.ClientConn,
		invoke grpc.UnaryInvoker, options ...grpc.CallOption,
	) error {
		return invoke(withToken(ctx, token), method, request, reply, conn, options...)
	}
}

func streamToken(token string) grpc.StreamClientInterceptor {
	return func(
		ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string,
		stream grpc.Streamer, options ...grpc.CallOption,
	) (grpc.ClientStream, error) {
		return stream(withToken(ctx, token), desc, conn, method, options...)
	}
}
