// Load reads event streams of a daemon as fast as they come, and holds each to its sequence.
//
// With -sse it reads server-sent events, of peers, and counts or, with -stamps, times them.
//
// It decodes no events: of each it reads the sequence and, with -stamps, the time that the agent
// wrote at the start of a delta's text. It prints "ready" once all streams are open and one line of
// JSON when all have ended; it exits with 1 where an event is missing, came twice or out of order,
// for then its figures mean nothing.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"sort"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"
)

const (
	method        = "/agentstream.v1.AgentService/StreamEvents"
	maxBytes      = 64 << 20
	window        = 8 << 20
	fieldBatch    = 2  // StreamEventsResponse.batch
	fieldEvents   = 1  // EventBatch.events
	fieldSequence = 2  // Event.sequence
	fieldTurnEnd  = 24 // Event.turn_ended
	fieldDelta    = 26 // Event.item_delta
	fieldText     = 4  // ItemDelta.text
)

type options struct {
	address     string
	streams     int
	connections int
	follow      bool
	stamps      bool
	turn        bool
	events      string
	count       string
	each        bool
	after       int64
}

// result is what one stream received.
type result struct {
	sequence  int64
	events    int64
	bytes     int64
	firstNs   int64
	lastNs    int64
	delaysNs  []int64
	stampsNs  []int64
	err       error
	turnEnded bool
	messages  int64
	sessionID string
}

// figures is the line of JSON.
type figures struct {
	Streams  int     `json:"streams"`
	Events   int64   `json:"events"`
	Bytes    int64   `json:"bytes"`
	Messages int64   `json:"messages"`
	BegunNs  int64   `json:"begun_ns"`
	FirstNs  int64   `json:"first_ns"`
	EndedNs  int64   `json:"ended_ns"`
	Delays   int     `json:"delays"`
	P50Ms    float64 `json:"p50_ms"`
	P99Ms    float64 `json:"p99_ms"`
	P999Ms   float64 `json:"p999_ms"`
	MaxMs    float64 `json:"max_ms"`
	// With -each: of each delta the time it was written at and its delay.
	Each [][2]int64 `json:"each,omitempty"`
}

func main() {
	var o options
	flag.StringVar(&o.address, "address", "", "the daemon's address")
	flag.IntVar(&o.streams, "streams", 1, "streams of each session")
	flag.IntVar(&o.connections, "connections", 1, "connections that the streams share")
	flag.BoolVar(&o.follow, "follow", false, "follow the session to its end")
	flag.BoolVar(&o.stamps, "stamps", false, "deltas begin with the monotonic time they were written at")
	flag.Int64Var(&o.after, "after", 0, "begin after this sequence")
	flag.StringVar(&o.events, "sse", "", "read server-sent events at these URLs, each until one holds this")
	flag.StringVar(&o.count, "count", `"session/update"`, "with -sse, what is in the events that are counted")
	flag.BoolVar(&o.each, "each", false, "with -stamps, print the delay of each delta")
	flag.BoolVar(&o.turn, "turn", false, "end a stream with the end of a turn")
	flag.Parse()
	if err := run(o, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
}

// run reads streams of the sessions; the sessions are named by arguments, or by lines of "-".
func run(o options, sessions []string) error {
	if len(sessions) == 1 && sessions[0] == "-" {
		lines := bufio.NewScanner(os.Stdin)
		sessions = nil
		for lines.Scan() {
			sessions = append(sessions, lines.Text())
		}
	}
	if len(sessions) == 0 {
		return errors.New("name a session")
	}
	connections, err := dial(o)
	if err != nil {
		return err
	}
	var ready, done sync.WaitGroup
	results := make([]result, len(sessions)*o.streams)
	begun := now()
	for i := range results {
		ready.Add(1)
		done.Add(1)
		go func() {
			defer done.Done()
			r := &results[i]
			r.sessionID, r.sequence = sessions[i%len(sessions)], o.after
			var once sync.Once
			opened := func() { once.Do(ready.Done) }
			if o.events != "" {
				r.err = r.readEvents(r.sessionID, o, opened)
			} else {
				r.err = r.read(connections[i%len(connections)], o, opened)
			}
			opened()
		}()
	}
	ready.Wait()
	fmt.Println("ready")
	done.Wait()
	made, err := sum(results)
	if err != nil {
		return err
	}
	made.BegunNs = begun
	if o.each {
		for i := range results {
			for j, written := range results[i].stampsNs {
				made.Each = append(made.Each, [2]int64{written, results[i].delaysNs[j]})
			}
		}
	}
	return json.NewEncoder(os.Stdout).Encode(made)
}

func dial(o options) ([]*grpc.ClientConn, error) {
	address := o.address
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		address = "unix://" + path
	}
	connections := make([]*grpc.ClientConn, max(1, o.connections))
	for i := range connections {
		var err error
		connections[i], err = grpc.NewClient(
			address,
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxBytes), grpc.ForceCodec(verbatim{})),
			grpc.WithInitialWindowSize(window),
			grpc.WithInitialConnWindowSize(window),
			grpc.WithReadBufferSize(1<<20),
		)
		if err != nil {
			return nil, err
		}
	}
	return connections, nil
}

