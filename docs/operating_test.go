package docs_test

import (
	"bytes"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"

	"holdfast/internal/stack/stacktest"
)

// operator is a stranger with the programs on PATH, the addresses and passwords in the environment, and
// docs/operating.md.
type operator struct {
	site
	servers *stacktest.RestrictedServers
	t       *testing.T
}

// newOperator starts the servers with the users of deployments, and a worker.
func newOperator(t *testing.T) *operator {
	t.Helper()
	servers := serversWithUsers(t)
	s := guardedSite(t, servers)
	s.dir = filepath.Dir(stacktest.DataDir(t)) // in which Postgres may start as another user
	o := &operator{s, servers, t}
	o.env = []string{
		"PATH=" + filepath.Dir(binary) + string(os.PathListSeparator) + os.Getenv("PATH"), "HOME=" + t.TempDir(),
		"XDG_CONFIG_HOME=" + t.TempDir(), "HOLDFAST_HTTP_ADDR=" + o.httpAddr, "HOLDFAST_PREFLIGHT=warn", "HOLDFAST_NATS_URL=",
		"NATS_TIMEOUT=" + commandLimit.String(),
	}
	for _, user := range stacktest.RestrictedUsers {
		_, _, postgres := servers.URLs(user)
		address, err := url.Parse(postgres)
		if err != nil {
			t.Fatal(err)
		}
		password, _ := address.User.Password()
		o.env = append(o.env, "HOLDFAST_POSTGRES_"+strings.ToUpper(user)+"_PASSWORD="+password)
	}
	nats, redis, postgres := servers.URLs("worker")
	for name, address := range map[string]string{"NATS": nats, "REDIS": redis, "POSTGRES": postgres} {
		_, host, _ := strings.Cut(address, "@")
		o.env = append(o.env, name+"="+host)
	}
	scheme, _, _ := strings.Cut(redis, "://")
	o.env = append(o.env, "REDIS_SCHEME="+scheme)
	return o
}

// shell runs a script and returns what it printed. exit codes other than 0 must be allowed.
func (o *operator) shell(script string, codes ...int) (printed string, err error) {
	o.t.Helper()
	c := o.command(o.t, o.dir, "sh", "-eu", "-c", script)
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	err = c.Run()
	if c.ProcessState != nil && slices.Contains(codes, c.ProcessState.ExitCode()) {
		err = nil
	}
	return out.String(), err
}

// TestOperating_EveryBlock_Runs types what docs/operating.md says to, block by block, on servers with users. Blocks
// whose output is shown, and those for another machine (console), are counted. What brings a lost stream back comes last.
func TestOperating_EveryBlock_Runs(t *testing.T) {
	t.Parallel()
	stacktest.NeedTool(t, "nats")
	o := newOperator(t)
	before, mirror := "", "" // the functions that earlier blocks define, and the block that brings a stream back
	counts := make(map[string]int)
	for _, b := range blocksOf(t, "operating.md") {
		kind := strings.TrimSpace(b.lang + " " + b.name)
		counts[kind]++
		var printed string
		var err error
		switch kind {
		case "sh":
			printed, err = o.shell(before + b.text)
		case "sh checks": // the servers of tests do not sync to disk, which a check finds
			if printed, err = o.shell(before+b.text, 1); err == nil && !strings.Contains(printed, "ok       redis.") {
				err = fmt.Errorf("no check has passed")
			}
		case "sh daemon":
			printed, err = o.daemon(b.text)
		case "sh mirror":
			mirror = b.text
		}
		if err != nil {
			t.Fatalf("docs/operating.md:%d: %v\n%s\n%s", b.line, err, b.text, printed)
		}
		if function, _, found := strings.Cut(b.text, "\n}\n"); found && kind == "sh" {
			before += function + "\n}\n"
		}
	}
	o.bringBack(mirror)
	if counts["sh"] < 7 || counts["sh daemon"] != 1 || counts["sh checks"] != 1 || counts["console"] != 1 {
		t.Errorf("the page has other blocks than before: %v", counts)
	}
}

