// Command conform carries out the scenarios by the Go client. It reads the plan from standard
// input and writes an outcome a line; see tests/clients/test_conformance.py.
package main

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	agentstreamv1 "agentstream.dev/go/agentstream/v1"
	"agentstream.dev/go/client"
)

type object = map[string]any

type plan struct {
	Connections map[string]connection
	Scenarios   []struct {
		Name  string
		Steps []json.RawMessage
	}
}

type connection struct {
	Address, Token string
	TLS            *struct{ CA, Client string }
}

func (c connection) connect() (*client.Client, error) {
	options := []client.Option{client.WithToken(c.Token)}
	if c.TLS != nil {
		authority, err := os.ReadFile(c.TLS.CA)
		if err != nil {
			return nil, err
		}
		certificate, err := tls.LoadX509KeyPair(c.TLS.Client, c.TLS.Client)
		if err != nil {
			return nil, err
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(authority)
		options = append(options, client.WithTLS(&tls.Config{
			RootCAs: roots, Certificates: []tls.Certificate{certificate},
		}))
	}
	return client.Connect(c.Address, options...)
}

type step struct {
	Call        string
	Request     json.RawMessage
	Stream      json.RawMessage
	Blob        json.RawMessage
	Connection  string
	TimeoutMs   int
	Remember    string
	Raw         bool
	Announce    bool
	Until       string
	CancelAfter int
	Answers     map[string][]object
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "conform:", err)
		os.Exit(1)
	}
}

func run() error {
	var todo plan
	if err := json.NewDecoder(os.Stdin).Decode(&todo); err != nil {
		return err
	}
	clients := map[string]*client.Client{}
	for name, connection := range todo.Connections {
		made, err := connection.connect()
		if err != nil {
			return err
		}
		defer made.Close()
		clients[name] = made
	}
	for _, scenario := range todo.Scenarios {
		remembered := map[string]string{}
		for number, text := range scenario.Steps {
			filled := string(text)
			for name, value := range remembered {
				filled = strings.ReplaceAll(filled, "$"+name, value)
			}
			var next step
			if err := json.Unmarshal([]byte(filled), &next); err != nil {
				return err
			}
			if next.Connection == "" {
				next.Connection = "main"
			}
			result, err := carryOut(clients[next.Connection], next)
			if err != nil {
				return fmt.Errorf("%s, step %d: %w", scenario.Name, number, err)
			}
			if next.Remember != "" {
				var response object
				if err := json.Unmarshal(result["response"].(json.RawMessage), &response); err != nil {
					return err
				}
				remembered[next.Remember] = fmt.Sprint(response[next.Remember])
			}
			emit(object{"scenario": scenario.Name, "step": number, "result": result})
		}
	}
	return nil
}

func emit(value object) {
	line, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(line))
}

func carryOut(c *client.Client, next step) (object, error) {
	ctx, cancel := context.WithCancel(context.Background())
	if next.TimeoutMs > 0 {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(next.TimeoutMs)*time.Millisecond)
	}
	defer cancel()
	switch {
	case next.Call != "":
		return call(ctx, c, next.Call, next.Request)
	case next.Blob != nil:
		return blob(ctx, c, next.Blob)
	}
	return stream(ctx, cancel, c, next)
}

// unary makes one of a method of the client, from JSON to JSON.
func unary[In any, Out proto.Message, P interface {
	*In
	proto.Message
}](method func(context.Context, P, ...grpc.CallOption) (Out, error)) func(context.Context, []byte) (proto.Message, error) {
	return func(ctx context.Context, text []byte) (proto.Message, error) {
		request := P(new(In))
		if err := protojson.Unmarshal(text, request); err != nil {
			panic(err)
		}
		return method(ctx, request)
	}
}

func call(ctx context.Context, c *client.Client, method string, request []byte) (object, error) {
	methods := map[string]func(context.Context, []byte) (proto.Message, error){
		"ListAgents": unary(c.ListAgents), "GetAgent": unary(c.GetAgent),
		"CreateSession": unary(c.CreateSession), "GetSession": unary(c.GetSession),
		"ListSessions": unary(c.ListSessions), "SendMessage": unary(c.SendMessage),
		"UpdateSession": unary(c.UpdateSession), "InterruptTurn": unary(c.InterruptTurn),
		"EndSession": unary(c.EndSession), "DeleteSession": unary(c.DeleteSession),
		"Respond": unary(c.Respond),
	}
	response, err := methods[method](ctx, request)
	if err != nil {
		return object{"error": described(err)}, nil
	}
	text, err := protojson.Marshal(response)
	return object{"response": json.RawMessage(text)}, err
}

