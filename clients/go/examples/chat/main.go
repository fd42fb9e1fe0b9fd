// Command chat talks with an agent on the terminal: it shows what the agent writes and does, and
// asks you what the agent asks.
//
//	go run ./examples/chat -agent mock
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"

	"agentstream.dev/go/client"

	agentstreamv1 "agentstream.dev/go/agentstream/v1"
)

func main() {
	address := flag.String("address", client.DefaultAddress, "address of the daemon")
	agent := flag.String("agent", "mock", "name of the agent")
	directory := flag.String("dir", ".", "working directory of the agent, as the daemon sees it")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *address, *agent, *directory); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "chat:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, address, agent, directory string) error {
	c, err := client.Connect(address, client.WithToken(os.Getenv("AGENTSTREAM_TOKEN")))
	if err != nil {
		return err
	}
	defer c.Close()
	config := &agentstreamv1.SessionConfig{Agent: agent, WorkingDirectory: directory}
	session, _, err := c.Create(ctx, "", config)
	if err != nil {
		return err
	}
	defer session.End(context.WithoutCancel(ctx))
	chat := &chat{session: session, keyboard: bufio.NewScanner(os.Stdin)}
	chat.events = session.Follow(ctx, 0)
	defer chat.events.Close()
	for {
		text, ok := chat.ask("> ")
		if !ok {
			return nil
		}
		if _, err := session.Send(ctx, text); err != nil {
			return err
		}
		if err := chat.turn(ctx); err != nil {
			return err
		}
	}
}

type chat struct {
	session  *client.Session
	events   *client.EventStream
	keyboard *bufio.Scanner
}

// ask reads a line; false at the end of the input.
func (c *chat) ask(prompt string) (string, bool) {
	fmt.Print(prompt)
	ok := c.keyboard.Scan()
	return strings.TrimSpace(c.keyboard.Text()), ok
}

// turn shows events until the turn has ended.
func (c *chat) turn(ctx context.Context) error {
	for event, err := range c.events.All() {
		if err != nil {
			return err
		}
		switch payload := event.GetPayload().(type) {
		case *agentstreamv1.Event_ItemDelta:
			if payload.ItemDelta.GetKind() == agentstreamv1.DeltaKind_DELTA_KIND_TEXT {
				fmt.Print(payload.ItemDelta.GetText())
			}
		case *agentstreamv1.Event_ItemCompleted:
			item := payload.ItemCompleted.GetItem()
			for _, part := range item.GetContent() {
				if call := part.GetToolCall(); call != nil {
					fmt.Printf("[%s %s]\n", call.GetName(), call.GetArgumentsJson())
				}
			}
			if item.GetKind() == agentstreamv1.ItemKind_ITEM_KIND_MESSAGE {
				fmt.Println()
			}
		case *agentstreamv1.Event_PermissionRequested:
			err = c.permit(ctx, payload.PermissionRequested)
		case *agentstreamv1.Event_QuestionRequested:
			err = c.answer(ctx, payload.QuestionRequested)
		case *agentstreamv1.Event_TurnEnded:
			if failure := payload.TurnEnded.GetError(); failure != nil {
				fmt.Println("! " + failure.GetMessage())
			}
			return nil
		}
		if err != nil && !errors.Is(err, client.RequestAlreadyResolved) {
			return err
		}
	}
	return io.EOF
}

func (c *chat) permit(ctx context.Context, request *agentstreamv1.PermissionRequest) error {
	what := strings.TrimSpace(request.GetToolName() + " " + request.GetCommand() + request.GetPlan())
	for _, file := range request.GetFiles() {
		what += "\n" + file.GetPath() + "\n" + file.GetDiff()
	}
	word, _ := c.ask(fmt.Sprintf("? allow %s [y/N/a(lways)] ", what))
	answer := &agentstreamv1.PermissionAnswer{Decision: agentstreamv1.PermissionDecision_PERMISSION_DECISION_REJECT}
	switch strings.ToLower(word) {
	case "y", "yes":
		answer.Decision = agentstreamv1.PermissionDecision_PERMISSION_DECISION_ACCEPT
	case "a", "always":
		answer.Decision = agentstreamv1.PermissionDecision_PERMISSION_DECISION_ACCEPT_FOR_SESSION
	}
	_, err := c.session.Permit(ctx, request.GetRequestId(), answer)
	return err
}

func (c *chat) answer(ctx context.Context, request *agentstreamv1.QuestionRequest) error {
	answered := &agentstreamv1.AnsweredQuestions{}
	for _, question := range request.GetQuestions() {
		fmt.Println("? " + question.GetText())
		labels := map[string]string{}
		for i, option := range question.GetOptions() {
			fmt.Printf("  %d %s %s\n", i+1, option.GetLabel(), option.GetDescription())
			labels[fmt.Sprint(i+1)] = option.GetLabel()
			labels[option.GetLabel()] = option.GetLabel()
		}
		words, _ := c.ask("= ")
		single := &agentstreamv1.SingleAnswer{QuestionId: question.GetQuestionId()}
		for _, word := range strings.Split(words, ",") {
			if label, ok := labels[strings.TrimSpace(word)]; ok {
				single.Labels = append(single.Labels, label)
			}
		}
		if len(single.Labels) == 0 {
			single.Text = words
		}
		answered.Answers = append(answered.Answers, single)
	}
	_, err := c.session.Answer(ctx, request.GetRequestId(), &agentstreamv1.QuestionAnswer{
		Answer: &agentstreamv1.QuestionAnswer_Answered{Answered: answered},
	})
	return err
}
