package main

import (
	"runtime"
	"strings"
	"testing"
)

// TestUsage_Mistakes_ExplainedWithExit2 checks the exit code and the message for wrong usage.
func TestUsage_Mistakes_ExplainedWithExit2(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]struct {
		code int
		text string
	}{
		"":                               {exitUsage, "Start all servers"},
		"--version":                      {exitOK, runtime.Version()},
		"fly":                            {exitUsage, "fly"},
		"--help":                         {exitOK, "worker dev --once"},
		"help":                           {exitOK, "worker dev --once"},
		"help run":                       {exitOK, "Usage: worker run"},
		"run --help":                     {exitOK, "--lock-strategy"},
		"run":                            {exitUsage, "HOLDFAST_NATS_URL"},
		"run --namespace Bad":            {exitUsage, "--namespace"},
		"run --namespace=":               {exitUsage, "--namespace: is empty"},
		"run --nights-max 0x10":          {exitUsage, `--nights-max: expected an integer such as 2 but got "0x10"`},
		"run --hold-ttl 2h":              {exitUsage, "--hold-ttl-max"},
		"run --hold-ttl-max 3h":          {exitUsage, "--hold-lifetime-max"},
		"run --hold-ttl-max 1m":          {exitUsage, "--hold-ttl 10m0s must be from 1s to --hold-ttl-max (1m0s)" + policyOrder},
		"run --hold-lifetime-max 30s":    {exitUsage, "--hold-ttl-max 1h0m0s must not exceed --hold-lifetime-max (30s)" + policyOrder},
		"preflight --request-key-ttl 5s": {exitUsage, "the answer to an extension would be forgotten while its hold lives" + policyOrder},
		"run --inbound-keep 1000000h":    {exitUsage, "from 1m to 87600h0m0s"},
		"run --request-key-ttl 1000000h": {exitUsage, "at most 87600h0m0s"},
		"run --request-key-ttl 1h":       {exitUsage, "--request-key-ttl"},
		"run --lock-lease 1ms":           {exitUsage, "--lock-lease"},
		"run --lock-strategy hope":       {exitUsage, "--lock-strategy"},
		"run --lock-lease soon":          {exitUsage, "auto"},
		"run --lock-lease 0s":            {exitUsage, "--lock-lease"},
		"run --lock-renew-max 11m":       {exitUsage, "--lock-renew-max"},

		"run --nats-url x --redis-url y --postgres-url z --lock-strategy redlock":                       {exitUsage, "HOLDFAST_LOCK_REDIS_URLS"},
		"run --lock-strategy redlock --lock-redis-urls redis://a":                                       {exitUsage, "odd number"},
		"run --lock-strategy redlock --lock-redis-urls redis://a,redis://b,redis://c,redis://d":         {exitUsage, "odd number"},
		"run --lock-strategy redlock --lock-redis-urls redis://a,redis://b,redis://a":                   {exitUsage, "twice"},
		"run --lock-strategy redlock --lock-redis-urls redis://a,redis://:s3cret@b:bad/0,redis://c":     {exitUsage, "URL 2"},
		"run --lock-strategy redlock --lock-redis-urls redis://a,redis://:s3cret@b/0,redis://:s3cret@b": {exitUsage, "b:6379"},
		"run --lock-strategy range --lock-redis-urls redis://:s3cret@a":                                 {exitUsage, "redlock only"},
		"run --lock-strategy redlock --lock-fair":                                                       {exitUsage, "--lock-fair"},
		"run --lock-strategy none --lock-lease auto":                                                    {exitUsage, "--lock-lease"},
		"run --lock-strategy optimistic --lock-renew-max 1m":                                            {exitUsage, "--lock-renew-max"},

		"preflight --help":                   {exitOK, "worker preflight --no-migrate"},
		"preflight":                          {exitUsage, "HOLDFAST_NATS_URL"},
		"preflight -o xml":                   {exitUsage, "--output"},
		"run --preflight perhaps":            {exitUsage, "--preflight"},
		"rebuild --help":                     {exitOK, "worker rebuild --yes"},
		"rebuild -o xml":                     {exitUsage, "--output"},
		"rebuild --yes":                      {exitUsage, "HOLDFAST_NATS_URL"},
		"rebuild --log-level debug --yes":    {exitUsage, "unknown flag --log-level"},
		"migrate --lock-strategy none":       {exitUsage, "unknown flag --lock-strategy"},
		"healthcheck --help":                 {exitOK, "worker healthcheck --http-addr"},
		"healthcheck --http-addr here":       {exitUsage, "host:port"},
		"healthcheck --http-addr a:1 x":      {exitUsage, "unexpected argument x"},
		"healthcheck --timeout 0s":           {exitUsage, "--timeout"},
		"healthcheck --http-addr :1":         {exitFailed, "127.0.0.1:1"},
		"completion fish":                    {exitOK, "function __complete_worker"},
		"completion tcsh":                    {exitUsage, "tcsh"},
		"locks --help":                       {exitOK, "-o json"},
		"locks -o xml":                       {exitUsage, "--output"},
		"locks --http-addr here":             {exitUsage, "host:port"},
		"locks --http-addr a:1,a:1":          {exitUsage, "twice"},
		"locks --http-addr 127.0.0.1:1":      {exitFailed, "worker dev"},
		"migrate --nats-url x --redis-url y": {exitUsage, "HOLDFAST_POSTGRES_URL"},
		"migrate --nats-url x --redis-url redis://:s3cret@h:bad/0 --postgres-url z":                                                    {exitUsage, "--redis-url"},
		"migrate --nats-url x --redis-url redis://127.0.0.1:1 --postgres-url postgres://a:s3cret@h:bad/0":                              {exitUsage, "--postgres-url"},
		"preflight --lock-strategy range --nats-url x --redis-url redis://127.0.0.1:1 --postgres-url postgres://a:s3%zzs3cret@h/0":     {exitUsage, "--postgres-url"},
		"preflight --lock-strategy range --nats-url nats://a:s3cret@h:bad --redis-url redis://127.0.0.1:1 --postgres-url postgres://h": {exitFailed, "nats.reachable"},
	} {
		code, out := execute(t.Context(), strings.Fields(args)...)
		if code != want.code || !strings.Contains(out, want.text) {
			t.Errorf("worker %s: %d, %s\nwant %d with %s", args, code, out, want.code, want.text)
		}
		if strings.Contains(out, "s3cret") {
			t.Errorf("worker %s shows a password: %s", args, out)
		}
	}
}
