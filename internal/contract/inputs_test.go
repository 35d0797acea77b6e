package contract

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// readOne reads a file with one input.
func readOne(t *testing.T, text string) (Input, error) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "theme.txtar"), []byte("What it is about.\n\n-- name --\n"+text), 0o600); err != nil {
		t.Fatal(err)
	}
	inputs, err := ReadInputs(dir, time.Date(2027, 5, 1, 23, 0, 0, 0, time.UTC))
	if err != nil {
		return Input{}, err
	}
	return inputs[0], nil
}

// TestReadInputs_EachForm_ReadByteForByte checks that each placeholder is expanded byte for byte.
func TestReadInputs_EachForm_ReadByteForByte(t *testing.T) {
	t.Parallel()
	in, err := readOne(t, "want: malformed data.x: y\nbeyond: rule\nsubject: holdfast.in.x\nheader: A: %{hex FF}: b\nheader: A: c\n\n"+
		"%{hex FF 0a}%{times 3 ab}%{slots 2} %{day -1} %{fill 40}\n\n")
	if err != nil {
		t.Fatal(err)
	}
	const start = "\xff\nababab\"s0000\",\"s0001\" 2027-04-30 "
	if want := start + strings.Repeat("x", 40-len(start)-1) + "\n"; string(in.Body) != want {
		t.Errorf("body %q, want %q", in.Body, want)
	}
	if in.Name != "theme/name" || in.Subject != "holdfast.in.x" || !in.IsDeadLetter() || in.Want != "malformed" || in.Detail != "data.x: y" || in.Beyond != "rule" {
		t.Errorf("read %+v", in)
	}
	if a := in.Header["A"]; len(a) != 2 || a[0] != "\xff: b" || a[1] != "c" {
		t.Errorf("headers %q", in.Header)
	}
	in, err = readOne(t, "want: booking.cancelled\nevent: booking.cancelled\n\n{\"a\": 1}\n")
	if err != nil || in.IsDeadLetter() || in.Subject != "holdfast.in.booking.cancelled.room" ||
		string(in.Body) != `{"specversion":"1.0","id":"name","source":"/catalogue","type":"holdfast.booking.cancelled.v1","data":{"a": 1}}` {
		t.Errorf("read %+v %v: %s", in, err, in.Body)
	}
}

// TestReadInputs_Malformed_IsError checks that each common mistake is an error that names the input.
func TestReadInputs_Malformed_IsError(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"no body":           "want: malformed\nevent: booking.requested\n",
		"unknown key":       "wants: malformed\nevent: booking.requested\n\n{}\n",
		"no want":           "event: booking.requested\n\n{}\n",
		"unknown reason":    "want: malformd\nevent: booking.requested\n\n{}\n",
		"no subject":        "want: malformed\n\n{}\n",
		"beyond of a good":  "want: hold.created\nbeyond: encoding\nevent: booking.requested\n\n{}\n",
		"unknown verb":      "want: malformed\nsubject: s\n\n%{bytes FF}\n",
		"not hex":           "want: malformed\nsubject: s\n\n%{hex FG}\n",
		"no number":         "want: malformed\nsubject: s\n\n%{times x 3}\n",
		"too long to fill":  "want: malformed\nsubject: s\n\nabc%{fill 2}\n",
		"unknown in header": "want: malformed\nsubject: s\nheader: A: %{bytes FF}\n\n{}\n",
		"twice the name":    "want: malformed\nsubject: s\n\n{}\n-- name --\nwant: malformed\nsubject: s\n\n{}\n",
	} {
		if in, err := readOne(t, text); err == nil || !strings.Contains(err.Error(), "name") {
			t.Errorf("%s: read %+v %v", name, in, err)
		}
	}
	if _, err := ReadInputs(t.TempDir(), time.Now()); err == nil {
		t.Error("an empty directory was read")
	}
}
