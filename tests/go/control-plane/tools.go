//go:build tools

// kube-proxy, which the tests run as a pod of a board.
package tools

import _ "k8s.io/kubernetes/cmd/kube-proxy"
