package client

import (
	"context"
	"crypto/rand"

	agentstreamv1 "agentstream.dev/go/agentstream/v1"
)

// Session is a session of the daemon, for short calls.
type Session struct {
	// ID is the session's id.
	ID     string
	client *Client
}

// Session names a session that exists, or that a call to Create of it will make.
func (c *Client) Session(id string) *Session { return &Session{ID: id, client: c} }

// Create creates a session. It makes up an id where id is empty, so that the call can be repeated
// by gRPC without creating another session.
func (c *Client) Create(
	ctx context.Context, id string, config *agentstreamv1.SessionConfig,
) (*Session, *agentstreamv1.Session, error) {
	if id == "" {
		id = rand.Text()
	}
	made, err := c.CreateSession(ctx, &agentstreamv1.CreateSessionRequest{SessionId: id, Config: config})
	if err != nil {
		return nil, nil, err
	}
	return c.Session(id), made.GetSession(), nil
}

// Follow streams the session's events after a sequence, 0 for all, until the session ends.
func (s *Session) Follow(ctx context.Context, after int64, options ...FollowOption) *EventStream {
	request := &agentstreamv1.StreamEventsRequest{SessionId: s.ID, AfterSequence: after, Follow: true}
	return s.client.Follow(ctx, request, options...)
}

// Send sends text, and returns what became of it. The message has an id of its own.
func (s *Session) Send(ctx context.Context, text string) (*agentstreamv1.SendMessageResponse, error) {
	part := &agentstreamv1.InputPart{Part: &agentstreamv1.InputPart_Text{Text: text}}
	return s.client.SendMessage(ctx, &agentstreamv1.SendMessageRequest{
		SessionId: s.ID, ClientMessageId: rand.Text(), Parts: []*agentstreamv1.InputPart{part},
	})
}

// Permit accepts or rejects a permission request.
func (s *Session) Permit(
	ctx context.Context, requestID string, answer *agentstreamv1.PermissionAnswer,
) (*agentstreamv1.PermissionResolved, error) {
	response, err := s.client.Respond(ctx, &agentstreamv1.RespondRequest{
		SessionId: s.ID, RequestId: requestID,
		Answer: &agentstreamv1.RespondRequest_Permission{Permission: answer},
	})
	return response.GetPermission(), err
}

// Answer answers a question request.
func (s *Session) Answer(
	ctx context.Context, requestID string, answer *agentstreamv1.QuestionAnswer,
) (*agentstreamv1.QuestionResolved, error) {
	response, err := s.client.Respond(ctx, &agentstreamv1.RespondRequest{
		SessionId: s.ID, RequestId: requestID,
		Answer: &agentstreamv1.RespondRequest_Question{Question: answer},
	})
	return response.GetQuestion(), err
}

// Interrupt stops the running turn and returns when it has ended.
func (s *Session) Interrupt(ctx context.Context) (*agentstreamv1.InterruptTurnResponse, error) {
	return s.client.InterruptTurn(ctx, &agentstreamv1.InterruptTurnRequest{SessionId: s.ID})
}

// End ends the session and stops its agent; its events can still be read.
func (s *Session) End(ctx context.Context) error {
	_, err := s.client.EndSession(ctx, &agentstreamv1.EndSessionRequest{SessionId: s.ID})
	return err
}
