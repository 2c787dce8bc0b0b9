//go:build tools

// Kubernetes' own program for tests of nodes: servers of many kinds, written
// with Go's libraries as most that people run. `cargo xtask agnhost` builds it.
package tools

import _ "k8s.io/kubernetes/test/images/agnhost"
