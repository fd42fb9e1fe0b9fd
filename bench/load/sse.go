package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"time"
)

// silence ends a stream of server-sent events from which nothing came for so long: a peer that
// loses events may lose its last one.
const silence = 3 * time.Second

// said is before the text of a delta, of an OpenCode server.
var said = []byte(`"delta":"`)

// readEvents reads the server-sent events at a URL until one holds the mark, and counts those that
// hold `-count`; what never comes is the caller's to count.
func (r *result) readEvents(url string, o options, opened func()) error {
	mark, update := []byte(o.events), []byte(o.count)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	request.Header.Set("Accept", "text/event-stream")
	// A transport of its own: each stream has its connection.
	response, err := (&http.Client{Transport: &http.Transport{}}).Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, response.Status)
	}
	opened()
	patience := time.AfterFunc(time.Hour, cancel)
	defer patience.Stop()
	lines := bufio.NewReaderSize(response.Body, 1<<20)
	for {
		line, err := lines.ReadSlice('\n')
		if err != nil {
			if ctx.Err() != nil || err == io.EOF {
				return nil
			}
			return err
		}
		if !bytes.HasPrefix(line, []byte("data:")) {
			continue
		}
		r.lastNs = now()
		r.bytes += int64(len(line))
		switch {
		case bytes.Contains(line, mark):
			return nil
		case bytes.Contains(line, update):
			patience.Reset(silence)
			r.events++
			if _, text, ok := bytes.Cut(line, said); ok && o.stamps {
				r.stamp(text)
			}
		}
	}
}
