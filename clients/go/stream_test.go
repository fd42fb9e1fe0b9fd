package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	agentstreamv1 "agentstream.dev/go/agentstream/v1"
)

// call is what the server does with one StreamEvents.
type call struct {
	responses []*agentstreamv1.StreamEventsResponse
	err       error
	hang      bool
}

// server plays one call after the other and keeps what it was asked.
type server struct {
	agentstreamv1.UnimplementedAgentServiceServer
	calls    []call
	requests []*agentstreamv1.StreamEventsRequest
	tokens   []string
}

func (s *server) StreamEvents(
	request *agentstreamv1.StreamEventsRequest,
	stream grpc.ServerStreamingServer[agentstreamv1.StreamEventsResponse],
) error {
	s.requests = append(s.requests, request)
	if md, ok := metadata.FromIncomingContext(stream.Context()); ok {
		s.tokens = append(s.tokens, md.Get("authorization")...)
	}
	if len(s.requests) > len(s.calls) {
		return status.Error(codes.FailedPrecondition, "more calls than expected")
	}
	played := s.calls[len(s.requests)-1]
	for _, response := range played.responses {
		if err := stream.Send(response); err != nil {
			return err
		}
	}
	if played.hang {
		<-stream.Context().Done()
	}
	return played.err
}

func (s *server) GetSession(
	context.Context, *agentstreamv1.GetSessionRequest,
) (*agentstreamv1.GetSessionResponse, error) {
	return nil, failure(codes.NotFound, "SESSION_NOT_FOUND", &errdetails.BadRequest{
		FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: "session_id", Description: "unknown"}},
	})
}

type fixture struct {
	client *Client
	server *server
	waits  []time.Duration
}

func play(t *testing.T, calls ...call) *fixture {
	t.Helper()
	listener := bufconn.Listen(1 << 20)
	served := &server{calls: calls}
	grpcServer := grpc.NewServer()
	agentstreamv1.RegisterAgentServiceServer(grpcServer, served)
	go grpcServer.Serve(listener)
	t.Cleanup(grpcServer.Stop)
	dial := grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return listener.Dial() })
	made, err := Connect("passthrough:///bufconn", WithDialOptions(dial), WithToken("secret"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { made.Close() })
	return &fixture{client: made, server: served}
}

// follow follows with waits that are kept, not waited.
func (f *fixture) follow(
	t *testing.T, request *agentstreamv1.StreamEventsRequest, options ...FollowOption,
) *EventStream {
	t.Helper()
	request.SessionId, request.Follow = "s", true
	waited := WithSleep(func(ctx context.Context, delay time.Duration) error {
		f.waits = append(f.waits, delay)
		return ctx.Err()
	})
	stream := f.client.Follow(t.Context(), request, append([]FollowOption{waited}, options...)...)
	stream.cursor.uniform = func() float64 { return 0.5 }
	t.Cleanup(stream.Close)
	return stream
}

func opened(uid string) *agentstreamv1.StreamEventsResponse {
	return &agentstreamv1.StreamEventsResponse{Response: &agentstreamv1.StreamEventsResponse_Opened{
		Opened: &agentstreamv1.StreamOpened{Session: &agentstreamv1.Session{SessionId: "s", Uid: uid}},
	}}
}

func batch(sequences ...int64) *agentstreamv1.StreamEventsResponse {
	made := &agentstreamv1.EventBatch{LastSequence: sequences[len(sequences)-1]}
	for _, sequence := range sequences {
		made.Events = append(made.Events, &agentstreamv1.Event{Sequence: sequence})
	}
	return &agentstreamv1.StreamEventsResponse{Response: &agentstreamv1.StreamEventsResponse_Batch{Batch: made}}
}

func progress(sequence int64) *agentstreamv1.StreamEventsResponse {
	return &agentstreamv1.StreamEventsResponse{Response: &agentstreamv1.StreamEventsResponse_Progress{
		Progress: &agentstreamv1.StreamProgress{LastSequence: sequence},
	}}
}

func end(sequence int64) *agentstreamv1.StreamEventsResponse {
	made := batch(sequence)
	made.GetBatch().GetEvents()[0].Payload = &agentstreamv1.Event_SessionEnded{SessionEnded: &agentstreamv1.SessionEnded{}}
	return made
}

func failure(code codes.Code, reason string, more ...protoadapt.MessageV1) error {
	info := &errdetails.ErrorInfo{Reason: reason, Domain: Domain, Metadata: map[string]string{"k": "v"}}
	made, err := status.New(code, "told").WithDetails(append([]protoadapt.MessageV1{info}, more...)...)
	if err != nil {
		panic(err)
	}
	return made.Err()
}

