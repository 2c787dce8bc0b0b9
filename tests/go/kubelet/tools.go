//go:build tools

// The kubelet, against which boards are measured. `cargo xtask bench --only peers` builds it.
package tools

import _ "k8s.io/kubernetes/cmd/kubelet"
