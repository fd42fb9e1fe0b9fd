package client

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Domain is the domain of the daemon's reasons in google.rpc.ErrorInfo.
const Domain = "agentstream"

// Reason is the name of an ErrorReason of the contract without its prefix. It is an error, so that
// errors.Is tells failed calls apart:
//
//	if errors.Is(err, client.SessionDeleted) { ... }
type Reason string

// Reasons that programs branch on; any other of the contract can be written as Reason("NAME").
const (
	SessionNotFound        Reason = "SESSION_NOT_FOUND"
	SessionDeleted         Reason = "SESSION_DELETED"
	SessionEnded           Reason = "SESSION_ENDED"
	SessionReplaced        Reason = "SESSION_REPLACED"
	SessionExists          Reason = "SESSION_EXISTS"
	TurnInProgress         Reason = "TURN_IN_PROGRESS"
	TurnNotRunning         Reason = "TURN_NOT_RUNNING"
	RequestNotFound        Reason = "REQUEST_NOT_FOUND"
	RequestAlreadyResolved Reason = "REQUEST_ALREADY_RESOLVED"
	EventsCompacted        Reason = "EVENTS_COMPACTED"
	SequenceInFuture       Reason = "SEQUENCE_IN_FUTURE"
	ServerDraining         Reason = "SERVER_DRAINING"
	LimitExceeded          Reason = "LIMIT_EXCEEDED"
	// StreamBroken is no reason of the server: it sent a stream that is none, with an event
	// missing or without its beginning.
	StreamBroken Reason = "STREAM_BROKEN"
)

// Error makes a Reason the target of errors.Is.
func (r Reason) Error() string { return string(r) }

// FieldViolation is a field of the request that is at fault.
type FieldViolation struct {
	// Field is the path of the field.
	Field string
	// Description says what is wrong with it, for people.
	Description string
}

// Error is a call that failed, with what the server's google.rpc.Status says.
type Error struct {
	// Code is the status code of the call.
	Code codes.Code
	// Reason is empty when the server gave none: it was not reached, or something between
	// answered for it.
	Reason Reason
	// Message is a sentence for people.
	Message string
	// Metadata has the dynamic parts of the reason, see ErrorReason.
	Metadata map[string]string
	// Violations are the fields at fault.
	Violations []FieldViolation
	// RetryDelay is the time after which the server asks to try again; 0 when it does not say.
	RetryDelay time.Duration

	cause error
}

// Error is the message with code and reason.
func (e *Error) Error() string {
	return fmt.Sprintf("%s (%s)", e.Message, strings.TrimSpace(e.Code.String()+" "+string(e.Reason)))
}

// Unwrap is gRPC's own error.
func (e *Error) Unwrap() error { return e.cause }

// Is tells whether target is this error's Reason.
func (e *Error) Is(target error) bool {
	reason, ok := target.(Reason)
	return ok && reason != "" && reason == e.Reason
}

// GRPCStatus lets status.FromError and status.Code work on it.
func (e *Error) GRPCStatus() *status.Status {
	if e.cause != nil {
		return status.Convert(e.cause)
	}
	return status.New(e.Code, e.Message)
}

// ErrorFrom says what a gRPC error says; nil for nil.
func ErrorFrom(err error) *Error {
	if err == nil {
		return nil
	}
	var made *Error
	if errors.As(err, &made) {
		return made
	}
	told := status.Convert(err)
	made = &Error{Code: told.Code(), Message: told.Message(), cause: err}
	for _, detail := range told.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			if detail.Domain == Domain {
				made.Reason, made.Metadata = Reason(detail.Reason), detail.Metadata
			}
		case *errdetails.BadRequest:
			for _, v := range detail.FieldViolations {
				made.Violations = append(made.Violations, FieldViolation{v.Field, v.Description})
			}
		case *errdetails.RetryInfo:
			made.RetryDelay = detail.RetryDelay.AsDuration()
		}
	}
	return made
}
