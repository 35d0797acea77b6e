package deployments

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"holdfast/internal/audit"
	"holdfast/internal/holds"
	"holdfast/internal/locking"
	"holdfast/internal/recovery"
	"holdfast/internal/stack/stacktest"
)

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestUsersConf_Scripts_MayRunAllCommands compares the permissions of the worker and of the auditor
// with the commands in their scripts: none is missing, even if no test runs it. The auditor has no
// others.
func TestUsersConf_Scripts_MayRunAllCommands(t *testing.T) {
	t.Parallel()
	rules := make(map[string][]string)
	for line := range strings.Lines(read(t, "redis/users.conf.template")) {
		if words := strings.Fields(line); len(words) > 1 && words[0] == "user" {
			rules[words[1]] = words
		}
	}
	reading, ofAudit := audit.ScriptCommands()
	for user, commands := range map[string][]string{
		"holdfast_worker":  slices.Concat(holds.ScriptCommands(), recovery.ScriptCommands(), locking.ScriptCommands(), ofAudit),
		"holdfast_auditor": reading,
	} {
		for _, command := range commands {
			if !slices.Contains(rules[user], "+"+strings.ToLower(command)) {
				t.Errorf("%s may not run %s, which a script runs", user, command)
			}
		}
	}
	for _, command := range ofAudit {
		if !slices.Contains(reading, command) && slices.Contains(rules["holdfast_auditor"], "+"+strings.ToLower(command)) {
			t.Errorf("the auditor may run %s, which only a repair needs", command)
		}
	}
	if !slices.Contains(rules["holdfast_worker"], "&"+holds.ExpiredChannel) {
		t.Errorf("the worker may not subscribe to %s", holds.ExpiredChannel)
	}
}

// TestREADME_UserTable_ListsAllUsers compares the table of users in README.md with the files.
func TestREADME_UserTable_ListsAllUsers(t *testing.T) {
	t.Parallel()
	users := regexp.MustCompile(`holdfast_[a-z]+`)
	found := make(map[string]bool)
	for _, path := range []string{"nats/accounts.conf", "redis/users.conf.template", "postgres/roles.sql"} {
		for _, user := range users.FindAllString(read(t, path), -1) {
			found[user] = true
		}
	}
	readme := strings.NewReplacer("`_payment`", "`holdfast_payment`", "`_inventory`",
		"`holdfast_inventory`").Replace(read(t, "README.md"))
	for _, user := range stacktest.RestrictedUsers {
		name := "holdfast_" + user
		if !found[name] || !strings.Contains(readme, "`"+name+"`") {
			t.Errorf("%s is missing in the files or in README.md", name)
		}
		delete(found, name)
	}
	if len(found) > 0 {
		t.Errorf("users without a test: %v", found)
	}
}

// TestIgnoreFiles_FilesWithPasswords_AreIgnored: the commands of README.md write them, or wrote them in earlier builds, into
// the repository, of which the Dockerfile copies all.
func TestIgnoreFiles_FilesWithPasswords_AreIgnored(t *testing.T) {
	t.Parallel()
	for _, name := range []string{".env", "users.acl", "users.conf"} {
		if !strings.Contains(read(t, "../.gitignore"), "\n"+name+"\n") || !strings.Contains(read(t, "../.dockerignore"), "\n**/"+name+"\n") {
			t.Errorf("%s is committed, or copied into the image", name)
		}
	}
}

// TestIgnoreFiles_DirectoryOfReleases_IsIgnored: goreleaser writes into dist before it builds. A file there that Git does not
// ignore makes the programs of a release call themselves modified.
func TestIgnoreFiles_DirectoryOfReleases_IsIgnored(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"../.gitignore", "../.dockerignore"} {
		if !strings.Contains(read(t, name), "\n/dist/\n") {
			t.Errorf("%s does not have /dist/", name)
		}
	}
}
