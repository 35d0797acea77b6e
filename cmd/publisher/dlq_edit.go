package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"golang.org/x/net/http/httpguts"

	"holdfast/internal/client"
	"holdfast/internal/events"
	"holdfast/internal/terminal"
)

// dlqEdit publishes a corrected copy of an event.
type dlqEdit struct {
	Seq       uint64        `arg:"" help:"Sequence of the dead letter, as dlq list shows it."`
	Body      string        `placeholder:"FILE" help:"File with the new body, - for stdin. Opens no editor."`
	Subject   string        `placeholder:"SUBJECT" help:"New subject. Opens no editor."`
	SetHeader []headerFlag  `sep:"none" placeholder:"NAME=VALUE" help:"Set a header, or remove it if the value is empty. Repeat the flag for several. Opens no editor."`
	Wait      bool          `hidden:"" help:"For scripts that give it with every command: an edit always waits for its outcome."`
	Operator  operatorFlags `embed:""`
}

func (*dlqEdit) Help() string {
	return `Opens the event of a dead letter in $VISUAL, $EDITOR or vi. When you save it, publisher validates
the event and publishes it. If the event is still malformed, the editor opens again and shows the
error. The dead letter stays until you discard it.

An event with another body is another event, even with the same id: it gets its own outcome.

Exit codes: see publisher dlq replay.

Examples:

  publisher dlq edit 12
  publisher dlq edit 12 --body corrected.json --note "quantity was a string" --yes
  publisher dlq show 12 -o json | jq -r .body | sed 's/"2"/2/' | publisher dlq edit 12 --body - --yes`
}

// headerFlag is NAME=VALUE.
type headerFlag struct{ name, value string }

func (h *headerFlag) UnmarshalText(text []byte) (err error) {
	name, value, found := strings.Cut(string(text), "=")
	if !found || !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
		return fmt.Errorf("want NAME=VALUE in printable characters, NAME without spaces, got %q", text)
	}
	h.name, h.value = name, value
	return nil
}

func (c *dlqEdit) Run(ctx context.Context, p *program) error {
	if c.byHand() && (!terminal.Is(p.in) || !terminal.Is(p.out)) {
		return misused("the editor needs a terminal: give --body, --subject or --set-header")
	}
	if err := cmp.Or(p.canConfirm(c.Operator), p.checkReplies()); err != nil {
		return err
	}
	deadLetters, err := p.deadLetters(ctx)
	if err != nil {
		return err
	}
	l, err := deadLetters.Get(ctx, c.Seq)
	if err != nil {
		return err
	}
	original, err := l.Content()
	if err != nil {
		return fmt.Errorf("dead letter %d: %w", l.Seq, err)
	}
	edited, file, err := c.edit(ctx, p, l, original)
	if err != nil {
		return err
	}
	err = c.publish(ctx, p, deadLetters, l, edited)
	switch code := exitCode(err); {
	case file == "":
		return err
	case code != exitFailed && code != exitUsage: // it is published, whatever its outcome
		return errors.Join(err, os.Remove(file))
	}
	return fmt.Errorf("%w (your text is in %s: paste it when you edit again)", err, file)
}

// publish publishes the copy after a confirmation, as a run.
func (c *dlqEdit) publish(
	ctx context.Context, p *program, deadLetters *client.DeadLetters, l *events.DeadLetter, edited *nats.Msg,
) error {
	question := fmt.Sprintf("Publish the copy of dead letter %d on %s?", l.Seq, terminal.Printable(edited.Subject))
	if err := p.confirm(ctx, c.Operator, question); err != nil {
		return err
	}
	if _, err := deadLetters.Get(ctx, l.Seq); err != nil { // another operator may have discarded or replayed it
		return err
	}
	log, err := deadLetters.StartRun(ctx, client.Run{
		Verb: client.RunEdit, Operator: terminal.Operator(c.Operator.Who), Note: c.Operator.Note, Keep: true,
	}, []uint64{l.Seq})
	if err != nil {
		return p.withHint(err)
	}
	return p.executeRun(ctx, deadLetters, log, deadLetters.EditWork(log.Run.ID, l, edited, p.Timeout))
}

// byHand reports whether an editor makes the change, and not flags.
func (c *dlqEdit) byHand() bool { return c.Body == "" && c.Subject == "" && len(c.SetHeader) == 0 }

// edit returns the event to publish: changed by the flags or, without flags, in an editor. file has the text of the
// editor.
func (c *dlqEdit) edit(
	ctx context.Context, p *program, l *events.DeadLetter, original *nats.Msg,
) (edited *nats.Msg, file string, err error) {
	edited = nats.NewMsg(original.Subject)
	edited.Header, edited.Data = maps.Clone(original.Header), original.Data
	if c.byHand() {
		return c.editByHand(ctx, p, l, edited)
	}
	if c.Subject != "" {
		edited.Subject = c.Subject
	}
	for _, header := range c.SetHeader {
		if header.value == "" {
			edited.Header.Del(header.name)
		} else {
			edited.Header.Set(header.name, header.value)
		}
	}
	if c.Body != "" {
		if edited.Data, err = c.readBody(p); err != nil {
			return nil, "", err
		}
	}
	if edited.Subject == original.Subject && bytes.Equal(edited.Data, original.Data) &&
		maps.EqualFunc(edited.Header, original.Header, slices.Equal) {
		return nil, "", errUnchanged
	}
	return edited, "", p.check(edited)
}

func (c *dlqEdit) readBody(p *program) ([]byte, error) {
	in, err := p.openInput("--body", c.Body)
	if err != nil {
		return nil, err
	}
	defer in.close()
	body, err := io.ReadAll(io.LimitReader(in.file, events.BodyMax+1))
	if err != nil {
		return nil, fmt.Errorf("--body: %w", err)
	}
	return body, nil
}

