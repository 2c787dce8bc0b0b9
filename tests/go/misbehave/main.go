// An API server with faults, for the tests of boards that are nodes. `cargo xtask control-plane`
// builds it; after a change, the release in `xtask/build/src/go.rs` is another one.
package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// Forwards requests to another API server, with the user of the client's certificate in headers (the
// front proxy of Kubernetes), unless the file `fault` in the directory names a fault for them. Each
// request is a line of the file `requests` there.
func main() {
	if len(os.Args) != 5 {
		log.Fatal("usage: misbehave LISTEN SERVER DIRECTORY 1|2")
	}
	listen, to, dir := os.Args[1], os.Args[2], os.Args[3]
	path := func(name string) string { return filepath.Join(dir, name) }
	authority, err := os.ReadFile(path("ca.crt"))
	check(err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	client, err := tls.LoadX509KeyPair(path("front-proxy.crt"), path("front-proxy.key"))
	check(err)
	requests, err := os.OpenFile(path("requests"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	check(err)

	proxy := func(certificates ...tls.Certificate) *httputil.ReverseProxy {
		proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "https", Host: to})
		proxy.FlushInterval = -1
		proxy.Transport = &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: certificates},
		}
		return proxy
	}
	// Requests without a user must not have that of the proxy.
	anonymous, authenticated := proxy(), proxy(client)
	authenticated.ModifyResponse = func(response *http.Response) error {
		fault, _ := os.ReadFile(path("fault"))
		if strings.TrimSpace(string(fault)) != "lies" || response.Request.URL.Path != "/api/v1/pods" {
			return nil
		}
		if response.Request.URL.Query().Get("watch") != "" {
			return nil
		}
		return lie(response)
	}
	handle := func(w http.ResponseWriter, r *http.Request) {
		fault, _ := os.ReadFile(path("fault"))
		fmt.Fprintf(requests, "%s %s %s\n", strings.TrimSpace(string(fault)), r.Method, r.URL)
		if fails(strings.TrimSpace(string(fault)), w, r) {
			return
		}
		ends := ends(strings.TrimSpace(string(fault)))
		if ends != nil && (ends.isBefore || r.URL.Query().Get("watch") != "") {
			ends.end(path("ended"), r)
		}
		for _, name := range []string{"X-Remote-User", "X-Remote-Group"} {
			r.Header.Del(name)
		}
		proxy := anonymous
		if certificates := r.TLS.PeerCertificates; len(certificates) > 0 {
			proxy = authenticated
			r.Header.Set("X-Remote-User", certificates[0].Subject.CommonName)
			for _, group := range certificates[0].Subject.Organization {
				r.Header.Add("X-Remote-Group", group)
			}
			r.Header.Add("X-Remote-Group", "system:authenticated")
		}
		if ends != nil {
			proxy.ServeHTTP(nowhere{}, r)
			ends.end(path("ended"), r)
		}
		proxy.ServeHTTP(w, r)
	}
	server := http.Server{
		Addr:      listen,
		Handler:   http.HandlerFunc(handle),
		TLSConfig: &tls.Config{ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: roots},
		ErrorLog:  log.New(os.Stderr, "", 0),
	}
	if os.Args[4] == "1" {
		// HTTP/1.1 only, as API servers with --disable-http2-serving.
		server.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){}
	}
	check(server.ListenAndServeTLS(path("apiserver.crt"), path("apiserver.key")))
}

// ending is a request that gets no response: it is kept, or its connection is closed, before or after the API server has
// performed it.
type ending struct {
	fault           string
	keeps, isBefore bool
}

var (
	counting sync.Mutex
	// counted has the number of requests with each fault.
	counted = map[string]int{}
)

// ends returns how this request ends with a fault such as "hold 3 before web", for the third request, or "cut 3 after web";
// nil for all others.
func ends(fault string) *ending {
	words := strings.Fields(fault)
	if len(words) != 4 || words[0] != "hold" && words[0] != "cut" {
		return nil
	}
	counting.Lock()
	defer counting.Unlock()
	counted[fault]++
	if strconv.Itoa(counted[fault]) != words[1] {
		return nil
	}
	return &ending{fault, words[0] == "hold", words[2] == "before"}
}

// end ends a request, and notes its fault in a file.
func (e *ending) end(file string, r *http.Request) {
	check(os.WriteFile(file, []byte(fmt.Sprintf("%s: %s %s", e.fault, r.Method, r.URL)), 0o600))
	if e.keeps {
		<-r.Context().Done()
	}
	panic(http.ErrAbortHandler)
}

// nowhere is where a response goes that nobody gets.
type nowhere struct{}

func (nowhere) Header() http.Header             { return http.Header{} }
func (nowhere) Write(bytes []byte) (int, error) { return len(bytes), nil }
func (nowhere) WriteHeader(int)                 {}

// late is the number of requests for Secrets.
var late atomic.Int32