// bringBack loses the outbound stream and brings it back from its mirror by a script.
func (o *operator) bringBack(script string) {
	o.t.Helper()
	admin, _, _ := o.servers.URLs("admin")
	as := "export NATS_URL='" + admin + "'\n"
	js := stacktest.ConnectNATS(o.t, admin)
	last := func(stream string) uint64 {
		o.t.Helper()
		found, err := js.Stream(o.t.Context(), stream)
		stacktest.Must(o.t, err)
		return found.CachedInfo().State.LastSeq
	}
	worker, _, _ := o.servers.URLs("worker")
	printed, err := o.shell("NATS_URL='" + worker + "' nats pub holdfast.out.hold.created.room '{}'\n" + as +
		"nats stream add HOLDFAST_OUT_MIRROR --defaults --mirror HOLDFAST_OUT --no-allow-direct")
	if err != nil {
		o.t.Fatalf("%v\n%s", err, printed)
	}
	var all uint64
	stacktest.Eventually(o.t, "the mirror to have all messages", func() bool {
		all = last("HOLDFAST_OUT")
		return all > 0 && last("HOLDFAST_OUT_MIRROR") == all
	})
	if printed, err := o.shell(as + "nats stream rm --force HOLDFAST_OUT\n" + script); err != nil {
		o.t.Fatalf("%v\n%s\n%s", err, script, printed)
	}
	if n := last("HOLDFAST_OUT"); n < all {
		o.t.Errorf("the last of %d messages is %d", all, n)
	}
}

// daemon starts a program that does not end by itself, and ends it when it has started.
func (o *operator) daemon(script string) (printed string, err error) {
	c := o.command(o.t, o.dir, "sh", "-eu", "-c", "exec "+script)
	c.Env = append(c.Env, "HOLDFAST_HTTP_ADDR=127.0.0.1:0")
	running, err := stacktest.StartProgram(c)
	if err != nil {
		return "", err
	}
	if _, err := running.AwaitLine("worker started"); err != nil {
		running.Kill()
		return running.Output(), err
	}
	return running.Output(), running.Stop()
}

var tableCommand = regexp.MustCompile("`((?:worker|publisher) [^`]*)`")

// TestOperating_EveryRow_HasACommand runs each command of the operator's table, with sequences of dead letters and
// ids of runs that exist.
func TestOperating_EveryRow_HasACommand(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	page, err := os.ReadFile("operating.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "\n| task | command |\n|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	o.save("production", "operator")
	rows := strings.Split(table, "\n")
	commands := 0
	for _, row := range rows {
		found := tableCommand.FindAllStringSubmatch(row, -1)
		if len(found) == 0 && !strings.Contains(row, "](") && !strings.Contains(row, "`--yes`") {
			t.Errorf("a row without a command: %s", row)
		}
		if strings.Contains(row, "not yet") {
			t.Errorf("a row that cannot be done: %s", row)
		}
		for _, command := range found {
			commands++
			o.runRow(command[1])
		}
	}
	if len(rows) != 25 || commands < 25 {
		t.Errorf("the table has %d rows with %d commands", len(rows), commands)
	}
}

// save writes a context of the nats command.
func (o *operator) save(name, user string) {
	o.t.Helper()
	address, _, _ := o.servers.URLs(user)
	dir := ""
	for _, variable := range o.env {
		if value, found := strings.CutPrefix(variable, "XDG_CONFIG_HOME="); found {
			dir = filepath.Join(value, "nats", "context")
		}
	}
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name+".json"), []byte(`{"url":"`+address+`"}`), 0o600)
	}
	if err != nil {
		o.t.Fatal(err)
	}
}

// rowCodes are the exit codes of commands that succeed with another code than 0: an event is dead-lettered again or
// rejected, and Nagios warns of dead letters.
var rowCodes = map[string][]int{"replay": {4}, "edit": {3, 4}, "nagios": {1}}

