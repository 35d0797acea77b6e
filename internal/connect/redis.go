package connect

import (
	"cmp"
	"errors"
	"net"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// ErrRedisURL is returned for a Redis URL that cannot be parsed, or in which a part of the password would be taken for a
// host or a socket. It has no details, because the URL may contain a password.
var ErrRedisURL = errors.New("not a Redis URL: want redis://[user:password@]host:port[/database], rediss:// for TLS, " +
	"unix://[user:password@]/path/to/socket, redis+sentinel://[user:password@]host:port[,host:port...]/name[/database], " +
	"or redis+cluster://[user:password@]host:port[,host:port...]; " +
	"percent-encode special characters in the password")

// atAfterHost matches a URL with an @ in its fragment, or one of a socket with a host: what is before the # or the path begins
// a login.
var atAfterHost = regexp.MustCompile(`#.*@|^unix://[^/@]+/`)

// errTLSUnused is returned when files for TLS are given and the URL does not use TLS.
var errTLSUnused = errors.New("--redis-ca-file, --redis-cert-file and --redis-key-file need TLS: " +
	"use rediss://, rediss+sentinel:// or rediss+cluster://, or omit them")

// dialTimeout bounds the opening of a connection to Redis, TLS included, unless the URL has a dial_timeout. It is the
// default of go-redis, which sets it in a copy of the options: a dialer that was made of the options themselves
// (redis.NewDialer) would wait without end for a server that accepts the connection and then hangs.
const dialTimeout = 5 * time.Second

// RedisOptions returns the options of a client of the Redis at address. With Sentinels each new
// connection leads to the server that they call the primary. The options for a Redis Cluster are those of
// a client of its first server; see ClusterOptions.
func RedisOptions(address string, files TLSFiles) (*redis.Options, error) {
	scheme, rest, _ := strings.Cut(address, "://")
	single, _, _ := strings.Cut(scheme, "+")
	config, err := files.config("--redis")
	switch {
	case err != nil:
		return nil, err
	case config != nil && single != "rediss":
		return nil, errTLSUnused
	case atAfterHost.MatchString(address):
		return nil, ErrRedisURL
	}
	var options *redis.Options
	var addrs []string
	var primary string
	switch scheme {
	case "redis+cluster", "rediss+cluster":
		_, options = parseCluster(single+"://", rest)
	case "redis+sentinel", "rediss+sentinel":
		addrs, primary, options = parseSentinel(single+"://", rest)
	default:
		options, _ = redis.ParseURL(address) // its error may contain the URL
	}
	if options == nil {
		return nil, ErrRedisURL
	}
	options.DialTimeout = cmp.Or(options.DialTimeout, dialTimeout)
	if config != nil {
		config.ServerName, config.InsecureSkipVerify = options.TLSConfig.ServerName, options.TLSConfig.InsecureSkipVerify
		options.TLSConfig = config
	}
	if scheme != single && options.TLSConfig != nil {
		options.TLSConfig.ServerName = "" // that of each server
	}
	if primary != "" {
		(&sentinels{addrs, primary, options}).attach()
	}
	return options, nil
}

// sentinelPort is the default port of Sentinels.
const sentinelPort = "26379"

// parseSentinel parses what follows the scheme of a Sentinel URL. The options are those of the
// primary, nil for a malformed URL. base is the scheme for a single server.
func parseSentinel(base, rest string) (addrs []string, primary string, options *redis.Options) {
	login, addrs, path, query := splitHosts(rest, sentinelPort)
	primary, database, hasDatabase := strings.Cut(strings.TrimSuffix(path, "/"), "/")
	primary, err := url.PathUnescape(primary)
	if err != nil || primary == "" || addrs == nil {
		return nil, "", nil
	}
	single := base + login + "primary"
	if hasDatabase {
		single += "/" + database
	}
	if options, err = redis.ParseURL(single + query); err != nil {
		return nil, "", nil
	}
	return addrs, primary, options
}

// splitHosts splits what follows the scheme of a URL with several hosts. login ends with @ and query begins
// with a question mark, if they are given. It returns nil addresses when one is malformed.
func splitHosts(rest, defaultPort string) (login string, addrs []string, path, query string) {
	if at := strings.Index(rest, "?"); at >= 0 {
		rest, query = rest[:at], rest[at:]
	}
	if at := strings.LastIndex(rest, "@"); at >= 0 {
		login, rest = rest[:at+1], rest[at+1:]
	}
	hosts, path, _ := strings.Cut(rest, "/")
	return login, parseHosts(hosts, defaultPort), path, query
}

// parseHosts returns the addresses in hosts, which are separated by commas. It returns nil when one is
// malformed.
func parseHosts(hosts, defaultPort string) (addrs []string) {
	for host := range strings.SplitSeq(hosts, ",") {
		if !strings.Contains(host, ":") || strings.HasSuffix(host, "]") {
			host += ":" + defaultPort
		}
		name, port, err := net.SplitHostPort(host)
		if _, portErr := strconv.ParseUint(port, 10, 16); err != nil || name == "" || portErr != nil {
			return nil
		}
		addrs = append(addrs, net.JoinHostPort(name, port))
	}
	return addrs
}