func blob(ctx context.Context, c *client.Client, text []byte) (object, error) {
	request := &agentstreamv1.ReadBlobRequest{}
	if err := protojson.Unmarshal(text, request); err != nil {
		return nil, err
	}
	pieces, err := c.ReadBlob(ctx, request)
	if err != nil {
		return object{"error": described(err)}, nil
	}
	digest := sha256.New()
	for {
		piece, err := pieces.Recv()
		if errors.Is(err, io.EOF) {
			return object{"sha256": hex.EncodeToString(digest.Sum(nil))}, nil
		}
		if err != nil {
			return object{"error": described(err)}, nil
		}
		digest.Write(piece.GetData())
	}
}

func stream(ctx context.Context, cancel context.CancelFunc, c *client.Client, next step) (object, error) {
	request := &agentstreamv1.StreamEventsRequest{}
	if err := protojson.Unmarshal(next.Stream, request); err != nil {
		return nil, err
	}
	events, answers := []json.RawMessage{}, []object{}
	result := object{}
	opened := func() {
		if next.Announce {
			emit(object{"announce": "opened"})
		}
	}
	take := func(event *agentstreamv1.Event) (bool, error) {
		text, err := protojson.Marshal(event)
		if err != nil {
			return false, err
		}
		events = append(events, text)
		var told map[string]json.RawMessage
		if err := json.Unmarshal(text, &told); err != nil {
			return false, err
		}
		for kind, bodies := range next.Answers {
			if told[kind] == nil {
				continue
			}
			var asked struct{ RequestID string }
			if err := json.Unmarshal(told[kind], &asked); err != nil {
				return false, err
			}
			for _, body := range bodies {
				body["sessionId"], body["requestId"] = request.GetSessionId(), asked.RequestID
				text, err := json.Marshal(body)
				if err != nil {
					return false, err
				}
				answer, err := call(ctx, c, "Respond", text)
				if err != nil {
					return false, err
				}
				answers = append(answers, answer)
			}
		}
		if len(events) == next.CancelAfter {
			cancel()
		}
		return told[next.Until] != nil, nil
	}
	var failed error
	if next.Raw {
		failed = rawly(ctx, c, request, opened, take)
	} else {
		failed = resuming(ctx, c, request, opened, take)
	}
	if failed != nil {
		result["error"] = described(failed)
	}
	result["events"] = events
	if len(answers) > 0 {
		result["answers"] = answers
	}
	return result, nil
}

func rawly(
	ctx context.Context, c *client.Client, request *agentstreamv1.StreamEventsRequest,
	opened func(), take func(*agentstreamv1.Event) (bool, error),
) error {
	responses, err := c.StreamEvents(ctx, request)
	for err == nil {
		var response *agentstreamv1.StreamEventsResponse
		if response, err = responses.Recv(); err != nil {
			break
		}
		if response.GetOpened() != nil {
			opened()
		}
		for _, event := range response.GetBatch().GetEvents() {
			if done, err := take(event); done || err != nil {
				return err
			}
			if ctx.Err() != nil {
				break
			}
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func resuming(
	ctx context.Context, c *client.Client, request *agentstreamv1.StreamEventsRequest,
	opened func(), take func(*agentstreamv1.Event) (bool, error),
) error {
	events := c.Follow(ctx, request)
	defer events.Close()
	if _, err := events.Open(); err != nil {
		return err
	}
	opened()
	for event, err := range events.All() {
		if err != nil {
			return err
		}
		if done, err := take(event); done || err != nil {
			return err
		}
	}
	return nil
}

var names = map[codes.Code]string{
	codes.Canceled: "CANCELLED", codes.InvalidArgument: "INVALID_ARGUMENT",
	codes.DeadlineExceeded: "DEADLINE_EXCEEDED", codes.NotFound: "NOT_FOUND",
	codes.AlreadyExists: "ALREADY_EXISTS", codes.PermissionDenied: "PERMISSION_DENIED",
	codes.ResourceExhausted: "RESOURCE_EXHAUSTED", codes.FailedPrecondition: "FAILED_PRECONDITION",
	codes.OutOfRange: "OUT_OF_RANGE", codes.Unimplemented: "UNIMPLEMENTED", codes.Internal: "INTERNAL",
	codes.Unavailable: "UNAVAILABLE", codes.Unauthenticated: "UNAUTHENTICATED",
}

func described(err error) object {
	told := client.ErrorFrom(err)
	fields := []string{}
	for _, violation := range told.Violations {
		fields = append(fields, violation.Field)
	}
	metadata := told.Metadata
	if metadata == nil {
		metadata = map[string]string{}
	}
	return object{
		"code": names[told.Code], "reason": string(told.Reason), "metadata": metadata,
		"fields": fields, "retry": told.RetryDelay > 0,
	}
}