// runRow runs a command of the table.
func (o *operator) runRow(command string) {
	o.t.Helper()
	words := strings.Fields(strings.ReplaceAll(command, "--context production ", ""))
	user := "operator"
	switch {
	case words[0] == "worker" && words[1] == "audit":
		user = "auditor"
	case words[0] == "worker":
		user = "migrator"
	}
	as := o.as(user)
	if strings.Contains(command, "--context") {
		as = o // without a URL
	}
	if strings.Contains(command, "publisher watch") {
		as.watch(command)
		return
	}
	script := command
	if user == "operator" {
		script = strings.NewReplacer("SEQ", o.newDeadLetter(), " ID", " "+o.as(user).lastRun()).Replace(command)
	}
	verb := words[min(len(words)-1, 1)]
	if words[0] == "publisher" && len(words) > 2 {
		verb = words[2]
	}
	if slices.Contains([]string{"replay", "edit", "discard"}, verb) && !strings.Contains(command, "--dry-run") {
		script += " --yes"
	}
	if command == "publisher dlq edit SEQ" { // instead of an editor
		script += " --body - <<'EOF'\n" + deadLettered(`1`) + "\nEOF"
	}
	if command == "publisher dlq edit SEQ --subject holdfast.in.booking.requested.loft" {
		script = strings.Replace(script, " --yes", " --body - --yes <<'EOF'\n"+deadLettered(`1`)+"\nEOF", 1)
	}
	if verb == "nagios" { // the worker has been paused by another row, and has not noticed yet that it was resumed
		stacktest.Eventually(o.t, "no critical state", func() bool {
			_, err := as.shell(script, rowCodes[verb]...)
			return err == nil
		})
		return
	}
	if out, err := as.shell(script, rowCodes[verb]...); err != nil {
		o.t.Errorf("%s: %v\n%s", command, err, out)
	}
}

// as returns the operator with the URLs of a user in the environment.
func (o *operator) as(user string) *operator {
	nats, redis, postgres := o.servers.URLs(user)
	as := *o
	as.env = append(slices.Clone(o.env), "HOLDFAST_NATS_URL="+nats, "HOLDFAST_REDIS_URL="+redis, "HOLDFAST_POSTGRES_URL="+postgres)
	return &as
}

// deadLettered returns a request that is malformed unless quantity is a number.
func deadLettered(quantity string) string {
	return `{"specversion":"1.0","id":"row","source":"/s","type":"holdfast.booking.requested.v1","data":{"request_key":"row",` +
		`"user_id":"ann","resource_id":"loft","quantity":` + quantity + `}}`
}

// newDeadLetter has the worker store a dead letter, and returns its sequence.
func (o *operator) newDeadLetter() string {
	o.t.Helper()
	js := o.asOperator(o.t)
	nc := js.Conn()
	answers, err := nc.SubscribeSync(nc.NewInbox())
	if err != nil {
		o.t.Fatal(err)
	}
	m := nats.NewMsg("holdfast.in.booking.requested.loft")
	m.Header.Set("Holdfast-Reply-To", answers.Subject)
	m.Data = []byte(deadLettered(`"two"`))
	if _, err := js.PublishMsg(o.t.Context(), m); err != nil {
		o.t.Fatal(err)
	}
	if _, err := answers.NextMsg(commandLimit); err != nil {
		o.t.Fatal(err)
	}
	stream, err := js.Stream(o.t.Context(), "HOLDFAST_DLQ")
	if err != nil {
		o.t.Fatal(err)
	}
	return fmt.Sprint(stream.CachedInfo().State.LastSeq)
}

// lastRun returns the id of the last run, or - before the first.
func (o *operator) lastRun() string {
	o.t.Helper()
	out, err := o.shell("publisher dlq runs -o json")
	var runs []struct {
		ID string `json:"run_id"`
	}
	if err == nil {
		err = json.Unmarshal([]byte(out), &runs)
	}
	if err != nil {
		o.t.Fatalf("%v: %s", err, out)
	}
	if len(runs) == 0 {
		return "-"
	}
	return runs[len(runs)-1].ID
}

// watch runs a command that follows events until one is shown.
func (o *operator) watch(command string) {
	o.t.Helper()
	words := strings.Fields(command)
	c := exec.CommandContext(o.t.Context(), filepath.Join(filepath.Dir(binary), words[0]), words[1:]...)
	c.Dir, c.Env = o.dir, append(os.Environ(), o.env...)
	running, err := stacktest.StartProgram(c)
	if err == nil {
		_, err = running.AwaitLine("dead-lettered")
	}
	if err == nil {
		err = running.Stop()
	}
	if err != nil {
		o.t.Errorf("%s: %v", command, err)
	}
}