// errUnchanged reports that the copy equals the event.
var errUnchanged = errors.New("event unchanged, nothing published (publisher dlq replay publishes it unchanged)")

// check decodes an event as a worker does.
func (p *program) check(m *nats.Msg) error {
	if _, err := p.namespace().Decode(m.Subject, m.Header, m.Data, time.Now()); err != nil {
		return fmt.Errorf("the event would be dead-lettered again: %w", err)
	}
	return nil
}

// editByHand opens an editor until a worker would accept the event, or a save changes nothing. It returns the name of
// the file with the text, too.
func (c *dlqEdit) editByHand(
	ctx context.Context, p *program, l *events.DeadLetter, m *nats.Msg,
) (edited *nats.Msg, name string, err error) {
	if !utf8.Valid(m.Data) {
		return nil, "", misused("the body is not UTF-8 and an editor may corrupt it: give --body")
	}
	file, err := os.CreateTemp("", "holdfast-dead-letter-*.txt")
	if err != nil {
		return nil, "", fmt.Errorf("edit: %w", err)
	}
	if err := file.Close(); err != nil {
		return nil, "", fmt.Errorf("edit: %w", err)
	}
	problem := fmt.Sprintf("dead-lettered: %s: %s", l.Reason, l.Detail)
	unchanged := editable(m)
	for text := unchanged; ; {
		if err := os.WriteFile(file.Name(), append(editorComments(l.Seq, problem), text...), 0o600); err != nil {
			return nil, "", fmt.Errorf("edit: %w", err)
		}
		if err := runEditor(ctx, p, file.Name()); err != nil {
			return nil, "", fmt.Errorf("edit: %w (your text is in %s)", err, file.Name())
		}
		saved, err := os.ReadFile(file.Name())
		if err != nil {
			return nil, "", fmt.Errorf("edit: %w", err)
		}
		saved = withoutComments(saved)
		switch {
		case bytes.Equal(saved, unchanged):
			return nil, "", errors.Join(errUnchanged, os.Remove(file.Name()))
		case bytes.Equal(saved, text):
			return nil, "", fmt.Errorf("nothing published: %s (your text is in %s)", problem, file.Name())
		}
		text = saved
		edited, err := parseEditable(saved, m)
		if err == nil {
			err = p.check(edited)
		}
		if err == nil {
			return edited, file.Name(), nil
		}
		problem = err.Error()
	}
}

// runEditor opens a file in the editor of the operator and waits until the editor ends. Ctrl-C is a key of the editor: the
// shell around it, which gets the signal too, must not end by it.
func runEditor(ctx context.Context, p *program, path string) error {
	editor := cmp.Or(os.Getenv("VISUAL"), os.Getenv("EDITOR"), "vi")
	cmd := exec.CommandContext(ctx, "sh", "-c", "trap : INT; "+editor+` "$1"`, "sh", path) //nolint:gosec // the operator's own setting, which may have arguments
	cmd.Stdin, cmd.Stdout, cmd.Stderr = p.in, p.out, os.Stderr
	editing.Store(true)
	defer editing.Store(false)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", editor, err)
	}
	return nil
}

// editorComments returns the lines above the event in the editor.
func editorComments(seq uint64, problem string) []byte {
	var text strings.Builder
	fmt.Fprintf(&text, "# A copy of dead letter %d. Change it, save and quit to publish it. Quit without a change to publish nothing.\n", seq)
	for line := range strings.SplitSeq(problem, "\n") {
		fmt.Fprintf(&text, "# %s\n", terminal.Printable(line))
	}
	text.WriteString("# Below: the subject, the headers, an empty line, the body.\n")
	return []byte(text.String())
}

// withoutComments returns a text without the comment lines at its beginning.
func withoutComments(text []byte) []byte {
	for len(text) > 0 && text[0] == '#' {
		_, text, _ = bytes.Cut(text, []byte("\n"))
	}
	return text
}

// editable returns an event as text for the editor: subject, headers, an empty line, body.
func editable(m *nats.Msg) []byte {
	var text bytes.Buffer
	fmt.Fprintf(&text, "Subject: %s\n", m.Subject)
	for _, name := range slices.Sorted(maps.Keys(m.Header)) {
		for _, value := range m.Header[name] {
			fmt.Fprintf(&text, "%s: %s\n", name, value)
		}
	}
	text.WriteString("\n")
	text.Write(client.EditableBody(m.Data))
	return text.Bytes()
}

// parseEditable parses an event that editable wrote and the operator changed. If the body is still
// the text that editable wrote, it returns the original body byte for byte: only then it is the same
// event.
func parseEditable(text []byte, original *nats.Msg) (*nats.Msg, error) {
	m := nats.NewMsg("")
	head, body, found := bytes.Cut(text, []byte("\n\n"))
	if !found { // an editor may end lines as Windows does
		head, body, found = bytes.Cut(bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n")), []byte("\n\n"))
	}
	if !found {
		return nil, errors.New("an empty line before the body is missing")
	}
	for line := range strings.SplitSeq(string(head), "\n") {
		name, value, found := strings.Cut(line, ":")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		switch {
		case !found || name == "":
			return nil, fmt.Errorf("want NAME: VALUE above the body, got %q", line)
		case name == "Subject" && m.Subject == "":
			m.Subject = value
		default:
			m.Header.Add(name, value)
		}
	}
	m.Data = body
	if bytes.Equal(body, client.EditableBody(original.Data)) {
		m.Data = original.Data
	}
	return m, nil
}