// fails responds with a fault. It returns false if the API server responds, perhaps to another request:
// with the fault "old", a watch begins with the first version of all, and with "short", it lasts 8 s. With "lies",
// lists of pods have more items (see lie); with "secret", only Secrets fail, with "webhook", only the status of the pod web and
// mirror pods, and with "late", only the first two requests
// for them do.
func fails(fault string, w http.ResponseWriter, r *http.Request) bool {
	watches := r.URL.Query().Get("watch") != ""
	if code, err := strconv.Atoi(fault); err == nil {
		if code == http.StatusTooManyRequests {
			w.Header().Set("Retry-After", "7")
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Test","message":"a fault","code":%d}`, code)
		return true
	}
	switch {
	case fault == "garbage":
		fmt.Fprint(w, strings.Repeat("\x00\xff{[\"", 100_000))
	case fault == "half":
		w.Header().Set("Content-Length", "100000")
		fmt.Fprint(w, `{"kind":"`)
		panic(http.ErrAbortHandler)
	case fault == "version":
		fmt.Fprint(w, `{"kind":"Unknown","apiVersion":"example.com/v9","metadata":[],"items":{"a":1},"status":7}`)
	case fault == "secret" && strings.Contains(r.URL.Path, "/secrets"):
		return fails("500", w, r)
	case fault == "webhook" && (strings.HasSuffix(r.URL.Path, "/pods/web/status") ||
		r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/pods")):
		return fails("500", w, r)
	case fault == "late" && strings.Contains(r.URL.Path, "/secrets") && late.Add(1) <= 2:
		return fails("403", w, r)
	case fault == "redirect":
		// To itself: whoever follows it asks without end, and elsewhere with the credentials.
		http.Redirect(w, r, "https://"+r.Host+r.URL.RequestURI(), http.StatusTemporaryRedirect)
	case fault == "upgrade":
		// To a protocol that nobody asked for.
		if hijacker, ok := w.(http.Hijacker); ok {
			connection, _, err := hijacker.Hijack()
			check(err)
			fmt.Fprint(connection, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
			fmt.Fprint(connection, strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 1000))
			connection.Close()
		} else {
			w.Header().Set("Upgrade", "x")
			w.WriteHeader(http.StatusMisdirectedRequest)
		}
	case fault == "headers":
		for at := range 200 {
			w.Header().Set(fmt.Sprintf("X-Header-%d", at), strings.Repeat("x", 4000))
		}
		fmt.Fprint(w, "{}")
	case fault == "endless" && watches:
		event := fmt.Sprintf(`{"type":"BOOKMARK","object":{"kind":"Pod","metadata":{"resourceVersion":"1"},"x":"%s"}}`, strings.Repeat("x", 1000))
		for {
			if _, err := fmt.Fprintln(w, event); err != nil {
				return true
			}
		}
	case fault == "old" && watches:
		set(r, "resourceVersion", "1")
		return false
	case fault == "short" && watches:
		set(r, "timeoutSeconds", "8")
		return false
	case fault == "line" && watches:
		for {
			if _, err := fmt.Fprint(w, strings.Repeat("x", 100_000)); err != nil {
				return true
			}
		}
	default:
		return false
	}
	return true
}

// lie adds pods to a list that no API server could have: names, namespaces and UIDs that lead out of the directory of
// whoever makes paths of them, one pod twice under two UIDs, none at all, and fields of other types.
func lie(response *http.Response) error {
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	var list map[string]any
	if err := json.Unmarshal(body, &list); err != nil {
		return err
	}
	pod := func(namespace, name, uid string) map[string]any {
		return map[string]any{
			"metadata": map[string]any{"namespace": namespace, "name": name, "uid": uid},
			"spec": map[string]any{
				"nodeName": "board-1", "serviceAccountName": "../default",
				"containers": []any{map[string]any{"name": "app", "image": "localhost/demo:1", "args": []any{"wait", "/end"}}},
				"volumes": []any{map[string]any{"name": "t", "projected": map[string]any{"sources": []any{
					map[string]any{"serviceAccountToken": map[string]any{"path": "token"}}}}}},
			},
		}
	}
	items, _ := list["items"].([]any)
	list["items"] = append(items,
		pod("../../../../tmp", "evil", "../../../../tmp/evil"),
		pod("default", "../../../etc/evil", "u1"),
		pod("default", "evil", "../../../../etc/evil"),
		pod("../../../../tmp", "evil", "u6"),
		pod("default", "moved", "u6"),
		pod("", "", ""),
		pod("default", "twin", "u2"),
		pod("default", "twin", "u3"),
		pod("default", strings.Repeat("a", 5000), "u4"),
		map[string]any{"metadata": 7, "spec": []any{}},
		map[string]any{"metadata": map[string]any{"uid": "u5", "deletionTimestamp": 5, "deletionGracePeriodSeconds": "x"}},
		map[string]any{},
	)
	body, err = json.Marshal(list)
	if err != nil {
		return err
	}
	response.Body = io.NopCloser(bytes.NewReader(body))
	response.ContentLength = int64(len(body))
	response.Header.Set("Content-Length", strconv.Itoa(len(body)))
	return nil
}

// set replaces a parameter of a request.
func set(r *http.Request, name, value string) {
	query := r.URL.Query()
	query.Set(name, value)
	r.URL.RawQuery = query.Encode()
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
