package client

import (
	"fmt"
	"math"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	agentstreamv1 "agentstream.dev/go/agentstream/v1"
)

// Backoff says how long to wait before a stream is opened again, and when to give up.
type Backoff struct {
	// Initial is the wait before the first attempt.
	Initial time.Duration
	// Multiplier: each further attempt waits this times longer.
	Multiplier float64
	// Maximum is the longest wait before jitter, unless the server asks for a longer one.
	Maximum time.Duration
	// Jitter spreads the wait by up to this fraction, so that clients do not come back at once.
	Jitter float64
	// Attempts in a row that bring nothing new before the error is returned.
	Attempts int
}

// DefaultBackoff is used where WithBackoff is not.
var DefaultBackoff = Backoff{
	Initial: 100 * time.Millisecond, Multiplier: 2, Maximum: 5 * time.Second, Jitter: 0.2, Attempts: 12,
}

// Delay is the wait before attempt (from 1); uniform is random in [0, 1), asked what the server
// asks for.
func (b Backoff) Delay(attempt int, asked time.Duration, uniform float64) time.Duration {
	grown := math.Min(float64(b.Maximum), float64(b.Initial)*math.Pow(b.Multiplier, float64(attempt-1)))
	return max(time.Duration(grown*(1+b.Jitter*(2*uniform-1))), asked)
}

// cursor is where a reader of a session's stream is, across any number of calls. It holds the
// decisions about resuming, and does no I/O.
type cursor struct {
	request  *agentstreamv1.StreamEventsRequest
	backoff  Backoff
	uniform  func() float64
	sequence int64
	session  *agentstreamv1.Session
	uid      string
	failures int
	ended    bool
}

func newCursor(request *agentstreamv1.StreamEventsRequest, backoff Backoff, uniform func() float64) *cursor {
	return &cursor{
		request: request, backoff: backoff, uniform: uniform,
		sequence: request.GetAfterSequence(), uid: request.GetExpectedSessionUid(),
	}
}

// nextRequest goes on after what was seen, in the same session.
func (c *cursor) nextRequest() *agentstreamv1.StreamEventsRequest {
	request := proto.CloneOf(c.request)
	request.AfterSequence = c.sequence
	request.ExpectedSessionUid = c.uid
	return request
}

// take returns the events that were not seen yet, or StreamBroken for a gap.
func (c *cursor) take(response *agentstreamv1.StreamEventsResponse) ([]*agentstreamv1.Event, error) {
	if opened := response.GetOpened(); opened != nil {
		c.session, c.uid = opened.GetSession(), opened.GetSession().GetUid()
		return nil, nil
	}
	if c.session == nil {
		return nil, broken("the stream did not begin with opened")
	}
	switch kind := response.GetResponse().(type) {
	case *agentstreamv1.StreamEventsResponse_Batch:
		fresh, err := c.fresh(kind.Batch.GetEvents())
		if err != nil {
			return nil, err
		}
		c.reach(kind.Batch.GetLastSequence())
		return fresh, nil
	case *agentstreamv1.StreamEventsResponse_Progress:
		c.reach(kind.Progress.GetLastSequence())
	}
	return nil, nil
}

// finished tells whether a call that ended with OK was the end of the stream; else it was a cut.
func (c *cursor) finished() bool {
	if c.session == nil {
		return false
	}
	ended := c.ended || c.session.GetState() == agentstreamv1.SessionState_SESSION_STATE_ENDED
	return ended || !c.request.GetFollow() || len(c.request.GetKinds()) > 0
}

// failed returns the wait before the next call, or the error when there should be none.
func (c *cursor) failed(err *Error) (time.Duration, error) {
	c.failures++
	// INTERNAL is what Envoy makes of a backend that died in mid-stream.
	// Without a reason of the daemon, CANCELED is a connection that was reset, not an answer.
	reset := err.Code == codes.Canceled && err.Reason == ""
	// A server that has not noticed yet that the call before was cut still counts its stream.
	counted := err.Reason == LimitExceeded && c.session != nil
	resumable := err.Code == codes.Unavailable || err.Code == codes.Internal || reset || counted
	if !resumable || c.failures > c.backoff.Attempts {
		return 0, err
	}
	return c.backoff.Delay(c.failures, err.RetryDelay, c.uniform()), nil
}

func (c *cursor) fresh(events []*agentstreamv1.Event) ([]*agentstreamv1.Event, error) {
	var fresh []*agentstreamv1.Event
	for _, event := range events {
		if event.GetSequence() <= c.sequence {
			continue
		}
		if event.GetSequence() != c.sequence+1 && len(c.request.GetKinds()) == 0 {
			return nil, broken(fmt.Sprintf("event %d is missing: %d came after %d",
				c.sequence+1, event.GetSequence(), c.sequence))
		}
		fresh = append(fresh, event)
		c.ended = c.ended || event.GetSessionEnded() != nil
		c.reach(event.GetSequence())
	}
	return fresh, nil
}

func (c *cursor) reach(sequence int64) {
	// Only news shows that the trouble is over: a server that opens the stream and then fails,
	// again and again, must not be asked for ever.
	c.failures = 0
	c.sequence = max(c.sequence, sequence)
}

func broken(message string) *Error {
	return &Error{Code: codes.DataLoss, Reason: StreamBroken, Message: message}
}

func cut() *Error {
	return &Error{Code: codes.Unavailable, Message: "the stream ended before the session did"}
}
