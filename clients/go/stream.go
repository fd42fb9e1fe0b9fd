package client

import (
	"context"
	"errors"
	"io"
	"iter"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"

	agentstreamv1 "agentstream.dev/go/agentstream/v1"
)

// FollowOption changes how a stream is followed.
type FollowOption func(*EventStream)

// WithBackoff says when to try again after a cut, and when to give up.
func WithBackoff(backoff Backoff) FollowOption {
	return func(s *EventStream) { s.cursor.backoff = backoff }
}

// OnReconnect is told of each cut, with the error and the wait until the next attempt.
func OnReconnect(told func(err error, delay time.Duration)) FollowOption {
	return func(s *EventStream) { s.onReconnect = told }
}

// WithSleep replaces how waits are waited, for tests.
func WithSleep(sleep func(ctx context.Context, delay time.Duration) error) FollowOption {
	return func(s *EventStream) { s.sleep = sleep }
}

// EventStream is a session's events, each once, in order. It is for one reader; Close may be
// called from any goroutine.
type EventStream struct {
	client      agentstreamv1.AgentServiceClient
	cursor      *cursor
	ctx         context.Context
	cancel      context.CancelFunc
	sleep       func(context.Context, time.Duration) error
	onReconnect func(error, time.Duration)
	call        grpc.ServerStreamingClient[agentstreamv1.StreamEventsResponse]
	hangUp      context.CancelFunc
	ready       []*agentstreamv1.Event
	err         error
}

// Follow streams what request asks for, across cut connections and server restarts. The stream
// ends when ctx does, or by Close.
func Follow(
	ctx context.Context, client agentstreamv1.AgentServiceClient,
	request *agentstreamv1.StreamEventsRequest, options ...FollowOption,
) *EventStream {
	ctx, cancel := context.WithCancel(ctx)
	stream := &EventStream{
		client: client, cursor: newCursor(request, DefaultBackoff, rand.Float64),
		ctx: ctx, cancel: cancel, sleep: sleep,
	}
	for _, option := range options {
		option(stream)
	}
	return stream
}

// Follow is the function Follow, for this client.
func (c *Client) Follow(
	ctx context.Context, request *agentstreamv1.StreamEventsRequest, options ...FollowOption,
) *EventStream {
	return Follow(ctx, c, request, options...)
}

// Open waits until the stream is open and returns the session as it then was. What the session
// does after that is in the stream, so it is the moment to send a message.
func (s *EventStream) Open() (*agentstreamv1.Session, error) {
	for s.cursor.session == nil {
		if err := s.advance(); err != nil {
			return nil, err
		}
	}
	return s.cursor.session, nil
}

// Next returns the next event. At the end of the stream it returns io.EOF, after Close or the end
// of the context the context's error, and *Error for what can't be resumed: among them
// SessionDeleted, SessionReplaced, EventsCompacted, and the last failure when it gave up.
func (s *EventStream) Next() (*agentstreamv1.Event, error) {
	for len(s.ready) == 0 {
		if err := s.advance(); err != nil {
			return nil, err
		}
	}
	event := s.ready[0]
	s.ready = s.ready[1:]
	return event, nil
}

// All ranges over the events. An error is the last pair; the end of the stream is none. Breaking
// out of the loop leaves the stream open, and another range goes on where it was.
func (s *EventStream) All() iter.Seq2[*agentstreamv1.Event, error] {
	return func(yield func(*agentstreamv1.Event, error) bool) {
		for {
			event, err := s.Next()
			if errors.Is(err, io.EOF) {
				return
			}
			if !yield(event, err) || err != nil {
				return
			}
		}
	}
}

// LastSequence is the sequence up to which events were returned, or passed by the filter.
func (s *EventStream) LastSequence() int64 {
	if len(s.ready) > 0 {
		return s.ready[0].GetSequence() - 1
	}
	return s.cursor.sequence
}

// Close ends the stream.
func (s *EventStream) Close() { s.cancel() }

// advance takes one response, or one step of coming back after a cut.
func (s *EventStream) advance() error {
	if s.err == nil {
		s.err = s.step()
		if s.err != nil {
			s.cancel()
		}
	}
	return s.err
}

func (s *EventStream) step() error {
	if err := s.ctx.Err(); err != nil {
		return err
	}
	response, err := s.receive()
	if err == nil {
		fresh, err := s.cursor.take(response)
		s.ready = append(s.ready, fresh...)
		return err
	}
	s.drop()
	if ended := s.ctx.Err(); ended != nil {
		return ended
	}
	failure := cut()
	if !errors.Is(err, io.EOF) {
		failure = ErrorFrom(err)
	} else if s.cursor.finished() {
		return io.EOF
	}
	delay, err := s.cursor.failed(failure)
	if err != nil {
		return err
	}
	if s.onReconnect != nil {
		s.onReconnect(failure, delay)
	}
	return s.sleep(s.ctx, delay)
}

func (s *EventStream) receive() (*agentstreamv1.StreamEventsResponse, error) {
	if s.call == nil {
		ctx, hangUp := context.WithCancel(s.ctx)
		call, err := s.client.StreamEvents(ctx, s.cursor.nextRequest())
		if err != nil {
			hangUp()
			return nil, err
		}
		s.call, s.hangUp = call, hangUp
	}
	return s.call.Recv()
}

func (s *EventStream) drop() {
	if s.hangUp != nil {
		s.hangUp()
	}
	s.call, s.hangUp = nil, nil
}

func sleep(ctx context.Context, delay time.Duration) error {
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