func drain(stream *EventStream) (sequences []int64, err error) {
	for event, failed := range stream.All() {
		if failed != nil {
			return sequences, failed
		}
		sequences = append(sequences, event.GetSequence())
	}
	return sequences, nil
}

func want[T any](t *testing.T, what string, got, expected T) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(expected) {
		t.Fatalf("%s: got %v, want %v", what, got, expected)
	}
}

func responses(made ...*agentstreamv1.StreamEventsResponse) []*agentstreamv1.StreamEventsResponse {
	return made
}

func TestResumesAfterTheLastEvent(t *testing.T) {
	for _, code := range []codes.Code{codes.Unavailable, codes.Internal, codes.Canceled} {
		f := play(t,
			call{responses: responses(opened("u"), batch(1, 2)), err: status.Error(code, "cut")},
			call{responses: responses(opened("u"), batch(3), end(4))},
		)
		got, err := drain(f.follow(t, &agentstreamv1.StreamEventsRequest{}))
		want(t, "error", err, error(nil))
		want(t, "events", got, []int64{1, 2, 3, 4})
		want(t, "cursor", f.server.requests[1].GetAfterSequence(), int64(2))
		want(t, "uid", f.server.requests[1].GetExpectedSessionUid(), "u")
		want(t, "waits", f.waits, []time.Duration{100 * time.Millisecond})
		want(t, "tokens", f.server.tokens, []string{"Bearer secret", "Bearer secret"})
	}
}

func TestEventsThatComeAgainAreLeftOut(t *testing.T) {
	f := play(t, call{responses: responses(opened("u"), batch(1, 2), batch(2, 3), end(4))})
	got, err := drain(f.follow(t, &agentstreamv1.StreamEventsRequest{}))
	want(t, "error", err, error(nil))
	want(t, "events", got, []int64{1, 2, 3, 4})
}

func TestAMissingEventBreaksTheStream(t *testing.T) {
	f := play(t, call{responses: responses(opened("u"), batch(1), batch(3))})
	got, err := drain(f.follow(t, &agentstreamv1.StreamEventsRequest{}))
	want(t, "events", got, []int64{1})
	want(t, "broken", errors.Is(err, StreamBroken), true)
}

func TestAStreamThatDoesNotBeginWithOpenedIsBroken(t *testing.T) {
	f := play(t, call{responses: responses(batch(1))})
	_, err := drain(f.follow(t, &agentstreamv1.StreamEventsRequest{}))
	want(t, "broken", errors.Is(err, StreamBroken), true)
}

func TestOKBeforeTheEndOfTheSessionIsACut(t *testing.T) {
	f := play(t,
		call{responses: responses(opened("u"), batch(1))},
		call{responses: responses(opened("u"), end(2))},
	)
	var told []error
	stream := f.follow(t, &agentstreamv1.StreamEventsRequest{}, OnReconnect(func(err error, _ time.Duration) {
		told = append(told, err)
	}))
	got, err := drain(stream)
	want(t, "error", err, error(nil))
	want(t, "events", got, []int64{1, 2})
	want(t, "told", status.Code(told[0]), codes.Unavailable)
}

func TestTheServersRetryInfoIsWaitedFor(t *testing.T) {
	retry := &errdetails.RetryInfo{RetryDelay: durationpb.New(7 * time.Second)}
	f := play(t,
		call{err: failure(codes.Unavailable, "SERVER_DRAINING", retry)},
		call{responses: responses(opened("u"), end(1))},
	)
	_, err := drain(f.follow(t, &agentstreamv1.StreamEventsRequest{}))
	want(t, "error", err, error(nil))
	want(t, "waits", f.waits, []time.Duration{7 * time.Second})
}

func TestALimitIsWaitedForByAStreamThatWasOpenAndRefusesOneThatWasNot(t *testing.T) {
	full := failure(codes.ResourceExhausted, "LIMIT_EXCEEDED")
	f := play(t,
		call{responses: responses(opened("u"), batch(1)), err: status.Error(codes.Unavailable, "cut")},
		call{err: full},
		call{responses: responses(opened("u"), end(2))},
	)
	got, err := drain(f.follow(t, &agentstreamv1.StreamEventsRequest{}))
	want(t, "error", err, error(nil))
	want(t, "events", got, []int64{1, 2})
	f = play(t, call{err: full})
	_, err = drain(f.follow(t, &agentstreamv1.StreamEventsRequest{}))
	want(t, "refused", errors.Is(err, LimitExceeded), true)
}