func (r *result) read(connection *grpc.ClientConn, o options, opened func()) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stream, err := connection.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method)
	if err != nil {
		return err
	}
	request := protowire.AppendTag(nil, 1, protowire.BytesType)
	request = protowire.AppendString(request, r.sessionID)
	if o.after > 0 {
		request = protowire.AppendTag(request, 2, protowire.VarintType)
		request = protowire.AppendVarint(request, uint64(o.after))
	}
	if o.follow {
		request = protowire.AppendTag(request, 3, protowire.VarintType)
		request = protowire.AppendVarint(request, 1)
	}
	if err := stream.SendMsg(&request); err != nil {
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	var message []byte
	for {
		if err := stream.RecvMsg(&message); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return fmt.Errorf("session %s: %w", r.sessionID, err)
		}
		r.lastNs = now()
		if r.firstNs == 0 {
			r.firstNs = r.lastNs
		}
		r.messages++
		r.bytes += int64(len(message))
		opened()
		if err := r.take(message, o); err != nil {
			return fmt.Errorf("session %s: %w", r.sessionID, err)
		}
		if o.turn && r.turnEnded {
			return nil
		}
	}
}

// take reads one StreamEventsResponse.
func (r *result) take(message []byte, o options) error {
	return fields(message, func(number protowire.Number, batch []byte, _ uint64) error {
		if number != fieldBatch {
			return nil
		}
		return fields(batch, func(number protowire.Number, event []byte, _ uint64) error {
			if number != fieldEvents {
				return nil
			}
			return r.event(event, o)
		})
	})
}

func (r *result) event(event []byte, o options) error {
	return fields(event, func(number protowire.Number, value []byte, whole uint64) error {
		switch {
		case number == fieldSequence:
			if int64(whole) != r.sequence+1 {
				return fmt.Errorf("event %d came after %d", whole, r.sequence)
			}
			r.sequence++
			r.events++
			if !o.stamps && !o.turn {
				return errEnough
			}
		case number == fieldTurnEnd:
			r.turnEnded = true
		case number == fieldDelta && o.stamps:
			return r.delta(value)
		}
		return nil
	})
}

func (r *result) delta(delta []byte) error {
	return fields(delta, func(number protowire.Number, text []byte, _ uint64) error {
		if number != fieldText {
			return nil
		}
		r.stamp(text)
		return nil
	})
}

// stamp notes the delay of a delta whose text begins with the time it was written at.
func (r *result) stamp(text []byte) {
	var written int64
	for _, c := range text {
		if c < '0' || c > '9' {
			break
		}
		written = written*10 + int64(c-'0')
	}
	if written > 0 {
		r.stampsNs = append(r.stampsNs, written)
		r.delaysNs = append(r.delaysNs, r.lastNs-written)
	}
}

var errEnough = errors.New("enough")

// fields calls visit for each field of a message until it says errEnough.
func fields(message []byte, visit func(protowire.Number, []byte, uint64) error) error {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return protowire.ParseError(n)
		}
		message = message[n:]
		var value []byte
		var whole uint64
		switch kind {
		case protowire.BytesType:
			value, n = protowire.ConsumeBytes(message)
		case protowire.VarintType:
			whole, n = protowire.ConsumeVarint(message)
		default:
			n = protowire.ConsumeFieldValue(number, kind, message)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		message = message[n:]
		if err := visit(number, value, whole); err != nil {
			if errors.Is(err, errEnough) {
				return nil
			}
			return err
		}
	}
	return nil
}

func sum(results []result) (figures, error) {
	made := figures{Streams: len(results)}
	events := map[string]int64{}
	var delays []int64
	for i := range results {
		r := &results[i]
		if r.err != nil {
			return made, r.err
		}
		if seen, ok := events[r.sessionID]; ok && seen != r.events && r.sequence > 0 {
			return made, fmt.Errorf("session %s: one stream had %d events, another %d", r.sessionID, seen, r.events)
		}
		events[r.sessionID] = r.events
		made.Events += r.events
		made.Bytes += r.bytes
		made.Messages += r.messages
		made.EndedNs = max(made.EndedNs, r.lastNs)
		if made.FirstNs == 0 || r.firstNs < made.FirstNs {
			made.FirstNs = r.firstNs
		}
		delays = append(delays, r.delaysNs...)
	}
	sort.Slice(delays, func(i, j int) bool { return delays[i] < delays[j] })
	if made.Delays = len(delays); made.Delays > 0 {
		at := func(permille int) float64 { return float64(delays[len(delays)*permille/1000]) / 1e6 }
		made.P50Ms, made.P99Ms, made.P999Ms = at(500), at(990), at(999)
		made.MaxMs = float64(delays[len(delays)-1]) / 1e6
	}
	return made, nil
}

func now() int64 {
	var at unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &at); err != nil {
		panic(err)
	}
	return at.Nano()
}

// verbatim hands messages on as the bytes they are.
type verbatim struct{}

func (verbatim) Name() string { return "proto" }

func (verbatim) Marshal(message any) ([]byte, error) { return *message.(*[]byte), nil }

func (verbatim) Unmarshal(data []byte, message any) error {
	*message.(*[]byte) = data
	return nil
}