func TestWaitsGrowUntilThereIsNews(t *testing.T) {
	cut := status.Error(codes.Unavailable, "cut")
	f := play(t,
		call{err: cut},
		// Only opened: no news.
		call{responses: responses(opened("u")), err: cut},
		call{responses: responses(opened("u"), progress(0)), err: cut},
		call{responses: responses(opened("u"), end(1))},
	)
	_, err := drain(f.follow(t, &agentstreamv1.StreamEventsRequest{}))
	want(t, "error", err, error(nil))
	want(t, "waits", f.waits, []time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 100 * time.Millisecond})
}

func TestGivesUpWithTheLastFailureAfterSoManyAttempts(t *testing.T) {
	cut := status.Error(codes.Unavailable, "cut")
	f := play(t, call{err: cut}, call{err: cut}, call{err: cut})
	backoff := DefaultBackoff
	backoff.Attempts = 2
	stream := f.follow(t, &agentstreamv1.StreamEventsRequest{}, WithBackoff(backoff))
	_, err := drain(stream)
	want(t, "code", status.Code(err), codes.Unavailable)
	want(t, "calls", len(f.server.requests), 3)
	_, again := stream.Next()
	want(t, "error again", again, err)
}

func TestWhatCantBeResumedIsATypedError(t *testing.T) {
	for code, reason := range map[codes.Code]Reason{
		codes.NotFound: SessionDeleted, codes.FailedPrecondition: SessionReplaced, codes.OutOfRange: EventsCompacted,
	} {
		f := play(t, call{responses: responses(opened("u"), batch(1)), err: failure(code, string(reason))})
		got, err := drain(f.follow(t, &agentstreamv1.StreamEventsRequest{}))
		want(t, "events", got, []int64{1})
		want(t, "reason", errors.Is(err, reason), true)
		want(t, "calls", len(f.server.requests), 1)
	}
}

func TestProgressMovesTheCursorOverWhatAFilterLeftOut(t *testing.T) {
	kinds := []agentstreamv1.EventKind{agentstreamv1.EventKind_EVENT_KIND_TURN_ENDED}
	f := play(t,
		call{responses: responses(opened("u"), batch(5), progress(9)), err: status.Error(codes.Unavailable, "cut")},
		call{responses: responses(opened("u"), batch(12))},
	)
	got, err := drain(f.follow(t, &agentstreamv1.StreamEventsRequest{Kinds: kinds}))
	want(t, "error", err, error(nil))
	want(t, "events", got, []int64{5, 12})
	want(t, "cursor", f.server.requests[1].GetAfterSequence(), int64(9))
}

func TestCloseEndsAReaderThatWaits(t *testing.T) {
	f := play(t, call{responses: responses(opened("u"), batch(1)), hang: true})
	stream := f.follow(t, &agentstreamv1.StreamEventsRequest{})
	session, err := stream.Open()
	want(t, "error", err, error(nil))
	want(t, "uid", session.GetUid(), "u")
	if _, err := stream.Next(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() {
		_, err := stream.Next()
		ended <- err
	}()
	stream.Close()
	want(t, "ended", errors.Is(<-ended, context.Canceled), true)
}

func TestTheEndIsToldAgain(t *testing.T) {
	f := play(t, call{responses: responses(opened("u"), end(1))})
	stream := f.follow(t, &agentstreamv1.StreamEventsRequest{})
	if _, err := drain(stream); err != nil {
		t.Fatal(err)
	}
	_, err := stream.Next()
	want(t, "error", err, io.EOF)
	want(t, "last", stream.LastSequence(), int64(1))
}

func TestUnaryCallsFailWithTypedErrors(t *testing.T) {
	f := play(t)
	_, err := f.client.GetSession(t.Context(), &agentstreamv1.GetSessionRequest{SessionId: "x"})
	var failed *Error
	if !errors.As(err, &failed) || !errors.Is(err, SessionNotFound) {
		t.Fatalf("got %v", err)
	}
	want(t, "code", status.Code(err), codes.NotFound)
	want(t, "metadata", failed.Metadata["k"], "v")
	want(t, "violations", slices.Equal(failed.Violations, []FieldViolation{{"session_id", "unknown"}}), true)
}

func TestJitterSpreadsTheWaitOnBothSides(t *testing.T) {
	want(t, "least", DefaultBackoff.Delay(1, 0, 0), 80*time.Millisecond)
	want(t, "most", DefaultBackoff.Delay(20, 0, 1), 6*time.Second)
}
